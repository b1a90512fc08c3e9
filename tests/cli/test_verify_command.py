"""Kernels checked without a GPU: verify, and what emit and search make of it."""

import json
import re
from dataclasses import replace

import pytest
from by_hand import SHAPE

from explorer.compile.compiler import CompileFailure
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.model.config import Config
from explorer.model.problem import Problem
from explorer.ptx_emulator import Finding, Kind, SourceLine
from explorer.report.verification import finding_lines

CONFIG = '{"threads_per_row":64}'
BARRIER = "  __syncthreads();\n"


@pytest.fixture
def spoiled(monkeypatch):
    """Every program is checked without its first barrier."""
    honest = ProgramUnderTest.of

    def without(variant):
        made = honest(variant)
        return replace(made, source=made.source.replace(BARRIER, "", 1))

    monkeypatch.setattr(ProgramUnderTest, "of", without)


def test_a_config_is_verified(explorer):
    ran = explorer("verify", CONFIG, "--cols", "512")
    assert ran.code == 0, ran.err
    assert "x 512: verified, largest relative error" in ran.out
    assert "by emulation for sm_90" in ran.out


def test_the_closing_line_is_as_wide_as_the_others(explorer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    ran = explorer("verify", "heuristic", "--cols", "100", "--rows", "8")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 60


def test_an_edited_file_is_wrong_at_its_line(explorer, tmp_path):
    assert explorer("emit", CONFIG, "--cols", "512", "--output", "mine.cu").code == 0
    assert explorer("verify", "mine.cu").code == 0
    source = (tmp_path / "mine.cu").read_text()
    (tmp_path / "mine.cu").write_text(source.replace(BARRIER, "", 1))
    ran = explorer("verify", "mine.cu")
    assert ran.code == 1
    assert "shared-race" in ran.out and "at mine.cu:" in ran.out and "PTX line" in ran.out
    assert "scratch[row][warp] = value" in ran.out
    data = json.loads(explorer("verify", "mine.cu", "--json").out)
    (program,) = data["programs"]
    assert data["wrong"] == 1 and program["status"] == "wrong"
    finding = program["runs"][0]["findings"][0]
    assert finding["kind"] == "shared-race" and finding["source"]["file"] == "mine.cu"


@pytest.mark.parametrize("option", ["--dtype bf16", "--strength 2", "--in-place"])
def test_an_option_that_a_file_leaves_no_say_is_refused(explorer, option):
    emitted = explorer("emit", CONFIG, "--cols", "512", "--output", "mine.cu", "--no-verify")
    assert emitted.code == 0
    ran = explorer("verify", "mine.cu", *option.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {option.split()[0]} says nothing of an emitted file")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.exhaustive
def test_many_end_with_a_summary(explorer, monkeypatch):
    ran = explorer("verify", "--sample", "2", "--cols", "37", "--rows", "9", "--dtype", "f16")
    assert ran.code == 0, ran.out
    assert ran.out.splitlines()[-1].startswith("2 programs: 2 verified, 0 inaccurate, 0 unv")
    monkeypatch.setattr("explorer.evaluate.verify.covering_array", lambda space, _: [Config()])
    every = json.loads(explorer("verify", "--all", "--cols", "34", "--rows", "5", "--json").out)
    assert every["verified"] == len(every["programs"]) == 1


def test_what_cannot_be_verified_is_neither_right_nor_wrong(explorer, tmp_path):
    explorer("emit", CONFIG, "--cols", "512", "--output", "mine.cu", "--no-verify")
    source = (tmp_path / "mine.cu").read_text()
    (tmp_path / "mine.cu").write_text(source.replace("threadIdx.x", "nought"))
    ran = explorer("verify", "mine.cu")
    assert ran.code == 2 and "unverified: it does not compile" in ran.out


@pytest.fixture
def edit(explorer, tmp_path):
    """Emit a file, put another text into a place of it, and verify that."""

    def edited(old, new, *more):
        explorer("emit", CONFIG, "--cols", "512", "--output", "mine.cu", "--no-verify")
        source = (tmp_path / "mine.cu").read_text()
        assert old in source
        (tmp_path / "mine.cu").write_text(source.replace(old, new, 1))
        return explorer("verify", "mine.cu", *more)

    return edited


@pytest.mark.exhaustive
def test_rows_that_are_too_many_to_run_are_tried_on_fewer(explorer):
    """As `emit` does, whose command ends in the rows of the problem."""
    few = explorer("verify", "thread-per-row", "--cols", "64", "--rows", "10000000", "--json")
    assert few.code == 0
    rows = [run["rows"] for run in json.loads(few.out)["programs"][0]["runs"]]
    assert rows[0] < 10_000 and 10_000_000 in rows  # of which some blocks are run


@pytest.mark.parametrize("blocks", ["rows * 1000000000", "rows * 1000000", "0", "rows - 5"])
def test_a_grid_that_cannot_be_is_refused_in_one_sentence(edit, blocks):
    ran = edit("blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock", f"blocks = {blocks}")
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert ran.err.startswith("error: the header of mine.cu: blocks is ") and "mend" in ran.err


def test_the_closing_line_has_the_largest_error_of_all_lines(explorer):
    """And each run that is held to less than the kernel at its own columns says so."""
    config = '{"threads_per_row":32,"cache":"none","cache_holds":"input","static_cols":false}'
    ran = explorer("verify", config, "--cols", "100", "--rows", "3")
    assert ran.code == 0, ran.out
    text = " ".join(ran.out.split())
    lines, closing = text.split(" verified: ")
    told, looser = lines.split("(held to fast here)")
    told, _, looser = told.rpartition(" other sizes of ")
    assert int(re.match(r"(\d+) to \d+ columns", looser)[1]) > 100
    largest = max(float(error) for error in re.findall(r"error (\S+),", told))
    assert float(re.search(r"error (\S+),", closing)[1]) >= largest
    data = json.loads(explorer("verify", config, "--cols", "100", "--rows", "3", "--json").out)
    held = {run["accuracy"] for run in data["programs"][0]["runs"] if run["cols"] > 100}
    assert held == {"fast"}


@pytest.mark.exhaustive
def test_a_run_says_which_arguments_are_not_the_kernels_own(explorer):
    options = ("--cols", "40", "--rows", "64", "--scale", "0.5", "--input-stride", "48")
    ran = explorer("verify", '{"threads":32,"threads_per_row":8}', *options)
    assert ran.code == 0, ran.out
    text = " ".join(ran.out.split())
    assert ", of other scales and gaps between rows: verified" in text


def test_a_line_of_a_header_is_named_by_the_header():
    place = SourceLine("/usr/include/cuda_fp16.h", 5193, 3)
    finding = Finding(Kind.SHARED_RACE, "a race", source=place, other=SourceLine("mine.cu", 2))
    program = ProgramUnderTest.of_config(Problem(4, 64), Config(threads_per_row=32))
    lines = finding_lines(finding, replace(program, file="mine.cu"))
    assert lines[1] == "  at cuda_fp16.h:5193" and lines[2].startswith("  called in mine.cu:3: ")
    assert lines[3].startswith("  against mine.cu:2: ")


def test_what_does_not_compile_is_said_once_with_its_line(edit):
    ran = edit("threadIdx.x", "nought")
    assert ran.code == 2 and ran.out.count("does not compile") == 1
    assert "mine.cu(" in ran.out and ran.out.splitlines()[-1].startswith("by emulation")


def test_what_is_not_executed_is_said_once(edit):
    ran = edit("  const int thread_in", "  if (clock64() == 12345) return;\n  const int thread_in")
    assert ran.code == 2 and ran.out.count("the emulator does not know") == 1


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("error: NVRTC ended before it was done with it, within 8 GiB", "mine.cu: error: NVRTC"),
        ("softmax.cu(7): note: here\nfatal error: too deep", "mine.cu(7): fatal error: too deep"),
        ("softmax.cu(9): error: expected", "mine.cu(9): error: expected"),
        ("", "mine.cu: no log"),
    ],
)
def test_what_the_compiler_says_without_a_place_is_said_of_the_file(edit, monkeypatch, log, says):
    def fail(compiler, source):
        raise CompileFailure(log)

    monkeypatch.setattr("explorer.devices.emulated.emulator.compile_in_time", fail)
    ran = edit("threadIdx.x", f"nought{len(log)}")
    assert ran.code == 2 and f"unverified: it does not compile for sm_90: {says}" in ran.out


