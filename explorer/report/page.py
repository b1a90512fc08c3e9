"""A page of HTML that opens offline: sections, tables, charts, and the script that draws them."""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from explorer.report.charts import PLOT_WIDTH, Chart, script, theme
from explorer.report.table import Cell, Kind, Table
from explorer.report.text import counted
from explorer.system.user_files import MADE_BY

# ------------------------------------------------------------------ what a page holds


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its title, what it shows in words, and its figures as a table."""

    title: str
    says: str
    """What the chart shows: read aloud where it cannot be seen, so with the figures that matter."""
    chart: Chart
    table: Table | None = None
    is_brushed: bool = False
    """Whether a brush named `brush` selects rows by their `rank`, with trial, time_us and what."""


class Html(str):
    """A piece of a page as it stands there."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Folded:
    """What a reader opens by its title."""

    title: str
    blocks: Sequence["Block"]


Block = str | Figure | Table | Folded
"""HTML, a chart, a table, what is folded, or a paragraph with code between backticks."""

Blocks = Iterator[Block]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class KeptPage:
    """What a page is called, the sentence below that, and its sections."""

    title: str
    lead: str
    sections: list[Section]

    @classmethod
    def of(cls, title: str, lead: str, sections: Mapping[str, Iterable[Block]]) -> "KeptPage":
        """Return a page of sections by their headings."""
        return cls(title, lead, [Section(name, [*blocks]) for name, blocks in sections.items()])


_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|×|[µm]?s|min|[KMG]iB|[kMG]?B|GB/s|MHz|bytes?|ulp)(?![\w/]))"
)
"""The space between a number and its unit, at which no line ends."""

SHORT_CODE = 32
"""Characters of code in a sentence that stands on one line: they fit on a telephone."""

_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--[a-z][a-z-]*(?: [A-Z]{3,})?)")


def prose_html(text: str) -> str:
    """Return a sentence as HTML: what stands between backticks, and options, are code.

    No line ends within short code, or between a number and its unit.
    """
    parts, end = [], 0
    for found in _CODE.finditer(text):
        code = found[1] or found[2]
        short = ' class="short"' if len(code) <= SHORT_CODE else ""
        parts += [_plain(text[end : found.start()]), f"<code{short}>{escape(code)}</code>"]
        end = found.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    return escape(_BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text))


def definitions(lines: Iterable[tuple[str, str]]) -> Html:
    """Return a list of words with a sentence for each."""
    entries = (f"<dt>{escape(word)}</dt><dd>{prose_html(text)}</dd>" for word, text in lines)
    return Html(f"<dl>{''.join(entries)}</dl>")


def tiles(large: Iterable[tuple[str, str, str]]) -> Html:
    """Return large numbers, each with its unit and what it is of."""
    each = (
        f"<div><p><b>{escape(number)}</b> {escape(unit)}</p><p>{prose_html(of)}</p></div>"
        for number, unit, of in large
    )
    return Html(f'<div class="tiles">{"".join(each)}</div>')


@dataclass(frozen=True, slots=True)
class Meter:
    """A share of something as a bar, what it says, and shares that are marked on it, by name."""

    what: str
    share: float
    says: str
    marks: Mapping[str, float] = field(default_factory=dict)


def meters(bars: Iterable[Meter]) -> Html:
    """Return bars of shares below one another, which are read aloud as their sentences."""
    return Html(f'<div class="meters">{"".join(map(_meter, bars))}</div>')


def _meter(of: Meter) -> str:
    marks = "".join(
        f'<i style="left:{_place(share)}" title="{escape(name)}"></i>'
        for name, share in of.marks.items()
    )
    marked = "".join(f", {name} {100 * share:.0f} %" for name, share in of.marks.items())
    said = escape(f"{of.what}: {of.says}{marked}")
    return (
        f'<div role="img" aria-label="{said}"><span>{escape(of.what)}</span>'
        f'<span class="track"><b style="width:{_place(of.share)}"></b>{marks}</span>'
        f"<span>{_plain(of.says + marked)}</span></div>"
    )


