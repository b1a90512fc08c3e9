"""Pages in Chromium: every chart is drawn, brushing works, and the console says nothing."""

from pathlib import Path

import pytest

pytest.importorskip("altair", reason="charts need the extra softmax-explorer[report]")
pytest.importorskip("vl_convert", reason="charts need the extra softmax-explorer[report]")

from browser import Browser, program
from replays import replay

from explorer.devices.recording import load_recording
from explorer.model.query import ProblemQuery
from explorer.report.page import page_html
from explorer.report.pages import kept_pages, kernel_rows, study_lead
from explorer.report.pages import study_page as page_of_study
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import load_history

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

ROOT = Path(__file__).resolve().parents[2]
KEPT = {
    "comparison": ROOT / "studies" / "results" / "compare-h200-f32.json",
    "journey": ROOT / "studies" / "results" / "journey-h200-f32-4096.json",
    "table": ROOT / "studies" / "tuned" / "nvidia-h200.json",
}
PAGES = ("study", *KEPT)
WINDOWS = [(width, scheme) for width in (400, 1600) for scheme in ("light", "dark")]
DARK, LIGHT = 60, 230
"""The greatest mean of a dark background's colours, and the least of a light one's."""


@pytest.fixture(scope="module")
def history(once):
    def search(folder):
        storage = open_storage(str(folder / "studies.db"))
        run_search(replay(load_recording("h200-f32-4096")), storage, trials=200)
        storage.engine.dispose()

    searched = once("study-in-a-browser", search) / "studies.db"
    return load_history(open_storage(str(searched), read_only=True), ProblemQuery(4096))


@pytest.fixture(scope="module")
def pages(history, once):
    """The files of all pages, by name."""

    def write(folder):
        made = {"study": page_html("A study", study_lead(history), page_of_study(history).sections)}
        for name, path in KEPT.items():
            kept = kept_pages([str(path)])[0]
            made[name] = page_html(kept.title, kept.lead, kept.sections)
        for name, text in made.items():
            (folder / f"{name}.html").write_text(text)

    folder = once("pages-in-a-browser", write)
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


def in_each(browser, script):
    """What a function of an element gives for each chart."""
    return browser.run(f"[...document.querySelectorAll('.chart')].map({script})")


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_draws_each_chart_and_says_nothing_to_the_console(
    browser, pages, name, width, scheme
):
    browser.open(pages[name], width=width, scheme=scheme)
    assert browser.faults() == []
    assert set(browser.asked_for()) == {pages[name].as_uri()}
    marks = in_each(browser, "(e) => e.querySelectorAll('svg .mark-group path').length")
    assert marks and min(marks) > 3
    named = in_each(browser, "(e) => e.getAttribute('aria-label') ?? ''")
    assert all(len(said) > 40 for said in named)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert min(in_each(browser, "(e) => e.querySelector('svg').clientWidth")) > 0.5 * width / 4
    assert max(in_each(browser, "(e) => e.clientWidth")) <= width


LEAST_GAP = 6
"""Pixels between two numbers of an axis: less than `LABEL_SEPARATION`, since texts are rounded."""

LEAST_GAPS = """(chart) => {
  const labels = [...chart.querySelectorAll('.role-axis-label text')]
    .filter((e) => e.textContent && !/rotate\\((?!0)/.test(e.getAttribute('transform')))
    .filter((e) => getComputedStyle(e).opacity !== '0')
    .map((e) => e.getBoundingClientRect());
  const gaps = labels.flatMap((one) => labels
    .filter((other) => other.left > one.left && Math.abs(other.top - one.top) < 3)
    .map((other) => other.left - one.right));
  return Math.min(1000, ...gaps);
}"""


def test_a_page_of_two_gpus_says_nothing_to_the_console(browser, tmp_path):
    kept = kept_pages(["compare-h200-f32", "compare-h100"])[0]
    (tmp_path / "two.html").write_text(page_html(kept.title, kept.lead, kept.sections))
    browser.open(tmp_path / "two.html", width=1600, scheme="light")
    assert browser.faults() == []


