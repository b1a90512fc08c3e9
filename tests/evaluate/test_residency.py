"""A kernel whose compiler gives it another residency than it was measured with: who says so."""

import logging
from dataclasses import replace

import pytest
from tables_of_one import CONFIG, H200, OTHER, PROBLEM, table_of_one

import explorer
from explorer.codegen.variant import launches
from explorer.compile.resources import resources_on
from explorer.evaluate.residency import MeasuredWith
from explorer.evaluate.without_search import without_search
from explorer.model.outcome import Resources
from explorer.runtime.kernels import find, make


def said(now, then, problem=PROBLEM, config=CONFIG, shared=0):
    """Return what is said of so many registers a thread now, and then."""
    measured = MeasuredWith("12.0", then)
    resources = Resources(now, static_shared_bytes=shared)
    launched = launches(problem, config)
    resources = resources_on(H200, launched, resources)
    return measured.other_residency(H200, launched, resources, "13.5")


def test_another_residency_is_said_with_both_compilers():
    """384 threads with 32 registers: an SM holds 5 blocks, with 40 it holds 4."""
    for now, then, blocks, before in ((40, 32, 4, 5), (32, 40, 5, 4)):
        assert said(now, then) == (
            f"NVRTC 13.5 gives the kernel {now} registers a thread, with which an SM of NVIDIA "
            f"H200 holds {blocks} of its blocks; it was measured with {then} and {before}, by "
            "NVRTC 12.0: its time may differ, so search again with this compiler, or install the "
            "other one"
        )


@pytest.mark.parametrize(
    ("now", "then", "rows", "shared"),
    [
        (32, 32, 7000, 0),
        (32, 25, 7000, 0),  # 25 to 32 are the same eight
        (16, 32, 7000, 0),  # more blocks than five have more warps than an SM holds
        (40, 32, 132, 0),  # an SM has one block anyway
        (40, 32, 4 * 132, 0),  # and four
        (40, 32, 7000, 70000),  # shared memory has room for three
    ],
)
def test_where_as_many_blocks_are_resident_nothing_is_said(now, then, rows, shared):
    assert said(now, then, problem=PROBLEM.resized(rows), shared=shared) == ""


def test_one_compiler_is_not_blamed_for_what_it_gave_before():
    measured, launched = MeasuredWith("13.5", 40), launches(PROBLEM, CONFIG)
    now = resources_on(H200, launched, Resources(32))
    assert measured.other_residency(H200, launched, now, "13.5") == ""
    assert measured.other_residency(H200, launched, now, "13.6") != ""


def test_a_gpu_without_known_limits_has_no_residency():
    resources = resources_on(None, launches(PROBLEM, CONFIG), Resources(32))
    assert resources.resident_blocks == 0 and not resources.is_stated(CONFIG)


def test_shared_memory_of_all_launches_and_the_grid_of_the_first_count():
    launched = launches(PROBLEM, CONFIG)
    dynamic = replace(launched[0], shared_bytes=70000)
    found = resources_on(H200, (launched[0], dynamic), Resources(32))
    assert found.dynamic_shared_bytes == 70000 and found.resident_blocks == 3
    assert not found.rests_on_registers


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return a function that writes the GPU's only tuned table, of so many registers a thread."""

    def of(registers):
        path = table_of_one(tmp_path / f"t{registers}.json", registers)
        monkeypatch.setattr("explorer.evaluate.without_search.tables_of", lambda _: [path])
        return path

    return of


def test_a_tables_best_tells_what_it_was_measured_with(table):
    table(40)
    assert without_search(PROBLEM, H200).measured == MeasuredWith("12.0", 40)
    assert without_search(PROBLEM.resized(7001), H200).measured is None
    table(0)  # a table that does not say the registers
    taken = without_search(PROBLEM, H200)
    assert taken.config == CONFIG and taken.measured is None


@pytest.mark.parametrize(("registers", "differs"), [(40, True), (32, False), (0, False)])
def test_emit_says_that_a_tables_kernel_has_another_residency(table, registers, differs):
    table(registers)
    emitted = explorer.emit("heuristic", PROBLEM, gpu=H200.name, verify=False)
    assert emitted.config == CONFIG
    assert any(OTHER in sentence for sentence in emitted.notices) is differs
    (compiles,) = [text for text in emitted.notices if text.startswith("compiles for sm_90")]
    assert compiles.endswith(" no spills, 5 blocks resident on an SM")
    assert emitted.resources.resident_blocks == 5 and emitted.resources.is_stated(emitted.config)


def test_emit_says_that_launch_bounds_do_not_state_a_residency():
    config = replace(CONFIG, min_blocks=1)
    emitted = explorer.emit(config, PROBLEM, gpu=H200.name, verify=False)
    (compiles,) = [text for text in emitted.notices if text.startswith("compiles for sm_90")]
    held = "resident on an SM, which launch bounds do not state"
    assert compiles.endswith(held) is not emitted.resources.is_stated(config)
    assert compiles.endswith(held)
    assert not any("it was measured with" in sentence for sentence in emitted.notices)


@pytest.mark.parametrize(("registers", "lines"), [(40, 1), (32, 0)])
def test_the_log_says_it_once_when_a_kernel_is_made(
    table, registers, lines, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "cache"))
    tables = [table(registers)]
    with caplog.at_level(logging.WARNING, "explorer"):
        made = make(PROBLEM, H200, tables=tables)
        assert find(PROBLEM, H200, tables=tables) == made  # as another process does
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(told) == lines
    assert all(text.startswith(f"{PROBLEM}: NVRTC ") and OTHER in text for text in told)
