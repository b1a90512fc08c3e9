"""A journey as a picture: a bar a kernel, as long as the logarithm of its time, in plain SVG."""

import math
from html import escape

from explorer.report.figures import microseconds, percent, share_of_copy
from explorer.tuning.journey_results import Journey, Step

WIDTH = 860
ROW = 22
LABELS = 230
FIGURES = 190
TOP = 64
BOTTOM = 40
BARS = WIDTH - LABELS - FIGURES

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 16px; font-weight: 600; }
  .quiet { fill: #6e7781; font-size: 12px; }
  .bar { fill: #8c959f; }
  .best { fill: #1a7f37; }
  .axis { stroke: #d0d7de; }
  .copy { stroke: #cf222e; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet { fill: #8d96a0; }
    .bar { fill: #6e7681; }
    .best { fill: #3fb950; }
    .axis { stroke: #30363d; }
    .copy { stroke: #ff7b72; }
  }
"""


def journey_svg(journey: Journey) -> str:
    """The whole file; it reads on a light and on a dark page."""
    scale = _Scale(journey)
    height = TOP + ROW * len(journey.steps) + BOTTOM
    rows = (_row(journey, scale, index, step) for index, step in enumerate(journey.steps))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(f'Softmax kernels, {journey.problem}')}</title>",
        f"<style>{_STYLE}</style>",
        _text(12, 24, str(journey.problem), "title"),
        _text(12, 44, _subtitle(journey), "quiet"),
        *_axis(scale, height),
        *(line for row in rows for line in row),
        *_copy(journey, scale, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Scale:
    """Microseconds to horizontal places, from a little below the fastest to the slowest."""

    def __init__(self, journey: Journey) -> None:
        times = [step.time_us for step in journey.steps]
        times += [journey.copy_time_us] if journey.copy_us else []
        self.low = math.log10(min(times)) - 0.1
        self.high = math.log10(max(times)) + 0.02

    def place(self, time_us: float) -> float:
        """The place of a time, in pixels from the left."""
        share = (math.log10(time_us) - self.low) / (self.high - self.low)
        return LABELS + share * BARS

    def ticks(self) -> list[float]:
        """Round times within the scale: 1, 2 and 5 of each power of ten."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        round_times = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [us for us in round_times if self.low <= math.log10(us) <= self.high]


def _row(journey: Journey, scale: _Scale, index: int, step: Step) -> list[str]:
    y = TOP + ROW * index
    right = scale.place(step.time_us)
    share = share_of_copy(step.time_us, journey.copy_time_us)
    told = f"{microseconds(step.time_us)} µs"
    told += f" · {percent(share)} of copy" if share is not None else ""
    kind = "best" if step.is_best else "bar"
    return [
        _text(LABELS - 8, y + 15, step.name, "", "end"),
        f'<rect class="{kind}" x="{LABELS}" y="{y + 4}" width="{right - LABELS:.1f}" '
        f'height="{ROW - 8}" rx="2"/>',
        _text(WIDTH - FIGURES + 12, y + 15, told, "quiet"),
    ]


def _axis(scale: _Scale, height: int) -> list[str]:
    bottom = height - BOTTOM + 4
    lines = []
    for time_us in scale.ticks():
        x = scale.place(time_us)
        lines.append(f'<path class="axis" d="M{x:.1f} {TOP}V{bottom}"/>')
        lines.append(_text(x, bottom + 16, f"{time_us:g}", "quiet", "middle"))
    lines.append(_text(WIDTH - FIGURES + 12, bottom + 16, "µs, logarithmic", "quiet"))
    return lines


def _copy(journey: Journey, scale: _Scale, height: int) -> list[str]:
    if not journey.copy_us:
        return []
    x = scale.place(journey.copy_time_us)
    return [
        f'<path class="copy" d="M{x:.1f} {TOP - 4}V{height - BOTTOM + 4}"/>',
        _text(x, TOP - 8, f"copy {microseconds(journey.copy_time_us)}", "quiet", "middle"),
    ]


def _subtitle(journey: Journey) -> str:
    c = journey.circumstances
    return f"{c.gpu}, driver {c.driver}, NVRTC {c.nvrtc}, {c.timing} L2, {c.date[:10]}"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