def _place(share: float) -> str:
    return f"{100 * max(0.0, min(1.0, share)):.1f}%"


def command(text: str) -> Html:
    """Return a command to copy, which is not broken within an option."""
    words = re.sub(r"(?<!\S)--[\w-]+", r'<span class="short">\g<0></span>', escape(text))
    return Html(f'<pre class="command" tabindex="0"><code>{words}</code></pre>')


def source(text: str) -> Html:
    """Return CUDA source, highlighted."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers.c_like import CudaLexer

    code: str = highlight(text, CudaLexer(), HtmlFormatter(nowrap=True))
    return Html(
        f'<pre class="source" tabindex="0" aria-label="CUDA source"><code>{code}</code></pre>'
    )


MOST_COLUMNS = 4
"""A table of more columns, or of sentences, has a block for each row where the window is narrow."""


def table_html(table: Table, *, title: str = "") -> str:
    """Return a table, which scrolls by itself where it is wider than the page.

    Its cells have no classes and no end tags, which HTML lets be left out: the page of a tuned
    table has thousands of cells, and these would be nearly a third of each row.
    """
    kinds = [column.kind for column in table.columns]
    headings = [column.heading for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind.name.lower()}">{escape(heading)}</th>'
        for heading, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(_row(kinds, row) for row in table.rows)
    said = title or table.title
    caption = f"<caption>{escape(said)}</caption>" if said else ""
    label = escape(said or "table")
    stacks = Kind.PROSE in kinds or len(kinds) > MOST_COLUMNS
    stack, style = ("stack ", f' style="{_labels(headings)}"') if stacks else ("", "")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{stack}{_kind_classes(kinds)}"{style}>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(kinds: Sequence[Kind], cells: Sequence[Cell]) -> str:
    texts = (
        prose_html(str(cell)) if kind is Kind.PROSE else escape(str(cell))
        for kind, cell in zip(kinds, cells, strict=True)
    )
    return "<tr>" + "".join(f"<td>{text}" for text in texts)


def _kind_classes(kinds: Sequence[Kind]) -> str:
    """Return the classes of a table that say of what kind each of its columns is."""
    return " ".join(f"{kind.name.lower()}-{place}" for place, kind in enumerate(kinds, 1))


MOST_STYLED = 32
"""Columns of a table whose cells are set by their kind, and have headings where it is narrow."""


def _cells_of(kind: Kind) -> str:
    """Return the selector of the cells below a heading of this kind, as weak as that of a tag."""
    name = kind.name.lower()
    places = range(1, MOST_STYLED + 1)
    return f"td:where({','.join(f'.{name}-{place} :nth-child({place})' for place in places)})"


def _labels(headings: Sequence[str]) -> str:
    """Return CSS that keeps each heading once, in a property of the table, for all cells below.

    In each cell it would add 90 kB to the page of a tuned table.
    """
    texts = ("".join(f"\\{ord(mark):x} " for mark in heading) for heading in headings)
    return ";".join(f"--label-{place}:'{text}'" for place, text in enumerate(texts, 1))


MOST_OPEN = 50
"""A table of more rows is folded, so that what stands below it can be found."""


def _table(table: Table) -> str:
    """Return a table of the page itself, folded if it is long."""
    if len(table.rows) <= MOST_OPEN:
        return table_html(table)
    said = escape(f"{table.title or 'The table'} ({counted(len(table.rows), 'row')})")
    return f"<details><summary>{said}</summary>{table_html(table)}</details>"


# ------------------------------------------------------------------ the page


def page_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a page: everything that it needs is in it, and nothing is loaded from elsewhere.

    Raises InvalidInput where the extra that draws charts is not installed.
    """
    figures: list[dict[str, Any]] = []
    body, links = [], []
    for number, section in enumerate(sections, 1):
        name = f"section-{number}"
        links.append(f'<li><a href="#{name}">{escape(section.title)}</a></li>')
        blocks = "\n".join(_block(block, figures) for block in section.blocks)
        body.append(
            f'<section id="{name}" aria-labelledby="{name}-title">'
            f'<h2 id="{name}-title">{escape(section.title)}</h2>\n{blocks}\n</section>'
        )
    themes = {"light": theme(dark=False), "dark": theme(dark=True)}
    drawn = json.dumps({"figures": figures, "themes": themes}, separators=(",", ":"))
    page = "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            f"<head>{_HEAD}<title>{escape(title)}</title>",
            f"<style>{_styles()}{_code_styles()}</style></head>",
            f"<body><header><h1>{escape(title)}</h1><p>{prose_html(lead)}</p></header>",
            f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav>',
            '<noscript><p class="note">The charts need JavaScript. The tables have their figures.'
            "</p></noscript>",
            f"<main>{''.join(body)}</main>",
            _packed("drawn", drawn),
            _packed("program", script()),
            f"<script>{_asset('page.js').replace('PLOT_WIDTH', str(PLOT_WIDTH))}</script>",
            "</body></html>\n",
        ]
    )
    return page.encode(errors="backslashreplace").decode()  # a database may hold half a character


