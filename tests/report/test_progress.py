"""The live line, and its plain form where stderr is no terminal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from explorer.model.element import DType
from explorer.model.outcome import Stage
from explorer.model.problem import Problem
from explorer.report.progress import ProgressLine, journey_text, progress_text
from explorer.tuning.results import Progress

PROBLEM = Problem(8192, 4096, DType.F32)
STANDING = Progress(
    trials=90,
    measured=40,
    rejected={Stage.COMPILE: 3, Stage.INVALID: 41},
    best_trial=12,
    best_us=61.4,
    limit_us=60.0,
    elapsed_s=4.3,
    remaining_s=None,
    remaining_trials=157,
    phase="search",
)


def test_line_tells_all_there_is():
    assert progress_text(STANDING, PROBLEM) == (
        "43/200 kernels · best 61.40 µs · 4372 GB/s · 97.7 % of copy · "
        "41 rejected by a rule, 3 by the compiler · 10 kernels/s · 16 s left"
    )


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"remaining_s": 95.0, "remaining_trials": None}, "43 kernels"),
        ({"remaining_s": 95.0}, "1 min 35 s left"),
        ({"phase": "finals"}, "43 kernels, now the finals"),
        ({"phase": "finals", "measured": 1, "rejected": {}}, "1 kernel, now the finals"),
        ({"remaining_trials": 2957}, "43/3000 kernels"),
        ({"limit_us": 0.0}, "4372 GB/s · 41 rejected by a rule"),
        ({"rejected": {Stage.VERIFY: 1}}, "· 1 rejected by verification ·"),
        ({"best_us": None, "measured": 0, "rejected": {}}, "0/157 kernels · 4 s so far"),
    ],
)
def test_line_leaves_out_what_is_not_known(changes, fragment):
    assert fragment in progress_text(replace(STANDING, **changes), PROBLEM)


def test_a_journey_says_its_pace_and_what_is_left():
    assert journey_text("oneflow-warp", 1, 28, 0.1) == "1/28 kernels · oneflow-warp"
    assert journey_text("tile", 5, 28, 2.0) == "5/28 kernels · tile · 2 kernels/s · 12 s left"
    assert journey_text("tile", 5, 28, 8.4).endswith("· 2.1 s a kernel · 50 s left")


def test_without_a_terminal_a_line_now_and_then():
    stream = StringIO()
    with ProgressLine(PROBLEM, Console(file=stream, width=80)) as line:
        for _ in range(50):
            line(STANDING)
        line(replace(STANDING, phase="finals"))
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_on_a_terminal_the_line_fits_and_is_cleared():
    stream = StringIO()
    console = Console(file=stream, width=60, force_terminal=True, color_system=None)
    with ProgressLine(PROBLEM, console) as line:
        line(STANDING)
    text = stream.getvalue()
    assert "…" in text  # cut to the width, not wrapped
    assert text.endswith("\x1b[2K") or "\x1b[2K" in text.split("…")[-1]
