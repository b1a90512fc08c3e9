"""Every result names the limit that its times are compared with: copy, or read."""

import json
from io import StringIO

import pytest
from rich.console import Console

from explorer.model.problem import Problem
from explorer.model.tuned_table import read_table
from explorer.report.studies import print_search, print_study, search_data
from explorer.report.text import limit_us_heading, limit_word, of_limit_heading
from tests.tables_of_one import table_of_one


def printed(print_it, thing):
    stream = StringIO()
    print_it(thing, Console(file=stream, width=120))
    return " ".join(stream.getvalue().split())


def test_a_share_of_the_limit_in_words():
    assert Problem(8, 8).of_limit(2.0, 1.964) == "98.2 % of copy"
    assert Problem(8, 8).of_limit(2.0, 0.0) == ""


def test_headings_name_the_limit_that_all_rows_have(result, monkeypatch):
    several = [result, result]
    assert (of_limit_heading(several), limit_us_heading(several)) == ("of copy", "copy µs")
    names = iter(("copy", "read") * 3)
    monkeypatch.setattr(Problem, "limit", property(lambda _: next(names)))
    assert (of_limit_heading(several), limit_us_heading(several)) == (
        "of copy or read",
        "copy or read µs",
    )
    assert limit_word(several) == "copy or read"


@pytest.mark.usefixtures("is_read")
def test_a_search_beside_a_reading(result, view):
    for text in (printed(print_search, result), printed(print_study, view)):
        assert "of read" in text and "read of the same bytes" in text and "copy" not in text
    assert search_data(result)["finals"]["limit"] == "read"
    assert "97.7 % of read" in repr(result)


def test_a_table_of_an_earlier_version_is_read(tmp_path):
    path = table_of_one(tmp_path / "table.json", 32, limit_name="by 16 bytes")
    table, text = read_table(path), path.read_text()
    assert json.loads(text)["problems"][0]["limit_us"] == 35.0
    path.write_text(text.replace("limit_us", "copy_us").replace("limit_name", "copy_name"))
    assert "copy_name" in path.read_text() and read_table(path) == table
