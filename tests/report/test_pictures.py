"""Pictures in files: no text is cut, crosses a frame or touches another, whatever shows it."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("altair", reason="charts need the extra softmax-explorer[report]")
pytest.importorskip("vl_convert", reason="charts need the extra softmax-explorer[report]")

from explorer.report.charts import (
    DARK_HEAT,
    LIGHT_HEAT,
    bars_chart,
    kernels_chart,
    theme,
    write_chart,
)
from explorer.report.compare import comparison_page, read_compared
from explorer.report.journey import journey_picture, read_journey
from explorer.report.pages import kept_pages
from explorer.report.tune import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "studies" / "results"
COMMITTED = sorted([*RESULTS.glob("journey-*.svg"), RESULTS / "peers-h200.svg"])

# Advance widths of DejaVu Sans, in hundredths of the font's size: Verdana's are as wide, and those
# of other common fonts without serifs are less.
ADVANCES = {
    mark: width
    for width, marks in {
        28: "ijl'", 30: "IJ", 32: " .,", 34: ":/", 36: "f", 37: "-", 40: "t()", 42: "r", 50: "_",
        53: "sz", 55: "c", 56: "L", 58: "kF", 60: "vxy", 61: "P", 62: "aeoTY",
        64: "0123456789bdghnpquESµ", 66: "K", 69: "ABVXZ", 70: "CR", 74: "U", 75: "N", 76: "H",
        78: "DG", 79: "OQ", 82: "w", 84: "=×+−≥", 87: "M", 96: "%", 98: "m", 99: "W",
    }.items()
    for mark in marks
}  # fmt: skip
BOLD = 1.12
"""A bold text's width over that of the same text."""


def texts_of(svg):
    """Return (left, right, y, text) of each level text that is shown, in pixels, at its widest."""
    found = []

    def walk(node, x, y, size):
        turn = node.get("transform", "")
        if "rotate" in turn:
            return
        moved = re.search(r"translate\(([-\d.]+)[, ]+([-\d.]+)\)", turn)
        x, y = (x + float(moved[1]), y + float(moved[2])) if moved else (x, y)
        if node.tag.endswith("text") and node.text and node.get("opacity") != "0":
            size = float(node.get("font-size", "").removesuffix("px") or SIZES[node.get("class")])
            bold = node.get("font-weight") == "bold" or node.get("class") == "title"
            width = sum(ADVANCES[mark] for mark in node.text) / 100 * size * (BOLD if bold else 1)
            at = x + float(node.get("x", 0))
            left = at - width * {"start": 0, "middle": 0.5, "end": 1}[node.get("text-anchor")]
            found.append((left, left + width, y + float(node.get("y", 0)), node.text))
        for child in node:
            walk(child, x, y, size)

    root = ElementTree.fromstring(svg)
    walk(root, 0.0, 0.0, 0.0)
    return found, float(root.get("width"))


SIZES = {None: 13, "quiet": 12, "title": 16}
"""Of the picture of peers, in pixels, by the class of a text."""


def check_texts(svg):
    texts, width = texts_of(svg)
    assert len(texts) > 10
    assert [text for left, right, _, text in texts if left < 0 or right > width] == []
    touching = [
        (one[3], other[3])
        for place, one in enumerate(texts)
        for other in texts[:place]
        if abs(one[2] - other[2]) < 8 and one[0] < other[1] + 4 and other[0] < one[1] + 4
    ]
    assert touching == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_no_text_of_a_committed_picture_is_cut_or_touches_another(path):
    check_texts(path.read_text())


def test_a_journey_drawn_today_has_room_for_its_texts_and_they_stay_within_its_frame(tmp_path):
    path = tmp_path / "it.svg"
    write_chart(journey_picture(read_journey(RESULTS / "journey-h200-f32-4096.json")), path)
    svg = path.read_text()
    check_texts(svg)
    left, frame = map(int, re.search(r"translate\((\d+),\d+\).*?M0.5,0.5h(\d+)v", svg).groups())
    times = [text for text in texts_of(svg)[0] if text[3].endswith(" µs") and "copy" not in text[3]]
    assert len(times) > 30
    assert max(right for _, right, _, _ in times) <= left + frame


