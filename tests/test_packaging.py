"""What is uploaded: an sdist with all that its documents link to, and a wheel that works anywhere.

The archives are built by `uv`, and installed on each Python that is at hand, by `uv`, `uvx` and
`pipx`. Commands run in an empty folder, where nothing of the checkout can help.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from explorer import __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_A_PYTHON = "Programming Language :: Python :: 3."
PYTHONS = [
    f"3.{name.removeprefix(OF_A_PYTHON)}" for name in PROJECT["classifiers"] if OF_A_PYTHON in name
]
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))

LIMIT_S = 900


def test_the_oldest_python_is_the_first_that_is_named():
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
    assert versions == sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)


def test_the_comparisons_and_journeys_of_a_checkout_are_named_for_the_wheel():
    from explorer.system.user_files import shipped_results

    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    named = {Path(path).stem for path in hatch["targets"]["wheel"]["force-include"]}
    assert set(shipped_results()) - named == {"compare-h200-before-f32"}  # of an earlier version


# ------------------------------------------------------------------ what the archives hold


def run(*words, cwd=None, **variables):
    """What a program printed; what went wrong is in the failure."""
    ran = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="session")
def archives(once):
    """The folder with the sdist and the wheel, which is built from the sdist."""
    if not os.access(UV, os.X_OK):
        pytest.skip("uv is not installed: it is in softmax-explorer[dev]")
    return once("archives", lambda folder: run(UV, "build", "--out-dir", folder, ROOT))


@pytest.fixture
def wheel(archives):
    (path,) = archives.glob("*.whl")
    return path


@pytest.fixture
def unpacked(archives, tmp_path):
    """The sdist's folder, unpacked."""
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    return folder


def names(path):
    with zipfile.ZipFile(path) as archive:
        return sorted(archive.namelist())


@pytest.mark.exhaustive
def test_the_sdist_has_all_that_its_documents_link_to(unpacked):
    documents = [*unpacked.glob("*.md"), *unpacked.glob("explorer/guide/*.md")]
    documents += unpacked.glob("studies/**/*.md")
    assert len(documents) > 15
    for path in documents:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            assert "://" in target or (path.parent / target).exists(), f"{path}: {target}"


@pytest.mark.exhaustive
def test_the_sdist_has_every_file_of_the_repository(unpacked):
    """And no file that git ignores, such as a database of studies."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    packed = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
    assert packed - {"PKG-INFO"} == {name for name in listed.splitlines() if (ROOT / name).exists()}


@pytest.mark.exhaustive
def test_the_wheel_of_the_sdist_is_that_of_the_checkout(wheel, tmp_path):
    run(UV, "build", "--wheel", "--out-dir", tmp_path, ROOT)
    (direct,) = tmp_path.glob("*.whl")
    assert names(wheel) == names(direct)


@pytest.mark.exhaustive
def test_the_wheel_has_what_runs_without_a_checkout(wheel):
    held = names(wheel)
    for name in ("py.typed", "guide/pytorch.md", "_data/templates/program.cu.j2"):
        assert f"explorer/{name}" in held
    assert not [name for name in held if name.startswith(("tests/", "studies/"))]
    assert wheel.stat().st_size < 6e6  # recordings take 2.2 MB of it, tuned tables 0.8


@pytest.mark.exhaustive
def test_the_metadata_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        told = HeaderParser().parsestr(archive.read(name).decode())
    assert (told["Name"], told["Version"]) == ("softmax-explorer", __version__)
    assert told["License-Expression"] == "MIT" and told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().startswith("# softmax-explorer")
    assert "Typing :: Typed" in told.get_all("Classifier")
    assert {"report", "sass", "dashboard", "torch"} <= set(told.get_all("Provides-Extra"))


# ------------------------------------------------------------------ installed


COMMANDS = (
    ("--version",),
    ("doctor",),
    ("guide",),
    ("guide", "pytorch"),
    ("presets", "--cols", "1000"),
    ("emit", "heuristic", "--cols", "1000", "--output", "softmax.cu"),
    ("diff", "heuristic", "oneflow-warp", "--cols", "1000"),
    ("search", "--cols", "4096", "--trials", "30"),
    ("show", "--cols", "4096"),
    ("table", "show", "--help"),
    ("doctor", "--json"),
)
"""What must work without a GPU, in any folder."""

IN_ONE_PROCESS = """
import json, runpy, sys