def _block(block: Block, figures: list[dict[str, Any]]) -> str:
    if isinstance(block, Figure):
        return _figure(block, figures)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Folded):
        inner = "\n".join(_block(one, figures) for one in block.blocks)
        return f"<details><summary>{escape(block.title)}</summary>{inner}</details>"
    return block if isinstance(block, Html) else f"<p>{prose_html(block)}</p>"


def _figure(figure: Figure, figures: list[dict[str, Any]]) -> str:
    spec = {**figure.chart.to_dict(), "description": figure.says}
    number = len(figures)
    figures.append({"spec": spec, "brushed": figure.is_brushed})
    more = ""
    if figure.is_brushed:
        more = (
            "<p><label>Drag over the chart by rank to select kernels, or list those within "
            f'<input type="number" id="within-{number}" min="0" step="any" size="6"> % of the '
            "fastest.</label></p>"
            f'<div class="selected" id="selected-{number}" role="status" aria-live="polite"></div>'
        )
    if figure.table is not None:
        inner = table_html(figure.table, title=figure.table.title or figure.title)
        more += f"<details><summary>The figures as a table</summary>{inner}</details>"
    return (
        f'<figure><figcaption id="caption-{number}"><b>{escape(figure.title)}.</b> '
        f"{prose_html(figure.says)}</figcaption>"
        f'<div class="chart" id="chart-{number}" role="group" '
        f'aria-labelledby="caption-{number}"></div>{more}</figure>'
    )


def _packed(name: str, text: str) -> str:
    """Return an element with a compressed text, in letters that cannot end the element.

    The program that draws charts takes less than half of its bytes so, and the figures of a tuned
    table a tenth.
    """
    letters = b64encode(zlib.compress(text.encode(), 9)).decode()
    return f'<script type="text/plain" id="{name}">{letters}</script>'


def _asset(name: str) -> str:
    """Return a file that stands beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _styles() -> str:
    """Return the styles of all pages."""
    made = _asset("page.css").replace("LABELS", _label_rules())
    for kind in Kind:
        made = made.replace(f"{kind.name} CELLS", _cells_of(kind))
    return made


def _code_styles() -> str:
    """Return the colours of source, for light and for dark pages."""
    from pygments.formatters import HtmlFormatter

    light, dark = (
        "\n".join(
            line
            for line in HtmlFormatter(style=style).get_style_defs(".source").splitlines()
            if line.startswith(".source .")
        )
        for style in ("friendly", "github-dark")
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _label_rules() -> str:
    """Return the rules by which a cell of a stacked table shows what `_labels` keeps."""
    return "\n".join(
        f"  .stack td:nth-child({place})::before {{ content: var(--label-{place}); }}"
        for place in range(1, MOST_STYLED + 1)
    )


_HEAD = (
    '<meta charset="utf-8">'
    f'<meta name="generator" content="{MADE_BY}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    # Nothing may be loaded. Vega compiles its expressions, which takes eval.
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:\">"
)