def test_the_text_of_the_longest_bar_stays_within_the_frame(tmp_path):
    rows = [
        {"label": "a", "value": 1.72, "told": "1.72 s, 60.2 %"},
        {"label": "b", "value": 0.5, "told": "0.50 s, 39.8 %"},
    ]
    write_chart(bars_chart(rows, "seconds").properties(width=200), tmp_path / "it.svg")
    svg = (tmp_path / "it.svg").read_text()
    left, frame = map(int, re.search(r"translate\((\d+),\d+\).*?M0.5,0.5h(\d+)v", svg).groups())
    assert frame == 200
    assert max(right for _, right, _, text in texts_of(svg)[0] if " s, " in text) <= left + frame


def study_texts(folder, count, near=()):
    """The level texts of the chart of a study's kernels, each 0.1 % slower than the one before."""
    kernels = [
        {"rank": n + 1, "trial": n, "time_us": 1.0, "above_best": n / 10, "above_limit": n / 10}
        | {"what": "", "kind": "other kernel", "family": FAMILIES[0]}
        for n in range(count)
    ]
    within = {at: min(count, 10 * at + 1) for at in near}
    best = [{"trial": 0, "above_limit": 0.0}]
    write_chart(kernels_chart(kernels, within, best, "copy", FAMILIES, "a"), folder / "it.svg")
    return texts_of((folder / "it.svg").read_text())[0]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_axes_of_few_kernels_have_no_halves_of_one(tmp_path, count):
    numbers = [text for *_, text in study_texts(tmp_path, count) if re.fullmatch(r"[\d.]+", text)]
    assert str(count) in numbers and not {"1.0", "1.5", "2.5"} & set(numbers)


def test_the_text_of_a_line_is_where_no_kernels_are(tmp_path):
    at = {text: left for left, _, _, text in study_texts(tmp_path, 100, near=(1, 5))}
    assert at["51 within 5 %"] < 200 < at["11 within 1 %"]


# ------------------------------------------------------------------ marks and colours


def encodings(node, channel):
    """Return each encoding of a channel within a chart, in its order."""
    if isinstance(node, list):
        return [found for part in node for found in encodings(part, channel)]
    if not isinstance(node, dict):
        return []
    own = [node["encoding"][channel]] if channel in node.get("encoding", {}) else []
    return own + [f for key, part in node.items() if key != "encoding"
                  for f in encodings(part, channel)]  # fmt: skip


def scales(sections, channel, field):
    """Return the scales of a field's channel in all charts of a page, each once."""
    specs = [b.chart.to_dict() for s in sections for b in s.blocks if hasattr(b, "chart")]
    found = [e for spec in specs for e in encodings(spec, channel) if e.get("field") == field]
    assert len(found) > 1
    return {str(encoding["scale"]) for encoding in found}


@pytest.mark.exhaustive
def test_a_family_has_the_same_mark_in_all_charts_of_a_page():
    sections = kept_pages(["nvidia-h200"])[0].sections
    for channel in ("shape", "color"):
        (scale,) = scales(sections, channel, "family")
        assert str(list(FAMILIES)) in scale


def test_a_library_has_the_same_mark_in_all_charts_of_a_page():
    run = read_compared(RESULTS / "compare-h200-f32.json")
    other = read_compared(RESULTS / "compare-h200-bf16.json")
    fewer = [replace(one, peers=one.peers[2:]) for one in other.comparisons]
    both = replace(run, comparisons=[*run.comparisons, *fewer])
    for channel in ("shape", "color"):
        assert len(scales(comparison_page(both).sections, channel, "who")) == 1


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("heat", "dark"), [(LIGHT_HEAT, False), (DARK_HEAT, True)])
def test_the_figures_of_a_heat_map_can_be_read_on_each_of_its_colours(heat, dark):
    made = theme(dark=dark)
    assert made["range"]["heatmap"] == list(heat)
    text = luminance(made["text"]["color"])
    for colour in heat:
        low, high = sorted([text, luminance(colour)])
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour
