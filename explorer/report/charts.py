"""Charts for pages and picture files: what is drawn on which axes, in light and dark.

Each function takes rows of plain data and returns a chart of Altair's, whose colours come from
`theme` when it is drawn. Whatever a colour tells is also told by a shape or by dashes.
"""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from math import copysign, log1p
from pathlib import Path
from textwrap import wrap
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.system.user_files import MADE_BY, PICTURE, check_replaceable, write_file

Row = dict[str, Any]
Chart = Any
"""A chart of Altair's, which is imported only where one is drawn."""

PLOT_WIDTH = 640
"""Of a file, and of a page before it is fitted to the window, in pixels."""

SUFFIXES = (".svg", ".png")
"""Of files that a chart can be written to."""

PIXELS = 2
"""Of a PNG, for each pixel of the chart."""

PAGE_FONT = "system-ui, sans-serif"
"""The font of a page, whose reader's browser measures each text before it lays a chart out."""

PICTURE_FONT = "'DejaVu Sans', Verdana, Geneva, sans-serif"
"""The font of a file, which is laid out where it is drawn, and may be shown elsewhere.

These are the widest of the common fonts without serifs, so that a text takes no more room where it
is shown. With `system-ui` the layout was that of Liberation Sans, and 13 % too narrow for DejaVu.
"""

PICTURE_PADDING = {"left": 28, "right": 28, "top": 8, "bottom": 8}
"""Pixels around a file's chart: for a label of 260 pixels that is shown a tenth wider."""

LINEAR_BELOW = 3.0
"""Per cent: an axis that ends below is linear."""

_LINEAR = 0.5
"""Per cent, below which an axis of per cent above something is linear."""

_ABOVE = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000)

SHAPES = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "triangle-down",
    "triangle-left",
    "triangle-right",
)
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3], [10, 4], [1, 3], [4, 2, 1, 2], [12, 3, 3, 3])

# Okabe and Ito's colours, which the colour-blind tell apart: darker for light pages, and lighter.
LIGHT_COLOURS = ("#0072b2", "#b26a00", "#00805d", "#a83279", "#6b6400", "#c4420e", "#4d5761")
DARK_COLOURS = ("#56b4e9", "#f0a030", "#3fc79a", "#e28fc0", "#f0e442", "#ff8a5c", "#c3ccd6")

# ------------------------------------------------------------------ libraries, themes and files


def altair() -> Any:
    """Return the module of Altair; raises InvalidInput where the extra is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            f"{error.name} is not installed, which draws the charts: pip install "
            "'.[report]' in the checkout"
        ) from None
    return altair


def script() -> str:
    """Return the JavaScript that draws charts, all of it, for a page that opens offline."""
    altair()
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


LIGHT_HEAT = ("#fff3e4", "#fdc98f", "#f2a65a")
DARK_HEAT = ("#2a1e14", "#553313", "#834b10")
"""Cells of a heat map, from the least value to the greatest: the text on each is told apart."""


_LEGEND = {
    "orient": "bottom",
    "columns": 3,
    "columnPadding": 24,
    "labelLimit": 300,
    "symbolSize": 70,
    "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 4}},
}


def theme(*, dark: bool, font: str = PAGE_FONT) -> Row:
    """Return Vega-Lite's config for a light or a dark page."""
    text, quiet, grid = (
        ("#e6edf3", "#9da7b3", "#30363d") if dark else ("#1f2328", "#59636e", "#d8dee4")
    )
    colours = DARK_COLOURS if dark else LIGHT_COLOURS
    labels = {"labelColor": quiet, "titleColor": text, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent" if dark else "white",
        "font": font,
        "view": {"stroke": grid},
        "mark": {"aria": False},  # a chart is read as its description and its table, not by points
        "axis": {
            **labels,
            "gridColor": grid,
            "domainColor": quiet,
            "tickColor": quiet,
            "titleFontWeight": "normal",
            "labelLimit": 260,
            "labelSeparation": LABEL_SEPARATION,
        },
        "legend": {**labels, **_LEGEND},
        "header": labels,
        "title": {"color": text, "fontSize": 13, "anchor": "start", "subtitleColor": quiet},
        "text": {"color": text, "fontSize": 12},
        "point": {"filled": False, "strokeWidth": 1.6, "size": 45, "color": colours[0]},
        "line": {"strokeWidth": 2, "color": colours[0]},
        "bar": {"color": colours[0]},
        "rule": {"color": quiet},
        "area": {"color": colours[1]},
        "rect": {"stroke": grid},
        "style": {"limit": {"stroke": text, "strokeDash": [5, 3], "strokeWidth": 1.2}},
        "range": {
            "category": [*colours, "#8a6fe8"],
            "heatmap": list(DARK_HEAT if dark else LIGHT_HEAT),
        },
    }


