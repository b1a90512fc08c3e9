"""What `emit --json` says of launches is what the emitted file says of them."""

import re
from pathlib import Path

import pytest
from wrapper_cases import CASES, OVERLAPPED, RUN_TIME

from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.units import emit
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.report.verification import emission_data

C_KINDS = {"int": "int32", "long long": "int64", "float": "float32", "double": "float64"}


def declared(source, function):
    """The arguments of a C function of a file, as data."""
    found = re.search(rf'extern "C" \w+ {function}\(([^)]*)\)', source)
    told = []
    for text in " ".join(found[1].split()).split(","):
        kind, _, name = text.strip().rpartition(" ")
        told.append({"name": name, "kind": "pointer" if "*" in kind else C_KINDS[kind]})
    return told


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_the_library_is_the_one_that_the_file_declares(problem, config):
    variant = emit(problem, config)
    library = emission_data(variant, Path("k.cu"), "written", "sm_90", None)["library"]
    assert declared(variant.source, library["function"]) == library["arguments"]
    assert f"namespace {library['namespace']} {{" in variant.source
    assert f"defined({library['macro']})" in variant.source
    if config.launches == "one":
        assert library["scratch_function"] is None and library["scratch_arguments"] is None
    else:
        told = declared(variant.source, library["scratch_function"])
        assert told == library["scratch_arguments"]


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_launches_are_those_of_the_header_with_all_that_they_pass(problem, config):
    variant = emit(problem, config)
    data = emission_data(variant, Path("k.cu"), "written", "sm_90", None)
    plan = LaunchPlan.read(variant.source)
    planned = plan.launches(problem.rows, problem.cols)
    assert [launch["entry"] for launch in data["launches"]] == [one.entry for one in planned]
    for launch, one in zip(data["launches"], planned, strict=True):
        assert (launch["grid"], launch["block"]) == (one.grid, one.block)
        assert (launch["shared_bytes"], launch["cluster"]) == (one.shared_bytes, one.cluster)
        assert launch["overlaps"] == one.overlaps
        assert set(launch["arguments"]) <= set(data["arguments"])
    assert data["scratch_bytes"] == plan.scratch_bytes(problem.rows, problem.cols)


def test_an_array_has_its_bytes_and_a_number_its_value():
    variant = emit(Problem(64, 1000, DType.F64, scale=0.5), RUN_TIME)
    data = emission_data(variant, Path("k.cu"), "written", "sm_90", None)
    assert data["arguments"]["input"] == {"kind": "pointer", "dtype": "f64", "bytes": 512_000}
    assert data["arguments"]["cols"] == {"kind": "int32", "value": 1000}
    assert data["arguments"]["scale"] == {"kind": "float64", "value": 0.5}
    assert (data["arch"], data["needed_arch"]) == ("sm_90", None)
    wide = emission_data(
        emit(Problem(64, 100_000), OVERLAPPED), Path("k.cu"), "written", "sm_90", None
    )
    assert wide["arguments"]["scratch"]["bytes"] == wide["scratch_bytes"] > 0
    assert wide["needed_arch"] == "sm_90" and wide["launches"][1]["overlaps"]


def test_a_launch_that_overlaps_another_kernels_needs_the_same():
    variant = emit(Problem(64, 1000), RUN_TIME, overlapped=True)
    data = emission_data(variant, Path("k.cu"), "written", "sm_90", None)
    assert data["needed_arch"] == "sm_90" and data["launches"][0]["overlaps"]
