"""Tables at the widths that terminals have: nothing cut, nothing folded inside a number."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.report.machine import Check, conclusion, print_machine
from explorer.report.space import SpaceView, print_space
from explorer.report.studies import print_search, print_studies, print_study
from explorer.space import RULES, Space


def printed(print_it, thing, width, *rest):
    stream = StringIO()
    print_it(thing, Console(file=stream, width=width, markup=False, highlight=False), *rest)
    text = stream.getvalue()
    assert "…" not in text
    return text


@pytest.mark.parametrize("width", [80, 120])
def test_search_shows_ties_copy_and_circumstances(result, width):
    text = printed(print_search, result, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "NVIDIA H200" in lines[0]
    ranks = [line.split()[:3] for line in lines if line.startswith((" 1", " 2", " 3"))]
    assert ranks[:3] == [["1", "=", "41"], ["2", "=", "7"], ["3", "230", "66.00"]]
    flat = " ".join(text.split())
    for fact in ("61.40 ± 0.12", "97.7 %", "100.0 %", "4800", "512 thr, 512/row"):
        assert fact in flat
    for fact in (
        "1 other config ties with the best (=), at most 0.1 % apart.",
        "Trial 41 is chosen for fewer registers: 32, not 40.",
        "0.12 %",
        "25 rounds, interleaved.",
        "within the noise of 1, or if the ratio's 95 % confidence interval, for all finalists",
        "by fewer registers, then by shorter code; the others follow by ratio",
        "40 rejected by the compiler, 20 for lack of resources",
        "Seed 3",
    ):
        assert fact in flat
    for fact in ("driver 570.86", "NVRTC 13.0", "1980 MHz", "not throttled", "cold", "2026-03-04"):
        assert fact in flat
    assert lines[-1] == "explorer emit 41 --cols 4096 --rows 8192 --dtype f32"


def test_a_row_takes_two_lines_at_most(result):
    """However much a finalist differs from the best."""
    far = Config(
        algorithm="online-block-max",
        threads=1024,
        threads_per_row=1024,
        vector_bytes=8,
        reduction="shared-serial",
        cache="shared",
        cache_holds="input",
        exp="expf",
        normalise="divide",
        unroll=4,
        load_hint="no-allocate",
        store_hint="cs",
        min_blocks=8,
        static_cols=False,
    )
    first, second, third = result.finals.finalists
    third = replace(third, kernel=far)
    finals = replace(result.finals, finalists=(first, second, third))
    lines = printed(print_search, replace(result, finals=finals), 100).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith(" 3"))
    copy = next(i for i, line in enumerate(lines) if "copy of the same" in line)
    assert copy - row == 2
    text = " ".join(" ".join(lines[row:copy]).split())
    assert re.search(r" \+\d+$", text) and "online-block-max" in text


def test_finals_say_how_they_were_compared(result):
    def how(**changes):
        finals = replace(result.finals, interleaved=changes.pop("interleaved"))
        shown = replace(result, finals=finals, **changes)
        return " ".join(printed(print_search, shown, 100).split())

    assert "25 rounds, interleaved." in how(interleaved=True)
    assert "25 rounds, interleaved when recorded." in how(interleaved=True, replayed=True)
    assert "not interleaved: recorded one after another" in how(interleaved=False, replayed=True)


def test_a_copy_that_was_not_timed_in_turn_has_no_spread(result):
    finals = replace(result.finals, copy_spread=None)
    text = printed(print_search, replace(result, finals=finals), 100)
    (line,) = (line for line in text.splitlines() if "copy of the same" in line)
    assert line.split()[:2] == ["copy", "60.00"] and "±" not in line


def test_one_kernel_is_no_kernels(result):
    text = " ".join(printed(print_search, replace(result, measured=1), 100).split())
    assert "1 kernel measured" in text


def test_a_replay_that_had_nothing_to_try_says_so(result):
    idle = replace(result, replayed=True, exhausted=True, trials=0, measured=0, rejected={})
    text = " ".join(printed(print_search, idle, 100).split())
    assert "every kernel of the recording is in the study already" in text


def test_the_copy_and_how_it_is_timed(result, view):
    copy = "4 x 16 bytes a thread, 256 threads, cs"
    known = replace(result.environment, copy_name=copy, buffers=2, launches_per_sample=6)
    line = f"copy {copy}; launches rotate over 2 pairs of buffers, 6 a sample"
    for print_it, thing in ((print_search, result), (print_study, view)):
        assert "launches rotate" not in printed(print_it, thing, 120)
        text = printed(print_it, replace(thing, environment=known), 120)
        assert line in " ".join(text.split())
    warm = replace(known, buffers=1)
    assert "stay on one pair" in printed(print_search, replace(result, environment=warm), 120)


def test_a_trial_since_the_finals_is_told(view):
    faster = replace(view.best, number=500)
    text = " ".join(printed(print_study, replace(view, since=faster), 100).split())
    assert (
        "trial 500 of a search that was stopped before its finals took 61.40 µs" in text
        and "explorer search --cols 4096" in text
    )
    assert text.endswith("explorer emit 41 --cols 4096 --rows 8192 --dtype f32")


def test_the_last_line_names_a_storage_that_is_not_the_default(result):
    last = printed(print_search, result, 80, "sqlite:///my studies.db").splitlines()[-1]
    assert last.endswith("--rows 8192 --dtype f32 --storage 'sqlite:///my studies.db'")


def test_the_last_line_works_where_templates_have_changed(result):
    best = result.finals.finalists[0]
    stale = replace(best.trial, outcome=replace(best.trial.outcome, digest="0" * 16))
    finals = replace(result.finals, finalists=(replace(best, record=stale),))
    text = printed(print_search, replace(result, finals=finals), 80)
    assert text.splitlines()[-1] == "explorer emit '{}' --cols 4096 --rows 8192 --dtype f32"
    assert "templates have changed since" in text


@pytest.mark.parametrize("width", [80, 120])
def test_study(view, width):
    text = printed(print_study, view, width)
    assert max(map(len, text.splitlines())) <= width
    for fact in ("ptxas: too many resources", "whole-rows", "threads", "61.0 %", "52–70 %"):
        assert fact in text
    assert text.splitlines()[-1] == "explorer emit 41 --cols 4096 --rows 8192 --dtype f32"


def test_study_says_what_each_parameter_does_by_itself(view):
    text = " ".join(printed(print_study, view, 100).split())
    for sentence in (
        "16 B: 1.90 × faster than 4 B, in every one of 40 pairs that differ in nothing else (1.84 "
        "to 1.97 ×)",
        "unroll 1 and unroll 4: no measurable difference in 20 pairs",
        "cluster no clusters 61.40 300 cluster clusters of 2 70.00 10",
        "fewer than 6 pairs of fast kernels differ in one of these parameters alone",
        "times here are first times, each kernel by itself; the finals above timed the fastest "
        "again",
        "matched pairs: two kernels of the study that differ in this parameter alone,",
    ):
        assert sentence in text, sentence
    assert "1.10 × faster" not in text  # of a parameter the values of most pairs alone are told
    without = " ".join(printed(print_study, replace(view, finals=None), 100).split())
    assert "finals above" not in without


@pytest.mark.parametrize("width", [80, 120])
def test_studies(summary, width):
    text = printed(print_studies, [replace(summary, replayed=True)], width)
    assert max(map(len, text.splitlines())) <= width
    (line,) = (line for line in text.splitlines() if "f32 8192x4096" in line)
    for fact in ("H200", "cold", "310/400", "61.40", "97.7 %", "2026-03-04", "replayed"):
        assert fact in line


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [80, 120])
def test_space_prints_each_parameter_and_rule(width):
    space = Space(Problem(8192, 4096, DType.F32), known_gpu("NVIDIA H200"))
    text = printed(print_space, SpaceView(space), width)
    words = set(text.split())
    assert set(space.parameters) <= words
    assert {rule.name for rule in RULES} <= words
    assert "of them legal (less than 0.1 %)" in " ".join(text.split()) and "about " in text


def test_doctor_says_what_is_missing_for_what():
    nvrtc = Check("nvrtc", False, "not found", "compiling kernels", required=True)
    gpu = Check("gpu", False, "none without a driver", "timing kernels")
    text = printed(print_machine, [nvrtc, gpu], 80)
    assert "missing" in text and "compiling kernels" in text
    assert "nvrtc missing" in conclusion([nvrtc, gpu])
    assert "not timed" in conclusion([gpu])
    assert "timed here" in conclusion([Check("gpu", True, "NVIDIA H200", "timing kernels")])