_REMEDY = "name another --plot"

_CREATOR = (
    '<metadata><dc:creator xmlns:dc="http://purl.org/dc/elements/1.1/">'
    f"{MADE_BY}</dc:creator></metadata>"
)
"""The mark in an SVG, after its first tag."""


def check_plot(path: Path | None) -> None:
    """Raise InvalidInput where no picture can be written to `path`: before anything is measured.

    A file that is there is replaced only if it is a picture that this program drew.
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"plot is {str(path)!r}; name a FILE.svg or a FILE.png")
    check_replaceable(path, PICTURE, _REMEDY)
    altair()


def write_chart(chart: Chart, path: Path) -> None:
    """Write a chart as SVG or PNG, by the name's end, on white. Raises InvalidInput."""
    import vl_convert

    spec, config = chart.to_dict(), theme(dark=False, font=PICTURE_FONT)
    config["padding"] = PICTURE_PADDING
    if path.suffix == ".svg":
        svg: str = vl_convert.vegalite_to_svg(spec, config=config)
        write_file(path, svg.replace(">", f">{_CREATOR}", 1), _REMEDY)
    else:
        png = vl_convert.vegalite_to_png(spec, config=config, scale=PIXELS)
        write_file(path, png, _REMEDY)


# ------------------------------------------------------------------ axes


DIGITS = 6
"""Significant digits of a drawn value: more cannot be seen, and a page has thousands of values."""


def _data(rows: Iterable[Row]) -> Any:
    """Return rows as Altair keeps them: once in a chart, however many of its parts draw them."""
    drawn = ({name: _rounded(value) for name, value in row.items()} for row in rows)
    return altair().InlineData(values=list(drawn))


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _powers(**more: Any) -> Any:
    """Return an axis of columns or rows, with a label at each power of four."""
    return altair().Axis(format="d", labelOverlap=True, values=[4**n for n in range(12)], **more)


def _above(field: str, title: str, channel: str = "x", **more: Any) -> Any:
    """Return an axis of per cent above something: logarithmic, but linear below 0.5 %.

    So 0 can be drawn, and the last per cent, where it is decided, takes as much room as the first
    hundred.
    """
    alt = altair()
    made = alt.X if channel == "x" else alt.Y
    scale = alt.Scale(type="symlog", constant=_LINEAR, nice=False, **more)
    axis = alt.Axis(values=list(_ABOVE), title=title, format=".1~f", labelOverlap="greedy")
    return made(f"{field}:Q", scale=scale, axis=axis)


TICK_STEP = 90
"""Pixels from one number of a linear axis to the next, about."""

LABEL_SEPARATION = 8
"""Pixels between two numbers of an axis at least: of those that come nearer, some are left out."""

LABEL_LINE = 24
"""Characters of another label on one line where the window is narrow."""

NARROW_LINE = 16
"""Pixels that a row is high there for each line of the longest label."""

HALF_LINE = 6.5
"""Pixels: Vega centres the first line of a label on its row, and not all of its lines."""


def _linear(most: int = 99, fit: str = f"ceil(width / {TICK_STEP})", **more: Any) -> Any:
    """Return an axis of about `most` round numbers, or as few as have room for their labels."""
    return altair().Axis(tickCount={"expr": f"min({most}, {fit})"}, **more)


