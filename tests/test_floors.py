"""The floors of the package: a module imports only from floors below its own."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "explorer"

FLOORS = {
    "system": 0,
    "ops": 0,
    "model": 0,
    "ptx_emulator": 0,
    "space": 1,
    "choose": 2,
    "codegen": 1,
    "reference": 1,
    "presets": 2,
    "compile": 2,
    "devices": 3,
    "evaluate": 4,
    "tuning": 5,
    "report": 6,
    "export": 6,
    "peers": 6,
    "runtime": 6,
    "api": 7,
    "cli": 8,
}

HOMES = {
    # What may import a library: folders of the package, by prefix.
    "cuda": ("compile/", "devices/cuda/", "runtime/"),
    "jinja2": ("codegen/",),
    "optuna": ("tuning/",),
    "sqlalchemy": ("tuning/",),
    "dask": ("tuning/cluster.py",),
    "distributed": ("tuning/cluster.py",),
    "rich": ("cli/", "report/"),
    "typer": ("cli/",),
    "torch": ("peers/", "runtime/torch_"),
    "triton": ("peers/",),
    "quack": ("peers/",),
    "liger_kernel": ("peers/",),
    "fa3_fwd_interface": ("peers/",),
    "altair": ("report/",),
    "vl_convert": ("report/",),
    "pygments": ("report/",),
    "cupy": ("peers/", "runtime/cupy_"),
    "cupyx": ("peers/", "runtime/cupy_"),
    "jax": ("runtime/jax_",),
}

ENTRIES = {"__init__", "__main__"}

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def floor_name(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


@cache
def imports(module: str) -> set[str]:
    """Dotted names that a module imports anywhere, inside functions as well."""
    names = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("module", [m for m in MODULES if floor_name(m) in FLOORS])
def test_imports_come_from_floors_below(module):
    own = floor_name(module)
    for name in imports(module):
        parts = name.split(".")
        if parts[0] != "explorer" or len(parts) == 1 or parts[1] not in FLOORS:
            continue
        below = FLOORS[parts[1]] < FLOORS[own]
        vocabulary = FLOORS[own] == 0 and FLOORS[parts[1]] == 0
        assert parts[1] == own or below or vocabulary, f"{module} imports {name}"


@pytest.mark.parametrize("library", HOMES)
def test_libraries_stay_in_their_folders(library):
    users = [m for m in MODULES if library in {name.split(".")[0] for name in imports(m)}]
    assert [m for m in users if not m.startswith(HOMES[library])] == []


KINDS = ("explorer.devices.cuda", "explorer.devices.emulated", "explorer.devices.recorded")
"""The modules of one kind of device."""

KNOW_A_KIND = {
    "devices/names.py": "it opens a device by its name",
    "evaluate/nsight.py": "NVIDIA's profiler watches a process that launches a kernel once",
    "evaluate/profile.py": "only the emulator counts what a kernel does",
    "runtime/jax_arrays.py": "the runtime launches kernels in the user's process",
    "runtime/launcher.py": "the runtime launches kernels in the user's process",
}
"""Modules outside a kind's own that import it, and why."""


def is_of_a_kind(name: str) -> bool:
    return name.startswith(tuple(f"{kind}." for kind in KINDS)) or name in KINDS


def test_nothing_above_knows_which_device_it_has():
    own = [f"{kind.removeprefix('explorer.').replace('.', '/')}" for kind in KINDS]
    others = [module for module in MODULES if not module.startswith(tuple(own))]
    assert {m for m in others if any(map(is_of_a_kind, imports(m)))} == set(KNOW_A_KIND)


def test_every_module_has_a_floor():
    assert {floor_name(m) for m in MODULES} - ENTRIES == set(FLOORS)


MOST_LINES = 40
"""Of a function below its signature and docstring."""


def body_lines(function):
    """Lines from the first statement after the docstring to the last."""
    body = function.body
    first = body[1] if ast.get_docstring(function) and len(body) > 1 else body[0]
    return function.end_lineno - first.lineno + 1


def test_functions_can_be_seen_at_once():
    long = [
        f"{module}: {node.name}"
        for module in MODULES
        for node in ast.walk(ast.parse((PACKAGE / module).read_text()))
        if isinstance(node, ast.FunctionDef) and body_lines(node) > MOST_LINES
    ]
    assert long == []


def test_no_file_without_a_concept():
    banned = {"utils.py", "util.py", "common.py", "helpers.py", "helper.py", "misc.py"}
    assert not [m for m in MODULES if Path(m).name in banned]


EMULATOR = "explorer.ptx_emulator"
EMULATOR_MODULES = {
    f"{EMULATOR}.{Path(m).stem}": m for m in MODULES if floor_name(m) == "ptx_emulator"
}


def test_the_ptx_emulator_knows_nothing_of_the_rest():
    allowed = {"numpy", "ml_dtypes"} | sys.stdlib_module_names
    for module in EMULATOR_MODULES.values():
        for name in imports(module):
            own = name == EMULATOR or name.startswith(f"{EMULATOR}.")
            assert own or name.split(".")[0] in allowed, f"{module} imports {name}"


def emulator_imports(module):
    """The modules of the emulator that one of them imports, under TYPE_CHECKING as well."""
    found = set()
    for name in imports(module):
        parts = name.split(".")
        if ".".join(parts[:2]) == EMULATOR and len(parts) > 2:
            imported = ".".join(parts[:3])
            found.add(imported if imported in EMULATOR_MODULES else f"{EMULATOR}.__init__")
    return found


def components(graph):
    """Strongly connected components: sets of nodes that all reach one another."""
    reached = {node: set(after) for node, after in graph.items()}
    for middle in graph:
        for node in graph:
            if middle in reached[node]:
                reached[node] |= reached[middle]
    return {frozenset([node, *(n for n in reached[node] if node in reached[n])]) for node in graph}


def test_no_modules_of_the_ptx_emulator_import_one_another():
    graph = {name: emulator_imports(module) for name, module in EMULATOR_MODULES.items()}
    assert len(graph) > 15
    assert [sorted(c) for c in components(graph) if len(c) > 1] == []


def test_a_circle_of_imports_is_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set()}
    assert {len(c) for c in components(graph)} == {1, 3}


def test_top_level_holds_what_the_design_names():
    fixed = {"pyproject.toml", "templates", "explorer", "generated", "studies", "tests"}
    beside = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    top = {path.split("/")[0] for path in tracked}
    assert {name for name in top if not name.startswith(".")} <= fixed | beside


def test_importing_the_command_line_is_light():
    heavy = "{'optuna', 'rich', 'numpy', 'jinja2', 'cuda', 'sqlalchemy', 'torch', 'triton'}"
    code = f"import sys, explorer.cli; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


def test_a_gpu_is_opened_without_what_its_process_need_not_wait_for():
    """They take as long to import as all the rest, and are imported while the process starts."""
    heavy = "{'explorer.ptx_emulator', 'explorer.devices.runs', 'explorer.codegen.units'}"
    code = "import sys, explorer.evaluate.open_evaluator, explorer.devices.cuda.device; "
    code += f"print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


def test_a_gpu_is_prepared_before_a_search_imports_optuna():
    """It takes half a second, for which the GPU's process need not wait."""
    code = """
import sys, time
from explorer import api
from explorer.evaluate import open_evaluator as opening

def opened(*_, **__):
    time.sleep(0.5)  # another thread could import it meanwhile
    sys.exit(str('optuna' in sys.modules))

opening.open_evaluator = opened
api.search(cols=64, device="cuda:0", trials=5)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stderr.strip() == "False", run.stdout + run.stderr