def test_a_text_of_many_parentheses_is_told_with_its_file(edit):
    ran = edit("const int thread_in_row = ", "const int thread_in_row = " + "(" * 20_000)
    assert ran.code == 2 and "unverified: it does not compile for sm_90: mine.cu" in ran.out
    assert len(ran.out) < 1000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "what to verify is not said"),
        (("best", "--all"), "what to verify is said twice: best and --all; give one"),
        (
            ("heuristic", "--sample", "3", "--cols", "64"),
            "what to verify is said twice: heuristic and --sample 3; give one",
        ),
        (
            ("--sample", "2", "--all"),
            "what to verify is said twice: --all and --sample 2; give one",
        ),
        (
            ("best", "--sample", "2", "--all"),
            "what to verify is said three times: best, --all and --sample 2; give one",
        ),
        (
            ("heuristic", "--cols", "64", "--strength", "2"),
            "--strength belongs to --all; leave it out",
        ),
        (
            ("--sample", "2", "--cols", "64", "--strength", "1"),
            "--strength belongs to --all; leave it out",
        ),
        ((CONFIG,), "cols is missing; give the number"),
        (("none.cu",), "cannot be read"),
        ((CONFIG, "--cols", "512", "--device", "abacus"), "device 'abacus'"),
        (("--all", "--cols", "64", "--strength", "3"), "strength is '3'"),
        (("best", "--cols", "7"), "no study"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(explorer, words, says):
    ran = explorer("verify", *words)
    assert ran.code == 2 and says in ran.err and ran.out == ""


def test_emit_says_that_it_verified(explorer):
    ran = explorer("emit", CONFIG, "--cols", "512", "--json")
    assert "verified by emulation for sm_90" in ran.err
    assert json.loads(ran.out)["verification"]["status"] == "verified"
    skipped = explorer("emit", CONFIG, "--cols", "512", "--json", "--no-verify")
    assert "verified" not in skipped.err
    assert json.loads(skipped.out)["verification"] is None


def test_a_wrong_kernel_is_not_written(explorer, tmp_path, spoiled):
    ran = explorer("emit", CONFIG, "--cols", "512", "--output", "mine.cu")
    assert ran.code == 2 and not (tmp_path / "mine.cu").exists()
    assert "shared-race" in ran.err and "nothing was written" in ran.err
    to_stdout = explorer("emit", CONFIG, "--cols", "512", "--output", "-")
    assert to_stdout.code == 2 and to_stdout.out == ""
    assert explorer("emit", CONFIG, "--cols", "512", "--no-verify").code == 0


@pytest.mark.parametrize(
    "study", ["searched", pytest.param("recording", marks=pytest.mark.exhaustive)]
)
def test_a_replayed_search_verifies_its_finalists(explorer, study, request):
    """One that goes on where all was tried, and one that begins."""
    request.getfixturevalue(study)
    ran = explorer("search", *SHAPE, "--trials", "60", "--json")
    assert ran.code == 0, ran.err
    checked = json.loads(ran.out)["verification"]
    assert checked["verified"] + checked["inaccurate"] >= 1 and checked["arch"] == "sm_90"
    assert "by emulation for sm_90" in explorer("search", *SHAPE, "--trials", "60").out


def test_a_wrong_finalist_is_not_shown(explorer, recording, monkeypatch):
    honest = ProgramUnderTest.of_config

    def wrong(problem, config):
        made = honest(problem, config)
        return replace(
            made,
            source=made.source.replace("first_row = static_cast", "first_row = 0 * static_cast"),
        )

    monkeypatch.setattr(ProgramUnderTest, "of_config", wrong)
    ran = explorer("search", *SHAPE, "--trials", "10")
    assert ran.code == 2 and ran.out == "" and "is wrong" in ran.err
    assert "explorer verify" in ran.err


def test_verify_best_of_a_study(explorer, searched):
    ran = explorer("verify", "best", "--cols", "512")
    assert ran.code == 0 and "verified" in ran.out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("more", [("--batch-invariant",), ()])
def test_the_heuristic_that_is_verified_is_the_one_that_is_emitted(explorer, more):
    few = ("heuristic", "--cols", "4096", "--rows", "4")
    emitted = explorer("emit", *few, *more, "--no-verify", "--json").out
    verified = explorer("verify", *few, *more, "--json").out
    assert json.loads(emitted)["config"] == json.loads(verified)["programs"][0]["config"]


@pytest.mark.exhaustive
def test_wide_rows_that_are_wrong_at_parts_of_minus_infinity_are_found_out(explorer, tmp_path):
    """Of wide rows few are checked: the telling patterns are among them."""
    config = (
        '{"launches":"two-overlapped","threads":256,"threads_per_row":256,"cache":"none",'
        '"cache_holds":"input","algorithm":"online-block-max","unroll":4}'
    )
    path = tmp_path / "wide.cu"
    ran = explorer("emit", config, "--cols", "131072", "--no-verify", "--output", str(path))
    assert ran.code == 0, ran.err
    right = path.read_text()
    for old, new in (
        (
            "if (thread_in_row == 0) scratch[b",
            "state.sum /= state.sum > 0.0f;\n  if (thread_in_row == 0) scratch[b",
        ),
        ("1.0f / state.sum;", "state.sum > 0.0f ? 1.0f / state.sum : 0.0f;"),
    ):
        assert right.count(old) == 1
        path.write_text(right.replace(old, new))
        assert explorer("verify", str(path)).code == 1
    path.write_text(right.replace("kUnroll = 4", "kUnroll = 2"))
    assert explorer("verify", str(path)).code == 0


def test_a_header_with_other_columns_than_the_text_is_mentioned(explorer, tmp_path):
    path = tmp_path / "mine.cu"
    explorer(
        "emit", "heuristic", "--cols", "64", "--rows", "8", "--output", str(path), "--no-verify"
    )
    emitted = path.read_text()
    path.write_text(emitted)
    assert "its header says" not in explorer("verify", str(path)).out
    path.write_text(emitted.replace("--cols 64", "--cols 68"))
    ran = explorer("verify", str(path))
    said = "its text is for 64 columns, for which it was checked; its header says 68"
    assert ran.code == 0 and said in " ".join(ran.out.split())
