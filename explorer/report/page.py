"""A page of HTML that opens offline: sections, tables, charts, and the script that draws them."""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from explorer.report.charts import PLOT_WIDTH, Chart, script, theme
from explorer.report.own_files import GENERATOR
from explorer.report.table import BEFORE_UNIT, Cell, Kind, Table
from explorer.report.text import counted

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


Block = str | Figure | Table
"""A piece of HTML, a chart or a table."""


@dataclass(slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        """Add a paragraph of plain text, whose code stands between backticks."""
        self.blocks.append(f"<p>{prose_html(sentence)}</p>")

    def add(self, *blocks: Block) -> None:
        """Add charts, tables or HTML."""
        self.blocks += blocks


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
    return escape(BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text))


def definitions(lines: Iterable[tuple[str, str]]) -> str:
    """Return a list of words with a sentence for each."""
    entries = (f"<dt>{escape(word)}</dt><dd>{prose_html(text)}</dd>" for word, text in lines)
    return f"<dl>{''.join(entries)}</dl>"


def command(text: str) -> str:
    """Return a command to copy, which is not broken within an option."""
    words = re.sub(r"(?<!\S)--[\w-]+", r'<span class="short">\g<0></span>', escape(text))
    return f'<pre class="command" tabindex="0"><code>{words}</code></pre>'


def source(text: str) -> str:
    """Return CUDA source, highlighted."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers.c_like import CudaLexer

    code: str = highlight(text, CudaLexer(), HtmlFormatter(nowrap=True))
    return f'<pre class="source" tabindex="0" aria-label="CUDA source"><code>{code}</code></pre>'


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
            f"<body><header><h1>{escape(title)}</h1><p>{prose_html(lead)}</p>",
            f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav></header>',
            '<noscript><p class="note">The charts need JavaScript. The tables have their figures.'
            "</p></noscript>",
            f"<main>{''.join(body)}</main>",
            _packed("drawn", drawn),
            _packed("program", script()),
            f"<script>{_DRAW.replace('PLOT_WIDTH', str(PLOT_WIDTH))}</script>",
            "</body></html>\n",
        ]
    )
    return page.encode(errors="backslashreplace").decode()  # a database may hold half a character


def _block(block: Block, figures: list[dict[str, Any]]) -> str:
    if isinstance(block, Figure):
        return _figure(block, figures)
    return _table(block) if isinstance(block, Table) else block


def _figure(figure: Figure, figures: list[dict[str, Any]]) -> str:
    spec = {**_with_shared_data(figure.chart.to_dict()), "description": figure.says}
    number = len(figures)
    figures.append({"spec": spec, "brushed": figure.is_brushed})
    more = ""
    if figure.is_brushed:
        more = (
            "<p><label>Drag over the upper chart to select kernels, or list those within "
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


def _with_shared_data(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a chart whose parts name the rows that they draw, so that each row is kept once."""
    datasets: dict[str, Any] = {}
    names: dict[str, str] = {}

    def named(node: Any) -> Any:
        if isinstance(node, list):
            return [named(part) for part in node]
        if not isinstance(node, dict):
            return node
        rows = node["data"].get("values") if isinstance(node.get("data"), dict) else None
        made = {key: named(value) for key, value in node.items() if key != "data"}
        if rows is None:
            return made
        name = names.setdefault(json.dumps(rows), f"rows-{len(names)}")
        datasets[name] = rows
        return {**made, "data": {"name": name}}

    made = named(spec)
    return {**made, "datasets": datasets}


def _packed(name: str, text: str) -> str:
    """Return an element with a compressed text, in letters that cannot end the element.

    The program that draws charts takes less than half of its bytes so, and the figures of a tuned
    table a tenth.
    """
    letters = b64encode(zlib.compress(text.encode(), 9)).decode()
    return f'<script type="text/plain" id="{name}">{letters}</script>'


def _styles() -> str:
    """Return the styles of all pages."""
    made = _STYLE.replace("LABELS", _label_rules())
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
    f"{GENERATOR}"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    # Nothing may be loaded. Vega compiles its expressions, which takes eval.
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:\">"
)