script = sys.argv[1]
for words in json.loads(sys.argv[2]):
    sys.argv = [script, *words]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, words
    print(end="\\0", flush=True)
"""
"""Runs the installed script for each command."""

PROGRAM = """
import explorer

kernel = explorer.emit("heuristic", cols=64, rows=64, verify=True)
registers: int = kernel.resources.registers if kernel.resources is not None else 0
assert registers > 0 and kernel.verdict is not None
found = explorer.search(cols=4096, trials=20, storage="here.db", verify=False)
best_us: float = found.time_us
assert best_us > 0
"""


def interpreter(version):
    """An interpreter of this version on PATH or of pyenv, or None."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in filter(None, [on_path, *of_pyenv]):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        ran = subprocess.run(asked, capture_output=True, text=True)
        if ran.returncode == 0 and ran.stdout.strip() == version:
            return path
    return None


@pytest.fixture(scope="session")
def environments(once, archives):
    """A function: the folder of an environment with the wheel, on a Python, made once."""

    def of(version):
        python = interpreter(version)
        if python is None:
            pytest.skip(f"Python {version} is not installed here")
        (path,) = archives.glob("*.whl")

        def fill(folder):
            run(UV, "venv", "--quiet", "--clear", "--python", python, folder)
            run(UV, "pip", "install", "--quiet", "--python", folder / "bin/python", path)

        return once(f"environment-{version}", fill)

    return of


@pytest.fixture
def empty(tmp_path):
    """An empty folder, and variables that keep what a program writes within it."""
    folder = tmp_path / "empty"
    folder.mkdir()
    home = {"EXPLORER_CACHE_DIR": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    return folder, home


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [PYTHONS[0], PYTHONS[-1]])
def test_every_command_works_on_the_oldest_and_the_newest_python_in_an_empty_folder(
    environments, empty, version
):
    """One after another in one process, which imports modules for all of them once."""
    programs = environments(version) / "bin"
    folder, variables = empty
    session = ("-c", IN_ONE_PROCESS, programs / "explorer", json.dumps(COMMANDS))
    *said, rest = run(programs / "python", *session, cwd=folder, **variables).split("\0")
    assert rest == ""
    for words, out in zip(COMMANDS, said, strict=True):
        assert out or words[0] == "emit", words
    assert "Split:" in (folder / "softmax.cu").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["softmax.cu"]
    assert json.loads(said[-1])["ok"]
    (folder / "program.py").write_text(PROGRAM)
    run(programs / "python", "-W", "error::SyntaxWarning", "program.py", cwd=folder, **variables)


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", PYTHONS)
def test_every_module_is_sound_on_each_python(environments, tmp_path, version):
    """Each file compiles without a warning, also those that need a GPU or a framework to run."""
    python = environments(version) / "bin" / "python"
    shutil.copytree(ROOT / "explorer", tmp_path / "explorer")
    run(python, "-W", "error", "-m", "compileall", "-q", "-f", tmp_path / "explorer")


@pytest.mark.exhaustive
def test_a_program_that_uses_it_is_type_checked(environments, tmp_path):
    """By `py.typed`: a wrong use of what it returns is found in another project."""
    python = environments(PYTHONS[0]) / "bin" / "python"
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run(*mypy, program, cwd=tmp_path)
    program.write_text(PROGRAM.replace("best_us: float", "best_us: str"))
    with pytest.raises(AssertionError, match="Incompatible types in assignment"):
        run(*mypy, program, cwd=tmp_path)


@pytest.mark.exhaustive
def test_uvx_and_pipx_run_it(wheel, empty, tmp_path):
    folder, variables = empty
    said = f"softmax-explorer {__version__}\n"
    kept = variables | {"UV_TOOL_DIR": str(tmp_path / "tools"), "PIPX_HOME": str(tmp_path / "pipx")}
    uvx = (UV, "tool", "run")
    assert run(*uvx, "--from", wheel, "explorer", "--version", cwd=folder, **kept) == said
    emitted = ("explorer", "emit", "heuristic", "--cols", "64", "--output", "-")
    assert "__global__" in run(*uvx, "--from", wheel, *emitted, cwd=folder, **kept)
    with_pipx = (*uvx, "pipx", "run", "--spec", wheel, "explorer", "--version")
    assert run(*with_pipx, cwd=folder, **kept) == said