@pytest.mark.parametrize("width", [360, 400, 700, 1000, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_an_axis_stand_apart(browser, pages, name, width):
    browser.open(pages[name], width=width, scheme="light")
    gaps = in_each(browser, LEAST_GAPS)
    assert min(gaps) < 1000 and min(gaps) >= LEAST_GAP, gaps


@pytest.mark.parametrize("width", [360, 1000])
def test_no_line_ends_within_a_command_of_a_sentence(browser, pages, width):
    browser.open(pages["study"], width=width, scheme="light")
    lines = browser.run(
        "[...document.querySelectorAll('.short')].map((e) => e.getClientRects().length)"
    )
    assert len(lines) >= 3 and set(lines) == {1}
    assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_as_light_as_is_preferred(browser, pages, scheme):
    browser.open(pages["study"], width=1000, scheme=scheme)

    def colour(script):
        numbers = browser.run(script).strip("rgba()").split(",")[:3]
        return sum(map(float, numbers)) / 3

    page = colour("getComputedStyle(document.body).backgroundColor")
    text = colour("getComputedStyle(document.body).color")
    labels = colour("getComputedStyle(document.querySelector('.chart svg text')).fill")
    code = colour("getComputedStyle(document.querySelector('pre.source .k')).color")
    if scheme == "dark":
        assert page < DARK and min(text, labels, code) > page + 60
    else:
        assert page > LIGHT and max(text, labels, code) < page - 60


def test_a_page_that_becomes_dark_is_drawn_anew(browser, pages):
    browser.open(pages["journey"], width=1000, scheme="light")
    label = "getComputedStyle(document.querySelector('.chart svg text')).fill"
    light = browser.run(label)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=dark)
    browser.wait(f"document.querySelector('.chart svg text') && {label} !== {light!r}")
    assert browser.faults() == []


def test_a_brush_selects_kernels_in_both_charts_and_lists_them(browser, pages, history):
    browser.open(pages["study"], width=1600, scheme="light")
    # A smooth scroll, which the page asks for, would still go on while the mouse is pressed.
    browser.run("document.querySelector('.chart').scrollIntoView({behavior: 'instant'})")
    boxes = browser.run(
        "[...document.querySelectorAll('#chart-0 svg path.background')]"
        ".map((e) => e.getBoundingClientRect().toJSON())"
        ".filter((b) => b.width > 400 && b.height > 100)"
    )
    box = max(boxes, key=lambda found: found["left"])  # the kernels by rank, beside the search
    y = box["top"] + box["height"] / 2
    browser.drag((box["left"] + 2, y), (box["left"] + box["width"] / 3, y))
    browser.wait("document.querySelector('.selected tbody tr')")
    said = browser.run("document.querySelector('.selected p').textContent")
    rows = kernel_rows(history)
    ranks = browser.run("explorerViews.get(0).view.signal('brush').rank")
    chosen = [row for row in rows if ranks[0] <= row["rank"] <= ranks[1]]
    assert 0.2 * len(rows) < len(chosen) < 0.5 * len(rows)
    assert said.startswith(f"{len(chosen)} of {len(rows)} kernels selected, ")
    listed = browser.run("document.querySelectorAll('.selected tbody tr').length")
    assert listed == min(12, len(chosen))
    faint = browser.run(
        "[...document.querySelectorAll('#chart-0 .mark-symbol path')]"
        ".filter((e) => Number(e.getAttribute('opacity') ?? 1) < 0.5).length"
    )
    assert faint == 2 * (len(rows) - len(chosen))
    assert browser.faults() == []


def test_kernels_are_listed_without_a_mouse(browser, pages, history):
    browser.open(pages["study"], width=400, scheme="dark")
    browser.run("document.querySelector('#within-0').focus()")
    browser.call("Input.insertText", text="1")
    near = [row for row in kernel_rows(history) if row["above_best"] <= 1]
    said = browser.run("document.querySelector('.selected p').textContent")
    assert said.startswith(f"{len(near)} of {len(history.measured)} kernels selected, ")
    assert browser.faults() == []


def test_kernels_that_were_listed_by_a_number_stand_out_until_others_are_dragged(browser, pages):
    browser.open(pages["study"], width=1600, scheme="light")
    browser.run("document.querySelector('#within-0').focus()")
    browser.call("Input.insertText", text="1")
    faint = (
        "[...document.querySelectorAll('#chart-0 .mark-symbol path')]"
        ".filter((e) => Number(e.getAttribute('opacity') ?? 1) < 0.5).length"
    )
    browser.wait(f"{faint} > 20")
    browser.run("document.querySelector('#within-0').value = ''")
    browser.run("document.querySelector('#within-0').oninput()")
    browser.wait(f"{faint} === 0")
    assert browser.faults() == []


def test_a_chart_that_was_folded_fits_once_it_is_opened(browser, pages):
    browser.open(pages["study"], width=1600, scheme="light")
    folded = "document.querySelector('details .chart svg')"
    browser.run(f"{folded}.closest('details').open = true")
    browser.wait(f"{folded} && {folded}.clientWidth > 800")
    assert browser.faults() == []


def test_a_heading_sorts_its_table_and_a_button_copies_a_command(browser, pages):
    browser.open(pages["study"], width=1600, scheme="light")
    browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    column = (
        "[...document.querySelectorAll('figure tbody')[0].rows].map((r) => +r.cells[1].textContent)"
    )
    heading = "document.querySelectorAll('figure th')[1]"
    trials = browser.run(column)
    browser.run(f"{heading}.querySelector('button').click()")
    assert browser.run(column) == sorted(trials, reverse=True) != trials
    assert browser.run(f"{heading}.ariaSort") == "descending"
    browser.run(f"{heading}.querySelector('button').click()")
    assert browser.run(column) == sorted(trials)
    browser.run("document.querySelector('.copied button').click()")
    browser.wait("document.querySelector('.copied button').textContent !== 'Copy'")
    assert browser.faults() == []


def test_charts_fit_anew_where_the_window_becomes_narrow(browser, pages):
    browser.open(pages["study"], width=1600, scheme="light")
    wide = in_each(browser, "(e) => e.querySelector('svg').clientWidth")
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=700,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.wait("document.querySelector('.chart svg').clientWidth < 700")
    browser.wait("[...document.querySelectorAll('.chart svg')].every((e) => e.clientWidth < 700)")
    assert min(wide) > 700
    assert browser.faults() == []


# ------------------------------------------------------------------ what has room, and what is told


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_charts_are_whole_and_their_legends_and_labels_are_not_cut(browser, pages, name, width):
    browser.open(pages[name], width=width, scheme="light")
    over = in_each(browser, "(e) => e.scrollWidth - e.clientWidth")
    assert max(over) <= 1
    # Vega ends what it cuts with an ellipsis.
    texts = "[...document.querySelectorAll('.chart svg text')].map((e) => e.textContent)"
    assert [text for text in browser.run(texts) if "…" in text] == []
    across = (
        "[...document.querySelectorAll('.chart')].flatMap((e) => { const room = "
        "e.getBoundingClientRect(); return [...e.querySelectorAll('svg text')].filter((t) => { "
        "const box = t.getBoundingClientRect(); return box.left < room.left - 1 || "
        "box.right > room.right + 1; }).map((t) => t.textContent); })"
    )
    assert browser.run(across) == []


SIDEWAYS = (
    "[...document.querySelectorAll('.scroll, .chart, pre.source')]"
    ".filter((e) => e.scrollWidth > e.clientWidth + 1)"
)
HINTED = f"{SIDEWAYS}.map((e) => e.previousElementSibling?.matches('.hint:not([hidden])') ?? false)"


@pytest.mark.parametrize("name", PAGES)
def test_no_table_is_cut_and_none_is_empty_to_the_eye(browser, pages, name):
    for width in (400, 1600):
        browser.open(pages[name], width=width, scheme="light")
        browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        cut = "[...document.querySelectorAll('.scroll')].map((e) => e.scrollWidth - e.clientWidth)"
        assert max(browser.run(cut)) <= 1, width
        browser.wait(f"{HINTED}.every(Boolean)")  # of source, which may be wider


def test_a_cell_of_a_block_has_its_heading_beside_it(browser, pages):
    browser.open(pages["comparison"], width=400, scheme="light")
    label = "getComputedStyle(document.querySelector('.stack td:nth-child(6)'), '::before').content"
    assert browser.run(label) == '"ratio"'
    wide = "getComputedStyle(document.querySelector('.stack td')).display"
    assert browser.run(wide) == "grid"
    browser.open(pages["comparison"], width=1600, scheme="light")
    assert browser.run(wide) == "table-cell" and browser.run(label) == "none"


def test_a_region_that_scrolls_sideways_says_so_as_long_as_it_does(browser, pages):
    browser.open(pages["comparison"], width=700, scheme="light")
    browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.wait(f"{SIDEWAYS}.length && {HINTED}.every(Boolean)")
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=1600,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.wait(f"!{SIDEWAYS}.length && !document.querySelector('.hint:not([hidden])')")
    assert browser.faults() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figures_of_a_heat_map_can_be_read(browser, pages, scheme):
    browser.open(pages["table"], width=1600, scheme=scheme)
    ratios = browser.run(
        """(() => {
          const part = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
          const bright = (colour) => {
            const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((c) => part(c / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const cells = [...document.querySelectorAll('.chart svg .mark-rect path')];
          const texts = [...document.querySelectorAll('.chart svg .mark-text text')];
          return cells.filter((e) => Number(e.getAttribute('opacity') ?? 1) === 1).map((cell) => {
            const box = cell.getBoundingClientRect();
            const text = texts.find((t) => {
              const at = t.getBoundingClientRect();
              return at.left > box.left && at.right < box.right && at.top > box.top
                && at.bottom < box.bottom;
            });
            if (!text) return 0;
            const pair = [getComputedStyle(cell).fill, getComputedStyle(text).fill].map(bright);
            pair.sort((a, b) => a - b);
            return (pair[1] + 0.05) / (pair[0] + 0.05);
          });
        })()"""
    )
    assert len(ratios) > 50 and min(ratios) >= 4.5


def test_the_page_of_a_table_is_short_until_a_reader_asks_for_all(browser, pages):
    browser.open(pages["table"], width=1600, scheme="light")
    height = "document.documentElement.scrollHeight"
    assert browser.run(height) < 20_000


def test_the_columns_of_a_long_table_are_set_by_their_kinds(browser, pages):
    set_so = (
        "[...[...document.querySelectorAll('tbody')].at(-1).rows[0].cells].map((e) => { const "
        "style = getComputedStyle(e); return [style.textAlign, style.whiteSpace, style.display]; })"
    )
    opened = "document.querySelectorAll('details').forEach((e) => { e.open = true; })"
    browser.open(pages["table"], width=1600, scheme="light")
    browser.run(opened)
    word = ["left", "nowrap", "table-cell"]
    number = ["right", "nowrap", "table-cell"]
    sentence = ["left", "normal", "table-cell"]
    assert browser.run(set_so) == [word, number, number, number, sentence, sentence]
    browser.open(pages["table"], width=400, scheme="light")
    browser.run(opened)
    word, number = ["left", "normal", "grid"], ["left", "normal", "flex"]
    assert browser.run(set_so) == [word, number, number, number, word, word]


def test_a_browser_that_cannot_unpack_the_charts_says_so(browser, pages):
    before = "delete window.DecompressionStream"
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=before)
    try:
        browser.visit(pages["table"].as_uri(), width=1000)
        browser.wait("document.querySelector('body > .note')")
        said = browser.run("document.querySelector('body > .note').textContent")
        assert said.startswith("The charts need a browser of 2023 or later.")
        assert browser.run("document.querySelectorAll('tbody tr').length") > 929
        assert browser.faults() == []
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **added)


def test_committed_pictures_are_whole_in_a_browser(browser):
    for path in sorted((ROOT / "studies" / "results").glob("*.svg")):
        browser.visit(path.as_uri(), width=1000)
        browser.wait("document.documentElement?.tagName === 'svg'")
        outside = browser.run(
            "(() => { const room = document.documentElement.getBoundingClientRect(); return "
            "[...document.querySelectorAll('text')].filter((t) => { const box = "
            "t.getBoundingClientRect(); return box.left < room.left || box.right > room.right; })"
            ".map((t) => t.textContent); })()"
        )
        assert outside == [], path.name