_STYLE = """
:root { --text: #1f2328; --quiet: #59636e; --page: #ffffff; --box: #f6f8fa; --line: #d1d9e0;
  --link: #0a58ca; --shade: #1f232840; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --quiet: #9da7b3; --page: #0d1117; --box: #161b22; --line: #30363d;
    --link: #6cb0ff; --shade: #e6edf350; }
}
* { box-sizing: border-box; }
@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth; } }
body { margin: 0 auto; max-width: 96rem; padding: 1rem clamp(0.75rem, 3vw, 2rem) 4rem;
  font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); }
h1 { font-size: clamp(1.35rem, 4vw, 2rem); line-height: 1.2; margin: 1rem 0 0.5rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.5rem; padding-top: 0.5rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 0.25rem; }
p, dd, li { max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; padding: 0; list-style: none; }
figure { margin: 1.25rem 0; }
figcaption { max-width: 46rem; margin-bottom: 0.5rem; }
.chart { min-height: 6rem; width: 100%; overflow-x: auto; }
/* A shade at each edge behind which a region goes on: what moves with the region covers it. */
.scroll, .chart { background:
  linear-gradient(to right, var(--page) 1rem, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--page) 1rem, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 0.75rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 0.75rem 100% no-repeat scroll; }
.hint { color: var(--quiet); font-size: 0.85rem; margin: 0.5rem 0 0; }
.chart svg { display: block; }
.short { white-space: nowrap; }
p code, dd code, figcaption code, td code { font: 0.9em ui-monospace, monospace; }
.selected { color: var(--quiet); }
input { font: inherit; width: 5rem; color: var(--text); background: var(--box);
  border: 1px solid var(--line); border-radius: 4px; }
.scroll { overflow-x: auto; margin: 0.75rem 0; }
details .scroll { max-height: 34rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
caption { text-align: left; font-weight: 600; padding: 0.25rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.75rem 0.25rem 0;
  border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: var(--page); }
.number, NUMBER CELLS { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.word, WORD CELLS { white-space: nowrap; }
td.prose, PROSE CELLS { min-width: 14rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
@media (max-width: 40rem) {
  dl { display: block; } dd { margin-bottom: 0.5rem; }
  .word, WORD CELLS { white-space: normal; overflow-wrap: anywhere; }
  .stack, .stack caption, .stack tbody { display: block; }
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .stack tr { border-bottom: 1px solid var(--line); padding: 0.5rem 0; display: grid;
    grid-template-columns: 1fr 1fr; gap: 0.1rem 1.25rem; }
  .stack td { display: grid; grid-template-columns: 7rem 1fr; gap: 0.75rem; padding: 0.1rem 0;
    grid-column: span 2; border: 0; text-align: left; white-space: normal;
    overflow-wrap: anywhere; }
  .stack NUMBER CELLS:not(:first-child) { display: flex; flex-wrap: wrap; grid-column: span 1;
    justify-content: space-between; column-gap: 0.5rem; }
  .stack td::before { color: var(--quiet); font-weight: 400; }
LABELS
  .stack td:empty { display: none; }
  .stack td:first-child { font-weight: 600; }
}
pre { background: var(--box); border: 1px solid var(--line); border-radius: 6px;
  padding: 0.75rem; overflow: auto; font: 13px/1.45 ui-monospace, monospace; }
pre.source { max-height: 40rem; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--link); padding: 0.25rem 0; }
.note { background: var(--box); border: 1px solid var(--line); border-radius: 6px;
  padding: 0.5rem 0.75rem; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
@media print { .scroll, pre.source { max-height: none; overflow: visible; } }
"""

