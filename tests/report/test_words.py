"""Configs and figures as words."""

from dataclasses import replace

import pytest

from explorer.config import Config
from explorer.problem import DType
from explorer.report.figures import microseconds, seconds, with_spread
from explorer.report.markdown import markdown_table
from explorer.report.words import brief_words, difference_words, words
from explorer.space import parameters


def test_every_value_of_every_parameter_has_its_own_words():
    for name, values in parameters(DType.F16).items():
        said = {words(replace(Config(), **{name: value}), [name]) for value in values}
        assert len(said) == len(values)


def test_brief_words_leave_out_defaults():
    brief = brief_words(Config(unroll=4))
    assert brief == "three-pass, 256 threads, 256 a row, 16 B, shuffle, registers, unroll 4"


def test_difference():
    assert difference_words(Config(static_cols=False), Config()) == "run-time cols"
    assert difference_words(Config(), Config()) == ""


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
    assert "| 8192 × 4096 | f32 | 61.40 ± 0.12 | 60.00 | 4372 | 97.7 % |" in line
    assert "no finals" in markdown_table([replace(view, finals=None)])