def _on_lines(when: str = "true") -> Any:
    """Return an axis whose labels stand on the lines of `_lines`, where `when` holds.

    `when` is an expression of Vega's.
    """
    return altair().Axis(
        labelExpr=f"{when} ? lines[datum.label] : datum.label",
        labelOffset={"expr": f"{when} ? -{HALF_LINE} * (lines[datum.value].length - 1) : 0"},
    )


def _lines(labels: Iterable[str], most: int) -> Any:
    """Return a parameter of a chart: each label, on lines of at most `most` characters."""
    value = {label: wrap(label, most) or [label] for label in labels}
    return altair().param(name="lines", value=value)


def _labelled(chart: Chart, rows: Sequence[Row], step: int) -> Chart:
    """Return a chart with a row for each label, whose `narrow` a page sets in a narrow window."""
    alt, labels = altair(), [row["label"] for row in rows]
    narrow = alt.param(name="narrow", value=False)
    made = chart.add_params(narrow, _lines(labels, LABEL_LINE))
    if max(map(len, labels)) > LABEL_LINE:
        lines = max(len(wrap(label, LABEL_LINE)) for label in labels)
        made = made.properties(usermeta={"narrowStep": NARROW_LINE * lines})
    return made.properties(width=PLOT_WIDTH, height=alt.Step(step))


def _room_beside(rows: Sequence[Row]) -> int:
    """Return pixels in which what rows tell has room beside their marks, 8 of them between the two.

    A digit of 12 pixels is 7.6 pixels wide in DejaVu Sans and in Verdana, the widest of the common
    fonts, and most letters are narrower.
    """
    return 8 + 8 * max(len(row["told"]) for row in rows)


def _shape(field: str, names: Sequence[str], legend: Any = None) -> Any:
    """Return the shape of each name's points, in the order of the names."""
    return _marks("Shape", field, names, legend or altair().Legend(title=None), range=SHAPES)


def _line_marks(field: str, names: Sequence[str], legend: Any) -> Row:
    """Return the dashes and the colour of each name's line."""
    dashes = _marks("StrokeDash", field, names, legend, range=DASHES)
    return {"strokeDash": dashes, "color": _marks("Color", field, names, legend)}


def _marks(channel: str, field: str, names: Sequence[str], legend: Any, **range_: Any) -> Any:
    """Return a channel that has a mark for each name: those of a range, again and again."""
    made = {key: list(islice(cycle(marks), len(names))) for key, marks in range_.items()}
    scale = altair().Scale(domain=list(names), **made)
    return getattr(altair(), channel)(f"{field}:N", scale=scale, legend=legend)


def _names(rows: Iterable[Row], field: str) -> list[str]:
    """Return each value of a field once, in the order of the rows."""
    return list(dict.fromkeys(row[field] for row in rows))


def _present(names: Sequence[str], rows: Iterable[Row], field: str) -> list[str]:
    """Return those of the names that a field of the rows has, in the order of the names."""
    found = {row[field] for row in rows}
    return [name for name in names if name in found]


def _told(**fields: str) -> list[Any]:
    """Return a tooltip of fields and their titles; `=` before a title marks a field of words."""
    return [
        altair().Tooltip(f"{field}:{'N' if title[0] == '=' else 'Q'}", title=title.lstrip("="))
        for field, title in fields.items()
    ]


# ------------------------------------------------------------------ a study


