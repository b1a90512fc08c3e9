"""One table, printed and as Markdown."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from explorer.report.table import (
    Field,
    Kind,
    Table,
    as_markdown,
    data_of,
    numbers,
    print_table,
    prose,
    table_of,
    words,
)


def printed(table, width=42):
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, highlight=False, markup=False))
    return out.getvalue()


@pytest.fixture
def table():
    made = Table([*words("name"), *numbers("µs"), prose("what it is")], title="Times")
    made.add(Text("copy", "bold"), "9.5", "the limit of all kernels, by a long way")
    made.add("[b]a|b", "10.25", "a kernel")
    return made


def test_prose_folds_and_numbers_end_alike(table):
    title, head, first, folded, *_, last = printed(table).strip().splitlines()
    assert title == "Times"
    assert head.split() == ["name", "µs", "what", "it", "is"]
    assert first.startswith("copy      9.5  the limit") and folded.startswith(" " * 15)
    assert last.startswith("[b]a|b  10.25  a kernel")


def test_headings_of_numbers_fold_at_a_dash():
    made = Table(numbers("torch-compile"), [["1"]])
    assert [line.strip() for line in printed(made).splitlines()] == ["torch-", "compile", "1"]


def test_what_does_not_fit_stands_below_beside_the_keys():
    made = Table([*words("kernel"), *numbers("first", "second"), prose("what it is")])
    made.add("a-kernel", "1234.56", "6543.21", "keeps its row in /a/folder/of/registers/kept, or")
    assert [line.split() for line in printed(made).splitlines()] == [
        ["kernel", "first", "second"],
        ["a-kernel", "1234.56", "6543.21"],
        [],
        ["kernel", "what", "it", "is"],
        ["a-kernel", "keeps", "its", "row", "in"],
        ["/a/folder/of/registers/kept,", "or"],
    ]


def test_markdown(table):
    assert as_markdown(table).splitlines() == [
        "| name | µs | what it is |",
        "|---|---:|---|",
        "| copy | 9.5 | the limit of all kernels, by a long way |",
        r"| [b]a\|b | 10.25 | a kernel |",
    ]


def test_some_columns(table):
    part = table.only([0, 2])
    assert [column.heading for column in part.columns] == ["name", "what it is"]
    assert part.title == "Times" and part.rows[1] == ["[b]a|b", "a kernel"]


def test_a_row_has_a_cell_for_each_column(table):
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        table.add("one", "2")


def test_a_field_is_a_column_a_value_and_a_cell():
    fields = (
        Field("name", lambda row: row[0], "who", kind=Kind.WORD),
        Field("time_us", lambda row: row[1], "µs", "{:.2f}".format),
        Field("digits", lambda row: row[1]),
        Field("", lambda row: f"{row[0]}!", "told", kind=Kind.PROSE),
    )
    rows = [("ours", 1.234), ("copy", None)]
    assert data_of(fields, rows[0]) == {"name": "ours", "time_us": 1.234, "digits": 1.234}
    made = table_of(fields, rows)
    assert [column.heading for column in made.columns] == ["who", "µs", "told"]
    assert made.rows == [["ours", "1.23", "ours!"], ["copy", "", "copy!"]]
    made.add_under({"µs": "9"})
    assert made.rows[2] == ("", "9", "")
