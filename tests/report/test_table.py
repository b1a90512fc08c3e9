"""One table, printed and as Markdown."""

import io

import pytest
from rich.console import Console

from explorer.report.table import Styled, Table, as_markdown, numbers, print_table, prose, words


def printed(table, width=34):
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, highlight=False, markup=False))
    return out.getvalue()


@pytest.fixture
def table():
    made = Table([*words("name"), *numbers("µs"), prose("what it is")], title="Times")
    made.add(Styled("copy", "bold"), "9.5", "the limit of all kernels, by a long way")
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
        ["/a/folder/of/registers/"],
        ["kept,", "or"],
    ]


def test_rows_are_lists_where_a_column_fits_in_no_part():
    made = Table([*words("kernel", "problem"), *numbers("µs")])
    made.add("a-kernel-of-a-long-name", "softmax bf16 8192x4096", "12.5")
    assert [line.rstrip() for line in printed(made, 40).splitlines()] == [
        "kernel",
        "a-kernel-of-a-long-name",
        "  problem  softmax bf16 8192x4096",
        "  µs       12.5",
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