def kernels_chart(
    kernels: Sequence[Row],
    near: dict[int, int],
    best: Sequence[Row],
    limit: str,
    families: Sequence[str],
    title: str = "",
) -> Chart:
    """Draw every kernel in the order of the search, and by rank; a brush links the two.

    The two stand side by side where there is room. One with a title is for a file, where nothing
    can be brushed, and has them below one another. The page's parameter `within` selects, if it is
    not negative, the kernels that are at most so many per cent above the best, in place of the
    brush.

    `kernels` have rank, trial, time_us, above_best and above_limit in per cent, what, kind, and
    family, which is one of `families`. `near` counts the kernels that are within so many per cent
    of the best, of all. `best` has the trials at which the best so far changed, and above_limit.
    """
    alt = altair()
    brush = alt.selection_interval(name="brush", encodings=["x"])
    # At most one number a kernel, since `tickMinStep` leaves halves; the width is not known here.
    most = {field: max(row[field] for row in kernels) for field in ("trial", "rank")}
    whole = {field: _linear(last or 1, "6") for field, last in most.items()}
    points = alt.Chart(_data(kernels)).mark_point()
    chosen = _chosen(kernels, families)
    search = points.encode(
        x=alt.X("trial:Q", title="trial, in the order of the search", axis=whole["trial"]),
        y=_above("above_limit", f"% above {limit}'s time", "y"),
        **chosen,
    )
    stairs = alt.Chart(_data(best)).mark_line(interpolate="step-after", strokeWidth=1.5)
    search += stairs.encode(x="trial:Q", y="above_limit:Q")
    by = "rank by first times" + ("" if title else ": drag here to select kernels")
    curve = points.encode(
        x=alt.X("rank:Q", title=by, axis=whole["rank"]),
        y=_above("above_best", "% above the best", "y"),
        **chosen,
    ).add_params(brush)
    # A text stands where the curve is below its line, or else where it is far above.
    ends = {at: "left" if n > most["rank"] / 3 else "right" for at, n in near.items()}
    limits = [{"at": at, "text": f"{n} within {at} %", "end": ends[at]} for at, n in near.items()]
    size = {"width": PLOT_WIDTH, "height": 230}
    found = (search + _limits([{"at": 0, "text": limit, "end": "right"}])).properties(
        **size, title="Every kernel, and the best so far"
    )
    ranked = (curve + _limits(limits)).properties(**size, title="The same kernels, the best first")
    within = alt.param(name="within", value=-1)
    both = alt.concat(found, ranked, columns=1 if title else 2).add_params(within)
    return both.properties(title=title) if title else both.properties(usermeta={"across": 2})


def _chosen(kernels: Sequence[Row], families: Sequence[str]) -> Row:
    """Return how kernels are marked: those that are selected, kinds and families."""
    alt = altair()
    brushed = {"and": [{"param": "brush"}, "within < 0"]}
    test = {"or": [brushed, "within >= 0 && datum.above_best <= within"]}
    legend = alt.Legend(title=None, columns=2, values=_present(families, kernels, "family"))
    return {
        "opacity": alt.OpacityValue(0.2, condition={"test": test, "value": 1}),
        "size": alt.SizeValue(20, condition={"test": test, "value": 45}),
        "shape": _shape("kind", ["other kernel", "tie", "the best"]),
        "color": _marks("Color", "family", families, legend),
        "tooltip": _told(
            trial="trial",
            time_us="µs",
            above_best="% above the best",
            family="=family",
            what="=config",
        ),
    }


def _limits(rows: Sequence[Row]) -> Chart:
    """Draw lines across a chart. Rows have `at`, on the vertical axis, a text and its `end`."""
    alt = altair()
    drawn = alt.Chart(_data(rows)).mark_rule(style="limit").encode(y="at:Q")
    for end, x, dx in (("left", 0, 4), ("right", "width", -4)):
        if own := [row for row in rows if row["end"] == end]:
            text = alt.Chart(_data(own)).mark_text(align=end, dx=dx, dy=-7, baseline="middle")
            drawn += text.encode(x=alt.value(x), y="at:Q", text="text:N")
    return drawn


def _limit(channel: str, at: float) -> Chart:
    """Draw a line without a text at a place of an axis, as that of the limit."""
    rule = altair().Chart(_data([{"at": at}])).mark_rule(style="limit")
    return rule.encode(**{channel: "at:Q"})


def _by_label(rows: Sequence[Row]) -> Chart:
    """Return a chart without marks, in which each label has a line, in the order of the rows."""
    labels, axis = [row["label"] for row in rows], _on_lines("narrow")
    y = altair().Y("label:N", sort=labels, title=None, axis=axis)
    return altair().Chart(_data(rows)).encode(y=y)


