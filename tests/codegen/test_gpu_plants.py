"""What the GPU tests change in emitted kernels is emitted, and compiles once it is changed."""

import importlib.util
from pathlib import Path

import pytest

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.model.problem import Problem

FOLDER = Path(__file__).parents[1] / "gpu"


def module(name):
    """A module of tests that need a GPU to run, but not to be imported."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", module("test_sabotage").SABOTAGE)
def test_what_is_sabotaged_is_emitted(name):
    config, text, becomes = module("test_sabotage").SABOTAGE[name]
    source = emit(Problem(8192, 4096), config).source
    sabotaged = source.replace(text, becomes)
    assert sabotaged != source
    Compiler("compute_90").compile(sabotaged)


def test_where_faults_are_put_is_emitted():
    gpu = module("test_sabotage")
    assert gpu.ENTRY in emit(Problem(8192, 4096), gpu.REGISTERS).source


def test_what_is_changed_in_place_is_emitted():
    gpu = module("test_kinds")
    assert gpu.PLACE in emit(Problem(8000, 1000, in_place=True), gpu.HELD).source
