"""The heuristic beside the best of the committed tables: no rule may lose what was reached."""

from pathlib import Path

import pytest

from explorer.model.config import Config
from explorer.model.tuned_table import read_table
from tests.heuristic_losses import (
    FOLDER,
    TABLES,
    heuristic_losses,
    kind,
    losses_of,
    mean,
    most_alike,
    readme_rows,
)

REACHED = {
    "of the H200's table": (1.0087, 1.093, 41),
    "of the H100's table": (1.0087, 1.087, 147),
    "held out, H200": (1.0335, 1.238, 0),
    "few results a row, H200": (1.0375, 1.155, 15),
}
"""Geometric mean of the losses, the largest, and how many choices have no time of their own.

Some of these kernels load narrow words, and are judged by wider ones, which take more time:
`test_narrow_words.py` has what they take. One is a span without cache hints (200000 x 17 f32),
judged by spans of two threads a row. On the H100 some hundred state a residency, which gives them
another cubin, and are judged by the same kernel without. On the H200 the best was timed again with
the residencies around its own and takes less time since: today's choices without a residency lose
1.0088 in the mean. The held-out problems lose more than those of the tables: they
were drawn after the rules were made, and one in five has a mask, another axis or two types.

Rules are made on the problems of the tables (studies/DECISIONS.md):
where a new one makes the held-out problems worse, it is wrong.
"""

MAX_WORSE_THAN_EARLIER = 1.005
"""What a kind of problem may lose by rules that are newer than the table."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TABLES)
def test_no_more_is_lost_than_was_reached(name):
    most_mean, worst, unmeasured = REACHED[name]
    losses = heuristic_losses(name)
    assert mean(x.ratio for x in losses) <= most_mean
    assert max(x.ratio for x in losses) <= worst
    assert sum(not x.measured for x in losses) <= unmeasured


@pytest.mark.parametrize("name", TABLES)
def test_no_kind_of_problem_loses_by_newer_rules(name):
    losses = heuristic_losses(name)
    for each in {kind(x.problem) for x in losses}:
        of_kind = [x for x in losses if kind(x.problem) == each]
        now, earlier = mean(x.ratio for x in of_kind), mean(x.earlier_ratio for x in of_kind)
        assert now <= MAX_WORSE_THAN_EARLIER * earlier, (each, now, earlier)


def test_the_best_loses_nothing_and_the_earlier_choice_what_it_did():
    table = read_table(TABLES["held out, H200"])
    assert max(x.ratio for x in losses_of(table, lambda one: one.best.config)) < 1.01
    earlier = losses_of(table, lambda one: one.untuned)
    assert all(x.measured for x in earlier)
    # Of all kernels that have a time a few may be faster than those of the finals, by their scale.
    assert all(x.ratio == pytest.approx(x.earlier_ratio, rel=0.004) for x in earlier)
    assert mean(x.ratio for x in earlier) == pytest.approx(1.0322, abs=1e-4)


def test_a_kernel_without_a_time_is_judged_by_the_slowest_of_those_most_like_it():
    near, as_near, far = Config(store_hint="cs"), Config(load_hint="cs"), Config(threads_per_row=8)
    times = {near: 2.0, as_near: 3.0, far: 9.0}
    assert most_alike(Config(), times, times) == as_near


def test_the_readme_says_so():
    text = Path(FOLDER / "README.md").read_text(encoding="utf-8")
    assert "\n".join(readme_rows()) in text, "python -m tests.heuristic_losses prints the rows"
