"""Tables at the widths that terminals have: nothing cut, nothing folded inside a number."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from explorer.model.config import DRAWN_MIN_BLOCKS, Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Contender, Resources
from explorer.model.problem import Problem
from explorer.report.machine import Check, conclusion, print_machine
from explorer.report.space import SpaceView, print_space
from explorer.report.studies import (
    FINALIST,
    print_search,
    print_studies,
    print_study,
    standings,
)
from explorer.report.table import data_of
from explorer.space import RULES, Space
from explorer.space.space import Count


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
        "kernels of which other compilers give an SM no fewer blocks, then others; by fewer "
        "registers, then by "
        "shorter code. The others follow by ratio",
        "40 rejected by the compiler, 20 for lack of resources",
        "Seed 3",
    ):
        assert fact in flat
    for fact in ("driver 570.86", "NVRTC 13.0", "1980 MHz", "not throttled", "cold", "2026-03-04"):
        assert fact in flat
    assert lines[-1] == "explorer emit 41 --cols 4096 --rows 8192 --dtype f32"


def _with_best(result, resources, **changes):
    """Return the result, whose best kernel has these resources and values of parameters."""
    first, *others = result.finals.finalists
    trial = replace(
        first.trial,
        config=replace(first.config, **changes),
        outcome=replace(first.trial.outcome, resources=resources),
    )
    best = replace(Contender.of_trial(trial), samples_us=first.samples_us, tied=True)
    return replace(result, finals=replace(result.finals, finalists=(best, *others)))


@pytest.mark.parametrize(
    ("blocks", "rests", "min_blocks", "said"),
    [
        (6, True, 6, "An SM holds 6 of its blocks at the same time. Its launch bounds ask other"),
        (
            6,
            True,
            1,
            "blocks at the same time. Its launch bounds do not state that",
        ),
        (
            6,
            True,
            4,
            "blocks at the same time. Its launch bounds do not state that",
        ),
        (
            6,
            False,
            1,
            "6 of its blocks at the same time. Eight registers a thread more",
        ),
        (1, True, 1, "An SM holds one of its blocks; launch bounds need not state that."),
    ],
)
def test_it_is_said_how_many_blocks_of_the_best_an_sm_holds(
    result, view, blocks, rests, min_blocks, said
):
    resources = Resources(32, resident_blocks=blocks, rests_on_registers=rests)
    held = _with_best(result, resources, min_blocks=min_blocks)
    best = held.finals.finalists[0].trial
    studies = [replace(view, best=best, finals=finals) for finals in (held.finals, None)]
    for print_it, thing in ((print_search, held), *((print_study, one) for one in studies)):
        assert said in " ".join(printed(print_it, thing, 100).split())
    row = standings(held.finals, result.problem)[0]
    told = data_of(FINALIST, row)
    assert told["resident_blocks"] == blocks
    assert told["states_residency"] is (not rests or blocks in (1, min_blocks))


def test_a_residency_that_is_not_known_is_not_said(result):
    assert "An SM holds" not in printed(print_search, result, 100)
    told = data_of(FINALIST, standings(result.finals, result.problem)[0])
    assert told["resident_blocks"] is None and told["states_residency"] is None


def test_a_tie_may_be_decided_by_residency(result):
    first, second, *_ = result.finals.finalists
    ties = (
        replace(first, states_residency=True),
        replace(second, states_residency=False),
    )
    text = printed(print_search, replace(result, finals=replace(result.finals, finalists=ties)), 80)
    assert (
        "is chosen for its residency: other compilers give an SM no fewer of its blocks."
        in " ".join(text.split())
    )


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
    finals = replace(result.finals, limit_spread=None)
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
    known = replace(result.environment, limit_name=copy, buffers=2, launches_per_sample=6)
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
        "16 B: 1.90 × as fast as 4 B, in every one of 40 pairs that differ in nothing else (1.84 "
        "to 1.97 ×)",
        "unroll 1 and unroll 4: no measurable difference in 20 pairs",
        "cluster no clusters 61.40 300 cluster clusters of 2 70.00 10",
        "fewer than 6 pairs of fast kernels differ in one of these parameters alone",
        "times here are first times, each kernel by itself; the finals above timed the fastest "
        "again",
        "matched pairs: two kernels of the study that differ in this parameter alone,",
    ):
        assert sentence in text, sentence
    assert "1.10 × as fast" not in text  # of a parameter the values of most pairs alone are told
    without = " ".join(printed(print_study, replace(view, finals=None), 100).split())
    assert "finals above" not in without


def test_studies_of_two_versions_are_told_apart(summary):
    two = [replace(summary, space_version=version) for version in ("aaaa1111", "bbbb2222")]
    text = printed(print_studies, [*two, replace(summary, timing="warm")], 120)
    assert "version aaaa1111" in text and "version bbbb2222" in text
    assert text.count("version") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_studies(summary, width):
    text = printed(print_studies, [replace(summary, replayed=True)], width)
    assert max(map(len, text.splitlines())) <= width
    (line,) = (line for line in text.splitlines() if "f32 8192x4096" in line)
    for fact in ("H200", "cold", "310/400", "61.40", "97.7 %", "2026-03-04", "replayed"):
        assert fact in line


def test_many_whole_values_are_printed_as_a_range(monkeypatch):
    counts = {"excluded_share": 0.123, "legal_count": Count(123_456, 0.1)}  # they take 2 s
    for counted, answer in counts.items():
        monkeypatch.setattr(f"explorer.space.Space.{counted}", lambda *_, answer=answer: answer)
    space = Space(Problem(8192, 4096, DType.F32), known_gpu("NVIDIA H200"))
    text = printed(print_space, SpaceView(space, names=("min_blocks",)), 200)
    assert re.search(r"^min_blocks +1 to 32 +blocks an SM that __launch_bounds__", text, re.M)
    drawn = ", ".join(map(str, DRAWN_MIN_BLOCKS[:-1]))
    assert f"A search draws {drawn} or {DRAWN_MIN_BLOCKS[-1]}." in text
    some = Space(space.problem, space.gpu, {"min_blocks": (1, 2, 5)})
    assert "  1, 2, 5  " in printed(print_space, SpaceView(some, names=("min_blocks",)), 200)


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
