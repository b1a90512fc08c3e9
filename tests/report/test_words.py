"""Configs and figures as words."""

from dataclasses import replace

import pytest

from explorer.model.config import Config, brief_words, difference_words, words
from explorer.model.element import DType
from explorer.report.studies import markdown_notices, markdown_table
from explorer.report.text import microseconds, seconds, with_spread
from explorer.space import parameters


def test_every_value_of_every_parameter_has_its_own_words():
    for name, values in parameters(DType.F16).items():
        said = {words(replace(Config(), **{name: value}), [name]) for value in values}
        assert len(said) == len(values)


def test_brief_words_leave_out_defaults():
    brief = brief_words(Config(unroll=4))
    assert brief == "three-pass, 256 threads, 256 a row, 16 B, shuffle, registers, unroll 4"


def test_difference():
    assert difference_words(Config(static_cols=False), Config(), 30) == "run-time cols"
    assert difference_words(Config(), Config(), 30) == ""
    far = Config(threads=512, threads_per_row=64, unroll=4, min_blocks=8)
    assert difference_words(far, Config(), 30) == "512 thr, 64/row, unroll 4,\nblocks 8"
    assert difference_words(far, Config(), 12) == "512 thr,\n64/row, +2"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.5, "0.500"), (2.0516, "2.052"), (61.404, "61.40"), (123.45, "123.5"), (12345.6, "12346")],
)
def test_microseconds(number, text):
    assert microseconds(number) == text


def test_durations_and_spread():
    assert [seconds(s) for s in (7.6, 125, 4800)] == ["8 s", "2 min 05 s", "1 h 20 min"]
    assert with_spread(100.0, 0.02) == "100.0 ± 1.0"


def test_markdown(view):
    heading, rule, line = markdown_table([view]).splitlines()
    assert heading.count("|") == rule.count("|") == line.count("|") == 11
    assert "| 8192 × 4096 | f32 | 61.40 ± 0.12 | 4372 | 97.7 % | 60.00 |" in line
    older = replace(view, summary=replace(view.summary, replayed=True, is_current=False))
    assert "NVIDIA H200 (replayed, made by an older version)" in markdown_table([older])
    assert markdown_notices([view.summary], [view]) == []
    (left_out,) = markdown_notices([view.summary] * 3, [view])
    assert left_out.startswith("2 studies are left out")
    (replays,) = markdown_notices([older.summary], [older])
    assert "every row is a replay" in replays
    assert "no finals" in markdown_table([replace(view, finals=None)])