def intervals_chart(rows: Sequence[Row], title: str, noise: float | None = None) -> Chart:
    """Draw a value with its interval for each label; shapes tell the kinds apart.

    Rows have label, value, low, high in per cent, and kind. `noise` is drawn as a band around 0.
    """
    alt, base, kinds = altair(), _by_label(rows), _names(rows, "kind")
    small = max(max(abs(row["low"]), abs(row["high"])) for row in rows) < LINEAR_BELOW
    linear = alt.X("value:Q", title=title, axis=_linear())
    value = linear if small else _above("value", title)
    whole = [
        base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        base.mark_point(size=70).encode(
            x=value,
            shape=_shape("kind", kinds),
            tooltip=_told(label="=", value="%", low="lower end, %", high="upper end, %"),
        ),
        _limit("x", 0),
    ]
    if noise is not None:
        band = alt.Chart(_data([{"low": -noise, "high": noise}])).mark_rect(opacity=0.15)
        whole.insert(0, band.encode(x="low:Q", x2="high:Q"))
    return _labelled(alt.layer(*whole), rows, 22)


TALL = 15
"""Rows of a chart whose axis is at its top, since its end is out of sight."""


def above_chart(
    rows: Sequence[Row], title: str, *, step: int = 20, kinds: Sequence[str] = ()
) -> Chart:
    """Draw a bar in per cent above something for each label, and what `told` says beside it.

    Rows have label, value, told and kind. The `kinds`, by default those of the rows, have colours,
    and shapes at the ends of their bars.
    """
    alt, kinds = altair(), kinds or _names(rows, "kind")
    base = _by_label([{**row, "zero": 0} for row in rows])
    values = [row["value"] for row in rows]
    low, high = min([0, *values]), max([0, *values])
    end = {"expr": _end_that_leaves(_room_beside(rows), low, high)}
    value = _above("value", title, domainMin=low, domainMax=end)
    if len(rows) > TALL:
        value["axis"]["orient"] = "top"
    colour, shape = {}, {}
    if len(present := _present(kinds, rows, "kind")) > 1:
        legend = alt.Legend(title=None, values=present, columns=2)
        colour = {"color": _marks("Color", "kind", kinds, legend)}
        shape = {"shape": _shape("kind", kinds, legend)}
    bars = base.mark_bar(height=10, opacity=0.55).encode(x="zero:Q", x2="value:Q", **colour)
    heads = base.mark_point(size=50, filled=True).encode(
        x=value, tooltip=_told(label="=", told="=", kind="="), **colour, **shape
    )
    texts = _by_label(rows).mark_text(align="left", dx=8).encode(x="value:Q", text="told:N")
    return _labelled(bars + heads + texts + _limit("x", 0), rows, step)


def _share_left(room: int) -> str:
    """Return the share of an axis that is left beside `room` pixels: an expression of Vega's.

    It knows the axis's width, which a page chooses. At least a quarter is left.
    """
    return f"max(0.25, 1 - {room} / width)"


def _end_that_leaves(room: int, low: float, high: float) -> str:
    """Return the end of an axis of `_above` that leaves `room` pixels right of `high`."""

    def place(above: float) -> float:
        return copysign(log1p(abs(above) / _LINEAR), above)

    first, last = place(low), place(high) or place(1)
    return f"{_LINEAR} * (exp({first:.6f} + {last - first:.6f} / {_share_left(room)}) - 1)"


def bars_chart(rows: Sequence[Row], title: str) -> Chart:
    """Draw a bar of `value` for each label, with `told` at its end."""
    alt = altair()
    labels = [row["label"] for row in rows]
    most = max(row["value"] for row in rows) or 1
    whole = all(isinstance(row["value"], int) for row in rows)
    base = alt.Chart(_data(rows)).encode(
        y=alt.Y("label:N", sort=labels, title=None),
        x=alt.X(
            "value:Q",
            title=title,
            scale=alt.Scale(
                domainMin=0, domainMax={"expr": f"{most} / {_share_left(_room_beside(rows))}"}
            ),
            axis=_linear(most if whole else 99, format=",.2~f"),
        ),
    )
    text = base.mark_text(align="left", dx=5).encode(text="told:N")
    return (base.mark_bar(height=14) + text).properties(width=PLOT_WIDTH, height=alt.Step(24))


def front_chart(rows: Sequence[Row]) -> Chart:
    """Draw kernels by time and error; those that none is both faster and more exact than, joined.

    Rows have above_best in per cent, ulp, kind (`front` or `other kernel`) and what.
    """
    alt, above = altair(), [row["above_best"] for row in rows]
    base = alt.Chart(_data(rows)).encode(
        x=_above("above_best", "% above the fastest", domainMax=max([1, *above])),
        y=alt.Y("ulp:Q", title="largest error, ulp", scale=alt.Scale(zero=False)),
    )
    points = base.mark_point().encode(
        shape=_shape("kind", ["other kernel", "front"]),
        opacity=alt.condition("datum.kind == 'front'", alt.value(1), alt.value(0.4)),
        tooltip=_told(above_best="% above the fastest", ulp="ulp", what="=config"),
    )
    front = base.transform_filter("datum.kind == 'front'").mark_line(interpolate="step-after")
    return (front + points).properties(width=PLOT_WIDTH, height=280)


def roofline_chart(points: Sequence[Row], roofs: Sequence[Row], issue_gips: float) -> Chart:
    """Draw kernels below what the memory and the schedulers of a GPU allow, on two logarithms.

    Across are the instructions of warps for each byte, upwards those a second, in 1e9. `points`
    have intensity, gips and who. `roofs` are bandwidths: line, and gbps in 1e9 bytes a second;
    `issue_gips` is the rate at which all schedulers issue.
    """
    alt = altair()
    lowest = min(0.01, *(point["intensity"] / 4 for point in points))
    edges = [
        {"intensity": x, "gips": min(issue_gips, x * roof["gbps"]), "line": roof["line"]}
        for roof in roofs
        for x in (lowest, issue_gips / roof["gbps"], 4.0)
    ]
    names = _names(roofs, "line")
    legend = alt.Legend(title=None, symbolSize=400, symbolType="stroke", columns=1)
    log = {"type": "log", "nice": False}
    axis = alt.Axis(format="~g", tickCount=4)
    lines = alt.Chart(_data(edges)).mark_line()
    lines = lines.encode(
        x=alt.X(
            "intensity:Q",
            title="warp instructions for each byte",
            scale=alt.Scale(domain=[lowest, 4.0], **log),
            axis=axis,
        ),
        y=alt.Y(
            "gips:Q", title="10⁹ warp instructions a second", scale=alt.Scale(**log), axis=axis
        ),
        **_line_marks("line", names, legend),
    )
    marks = alt.Chart(_data(points)).encode(x="intensity:Q", y="gips:Q")
    marks_and_names = marks.mark_point(size=110, filled=True).encode(
        tooltip=_told(who="=", gips="10⁹ instructions a second", intensity="instructions a byte")
    ) + marks.mark_text(align="left", dx=10, dy=12).encode(text="who:N")
    return (lines + marks_and_names).properties(width=PLOT_WIDTH, height=260)


# ------------------------------------------------------------------ several problems


def stacked(parts: Sequence[Chart]) -> Chart:
    """Return charts below one another, each with axes and a legend of its own."""
    alt = altair()
    return alt.vconcat(*parts).resolve_scale(
        x="independent", color="independent", shape="independent", strokeDash="independent"
    )


def is_curve(rows: Iterable[Row]) -> bool:
    """Return whether a line joins the large ones: no library has two at one number of columns."""
    places = [(row["cols"], row["who"]) for row in rows if row["is_large"]]
    return bool(places) and len(set(places)) == len(places)