_DRAW = """
(() => {
  let figures, themes;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  const NARROW = 560;

  // A copy of a chart whose plots are `width` pixels wide. If narrow, legends have one column, its
  // parameter `narrow` is true, and rows are `step` pixels high at least.
  const fitted = (node, width, narrow, step) => {
    if (Array.isArray(node)) return node.map((part) => fitted(part, width, narrow, step));
    if (node === null || typeof node !== "object") return node;
    if (node.name === "narrow") return { ...node, value: narrow };
    return Object.fromEntries(Object.entries(node).map(([key, value]) => [
      key,
      key === "width" && value === PLOT_WIDTH ? width
        : key === "columns" && narrow ? 1
        : key === "step" && narrow ? Math.max(value, step)
        : key === "datasets" ? value : fitted(value, width, narrow, step),
    ]));
  };

  const cell = (tag, text, kind) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  // Says above a region that it scrolls sideways, as long as it does.
  const hint = (region) => {
    const over = region.scrollWidth > region.clientWidth + 1;
    let said = region.previousElementSibling;
    if (!said?.classList.contains("hint")) {
      if (!over) return;
      said = cell("p", "Scroll sideways to see the rest \u2192", "hint");
      region.before(said);
    }
    said.hidden = !over;
  };
  const watch = new ResizeObserver((seen) => seen.forEach((one) => hint(one.target)));
  document.querySelectorAll(".scroll, .chart, pre.source").forEach((one) => watch.observe(one));

  const LISTED = 12;
  const tell = (number, kernels, range) => {
    const place = document.getElementById(`selected-${number}`);
    const chosen = range
      ? kernels.filter((one) => one.rank >= range[0] && one.rank <= range[1]) : [];
    place.replaceChildren();
    if (!chosen.length) {
      if (range) place.append(cell("p", "No kernel is selected."));
      return;
    }
    const times = chosen.map((one) => one.time_us);
    place.append(cell("p", `${chosen.length} of ${kernels.length} kernels selected, `
      + `${Math.min(...times).toFixed(2)} to ${Math.max(...times).toFixed(2)} µs`
      + (chosen.length > LISTED ? `; the first ${LISTED}:` : ":")));
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    head.append(cell("th", "trial", "number"), cell("th", "µs", "number"), cell("th", "config"));
    const body = table.createTBody();
    for (const one of chosen.slice(0, LISTED)) {
      const row = body.insertRow();
      row.append(cell("td", one.trial, "number"), cell("td", one.time_us.toFixed(2), "number"),
        cell("td", one.what, "prose"));
    }
    const scroll = cell("div", "", "scroll");
    scroll.append(table);
    place.append(scroll);
    watch.observe(scroll);
  };

  const draw = async (number) => {
    const place = document.getElementById(`chart-${number}`);
    const { spec, brushed } = figures[number];
    const room = place.clientWidth, narrow = room < NARROW;
    const base = themes[dark.matches ? "dark" : "light"];
    const config = {
      ...base,
      background: "transparent",
      axis: { ...base.axis, labelLimit: narrow ? 0.46 * room : Math.min(400, 0.4 * room) },
      legend: { ...base.legend, labelLimit: room - 60, ...(narrow ? { columns: 1 } : {}) },
      title: { ...base.title, limit: room - 20 },
    };
    const least = spec.usermeta?.leastWidth ?? 140, step = spec.usermeta?.narrowStep ?? 0;
    let width = Math.min(PLOT_WIDTH * 2, room - 80), made;
    for (let turn = 0; turn < 3; turn += 1) {
      views.get(number)?.finalize();
      made = await vegaEmbed(place, fitted(spec, Math.max(least, width), narrow, step), {
        actions: false,
        renderer: "svg",
        config,
        tooltip: { theme: dark.matches ? "dark" : "light" },
      });
      views.set(number, made);
      const svg = place.querySelector("svg");
      const over = svg ? Math.ceil(svg.getBoundingClientRect().width - room) : 0;
      if (over <= 0 || width <= least) break;
      width -= over + 2;
    }
    hint(place);
    if (brushed) {
      const kernels = Object.values(spec.datasets).find((rows) => rows[0]?.rank);
      made.view.addSignalListener("brush", (name, value) =>
        tell(number, kernels, value?.rank ?? null));
      const within = document.getElementById(`within-${number}`);
      within.oninput = () => tell(number, kernels, within.value === "" ? null
        : [1, kernels.filter((one) => one.above_best <= Number(within.value)).length]);
      within.oninput();
    }
  };

  const drawAll = async () => {
    for (let number = 0; number < figures.length; number += 1) await draw(number);
    document.documentElement.dataset.drawn = String(figures.length);
  };

  const follow = () => {
    let waiting, shown = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === shown) return;
      shown = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(drawAll, 150);
    });
    dark.addEventListener("change", drawAll);
  };

  const unpacked = (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (mark) => mark.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(inflated).text();
  };

  const begin = async () => {
    if (!("DecompressionStream" in window)) {
      document.querySelector("main").before(cell("p", "The charts need a browser of 2023 or "
        + "later. The tables have their figures.", "note"));
      return;
    }
    ({ figures, themes } = JSON.parse(await unpacked("drawn")));
    const program = cell("script", await unpacked("program"));
    document.head.append(program);
    program.remove();
    window.explorerViews = views;
    follow();
    await drawAll();
  };

  begin();
})();
"""
