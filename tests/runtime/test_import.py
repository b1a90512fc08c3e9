"""`import explorer` costs next to nothing: its names are loaded when they are asked for."""

import subprocess
import sys
import time

import pytest

import explorer

HEAVY = ("numpy", "jinja2", "cuda", "torch", "cupy", "jax", "optuna", "typer", "rich", "ml_dtypes")

LONGEST_S = 0.1
TRIES = 5


def python(code):
    """What a new process prints."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_the_import_loads_nothing_else():
    loaded = f"sorted(set({HEAVY!r}) & set(sys.modules))"
    assert python(f"import sys, explorer; print({loaded})") == "[]"


def test_the_import_takes_less_than_a_tenth_of_a_second():
    timed = "import time; t = time.perf_counter(); import explorer; print(time.perf_counter() - t)"
    for number in range(TRIES):  # other work on the machine may be in the way
        time.sleep(number)
        if float(python(timed)) < LONGEST_S:
            return
    pytest.fail(f"import explorer took more than {LONGEST_S} s, {TRIES} times")


def test_the_functions_load_no_framework():
    loaded = f"sorted(set({HEAVY!r}) & set(sys.modules))"
    names = "explorer.softmax, explorer.logsumexp, explorer.register_torch, explorer.Problem"
    assert python(f"import sys, explorer; {names}; print({loaded})") == "[]"


def test_every_public_name_is_listed_and_there():
    for name in explorer.__all__:
        assert name in dir(explorer)
        assert getattr(explorer, name).__doc__
    assert "__version__" in dir(explorer)


def test_all_names_can_be_imported_at_once_without_a_framework():
    hidden = "import sys; sys.modules.update(torch=None, cupy=None, jax=None)"
    names = "from explorer import *; print(softmax.__name__, warm_up.__name__)"
    assert python(f"{hidden}; {names}") == "softmax warm_up"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'explorer' has no attribute 'sofmax'"):
        _ = explorer.sofmax
    assert not hasattr(explorer, "__wrapped__")
    with pytest.raises(ImportError):
        exec("from explorer import sofmax")


def test_a_name_is_that_of_its_module_and_is_kept():
    name = "log_shapes"
    vars(explorer).pop(name, None)
    from explorer.runtime.shapes import log_shapes

    assert getattr(explorer, name) is log_shapes is vars(explorer)[name]


def test_what_is_no_array_is_told_what_is_one():
    for function in (explorer.softmax, explorer.log_softmax, explorer.logsumexp):
        with pytest.raises(TypeError, match=r"x is a list; it must be a tensor"):
            function([1.0, 2.0])


def test_registering_without_pytorch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(explorer.ExplorerError, match=r"pip install '.\[torch\]'"):
        explorer.register_torch()