def shares_chart(
    rows: Sequence[Row], title: str, names: Sequence[str], limit: str, across: str, ours: str = ""
) -> Chart:
    """Draw each library's share of the limit's speed over columns, or what they are called.

    Rows have cols, share in per cent, who, problem, and is_large: a line joins the large ones where
    `is_curve`, and the others are faint. `names` are the libraries of all charts of a page, so that
    each has one mark in all of them. Those other than `ours`, where it is given, are thin and pale.
    """
    alt = altair()
    legend = alt.Legend(title=None, symbolSize=90, columns=3, values=_present(names, rows, "who"))
    is_ours = f"datum.who == '{ours}'" if ours else "true"
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "cols:Q",
            title=across,
            scale=alt.Scale(type="log", base=2, nice=False),
            axis=_powers(),
        ),
        y=alt.Y("share:Q", title=f"% of {limit}'s speed", scale=alt.Scale(zero=True)),
        color=_marks("Color", "who", names, legend),
    )
    lines = base.transform_filter("datum.is_large").mark_line()
    lines = lines.encode(
        strokeWidth=alt.condition(is_ours, alt.value(3.5), alt.value(1.1)),
        opacity=alt.condition(is_ours, alt.value(1), alt.value(0.7)),
    )
    is_any_large = any(row["is_large"] for row in rows)
    pale = {"test": "!datum.is_large" if is_any_large else "false", "value": 0.3}
    full = {"test": is_ours, "value": 1}
    points = base.mark_point().encode(
        shape=_shape("who", names, legend),
        opacity=alt.OpacityValue(0.6, condition=[pale, full]),
        size=alt.condition(f"datum.is_large && {is_ours}", alt.value(60), alt.value(22)),
        tooltip=_told(who="=", problem="=problem", share=f"% of {limit}"),
    )
    # Vega warns of lines that join nothing.
    parts = [lines] * is_curve(rows) + [points, _limit("y", 100)]
    return alt.layer(*parts).properties(width=PLOT_WIDTH, height=320, title=title)


def map_chart(rows: Sequence[Row], title: str, names: Sequence[str]) -> Chart:
    """Draw which family is the fastest at which rows and columns. Rows have cols, rows, family.

    `names` are all families, so that each has one mark in all charts; the legend has those drawn.
    """
    alt = altair()
    padding = 10
    across = _powers(labelFlush=padding)  # else the last label is cut in a narrow window
    scale = alt.Scale(type="log", base=2, nice=False, padding=padding)
    legend = alt.Legend(title=None, columns=2, values=_present(names, rows, "family"))
    return (
        alt.Chart(_data(rows))
        .mark_point(size=60)
        .encode(
            x=alt.X("cols:Q", title="columns", scale=scale, axis=across),
            y=alt.Y("rows:Q", title="rows", scale=scale, axis=_powers()),
            shape=_shape("family", names, legend),
            color=_marks("Color", "family", names, legend),
            tooltip=_told(rows="=rows", cols="=columns", family="=kernel", told="="),
        )
        .properties(width=PLOT_WIDTH, height=300, title=title)
    )


CELL = 34
"""Pixels that a cell of `matrix_chart` is wide at least: seven of them fit on a telephone."""

CELL_HEIGHT = 40
"""Pixels: for a label on three lines."""

CELL_LINE = 16
"""Characters of a label of `matrix_chart` on one line."""


def matrix_chart(
    rows: Sequence[Row], across: str, title: Sequence[str], names: Sequence[str]
) -> Chart:
    """Draw a value of each pair of labels as a cell with its figure.

    Rows have x, y, value in per cent, its figure, and told. Cells of greater values stand out more.
    The x are in the order of the rows, and the y in that of the names.
    """
    alt = altair()
    xs, ys = _names(rows, "x"), _present(names, rows, "y")
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("x:N", sort=xs, title=across, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y("y:N", sort=ys, title=None, axis=_on_lines()),
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "value:Q",
            scale=alt.Scale(type="symlog", constant=1, domainMin=0),
            legend=None,
        ),
        tooltip=_told(x="=", y="=", told="="),
    )
    whole = cells + base.mark_text(fontSize=11).encode(text="figure:N")
    return whole.add_params(_lines(ys, CELL_LINE)).properties(
        width=PLOT_WIDTH,
        height=alt.Step(CELL_HEIGHT),
        title=list(title),
        usermeta={"leastWidth": CELL * len(xs)},
    )
