"""A picture of comparisons with other libraries: their times over ours, a panel for each type."""

import math
from collections.abc import Sequence
from html import escape

from explorer.tuning.peer_comparison import PeerComparison, PeerRun

WIDTH = 860
HEIGHT = 360
LEFT, RIGHT, TOP, BOTTOM = 46, 34, 92, 48
GAP = 36
"""Pixels between two panels. Like RIGHT they have room for half of a number of columns, which may
stand at the end of a panel's axis: eight digits take 61 pixels in the widest of common fonts."""

STYLES = {
    "torch": ("0", "circle"),
    "torch-compile": ("6 3", "square"),
    "triton-tuned": ("2 3", "diamond"),
    "quack": ("8 3 2 3", "cross"),
}
"""Dashes of a library's line and the shape of its points, so that it can be told without colour."""

LABELS = {
    "torch": "PyTorch, eager",
    "torch-compile": "torch.compile",
    "triton-tuned": "Triton, tuned",
    "quack": "QuACK",
}

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 16px; font-weight: 600; }
  .quiet { fill: #6e7781; font-size: 12px; }
  .axis { stroke: #d0d7de; fill: none; }
  .ours { stroke: #24292f; stroke-width: 2; }
  .line { fill: none; stroke-width: 1.5; }
  .torch { stroke: #cf222e; } .torch-compile { stroke: #9a6700; }
  .triton-tuned { stroke: #0969da; } .quack { stroke: #8250df; }
  .point { fill: none; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet { fill: #8d96a0; }
    .axis { stroke: #30363d; }
    .ours { stroke: #e6edf3; }
    .torch { stroke: #ff7b72; } .torch-compile { stroke: #d29922; }
    .triton-tuned { stroke: #58a6ff; } .quack { stroke: #bc8cff; }
  }
"""


def peers_svg(runs: Sequence[PeerRun]) -> str:
    """Return an SVG with a panel for each of `runs`: columns across, time over ours upwards.

    Both axes are logarithmic. Where several problems have the same number of columns, the line goes
    through the geometric mean of their ratios. Raises ValueError where there is no run.
    """
    if not runs:
        raise ValueError("there is no comparison to draw")
    scale = _Scale([one for run in runs for one in run.comparisons], len(runs))
    panels = (line for at, run in enumerate(runs) for line in _panel(run, at, scale))
    first = runs[0].comparisons[0].environment
    where = f"{first.gpu}, driver {first.driver}, {first.date[:10]}, {first.timing} L2"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Time of other libraries over the time of our softmax kernel</title>",
        f"<style>{_STYLE}</style>",
        svg_text(12, 24, "Time over the time of our kernel: above 1, ours is faster", "title"),
        svg_text(12, 44, where, "quiet"),
        *_legend(),
        *panels,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def ratios(run: PeerRun, peer: str) -> dict[int, float]:
    """Columns to the geometric mean of a peer's time over ours, by increasing columns."""
    found: dict[int, list[float]] = {}
    for one in run.comparisons:
        for timed in one.peers:
            if timed.name == peer:
                found.setdefault(one.problem.cols, []).append(math.log(timed.time_us / one.time_us))
    return {cols: math.exp(sum(logs) / len(logs)) for cols, logs in sorted(found.items())}


class _Scale:
    """Columns and ratios to places in pixels."""

    def __init__(self, comparisons: Sequence[PeerComparison], panels: int) -> None:
        cols = [one.problem.cols for one in comparisons]
        over = [
            peer.time_us / one.time_us
            for one in comparisons
            for peer in one.peers
            if peer.name in STYLES
        ]
        self._cols = math.log2(min(cols)), math.log2(max(cols))
        self.least, self.most = min([*over, 0.9]), max([*over, 2.0]) * 1.05
        self.width = (WIDTH - LEFT - RIGHT - (panels - 1) * GAP) / panels

    def left(self, panel: int) -> float:
        """Where a panel begins."""
        return LEFT + panel * (self.width + GAP)

    def x(self, panel: int, cols: int) -> float:
        """The place of a number of columns."""
        low, high = self._cols
        return self.left(panel) + (math.log2(cols) - low) / ((high - low) or 1) * self.width

    def y(self, ratio: float) -> float:
        """The place of a ratio."""
        share = math.log(ratio / self.least) / math.log(self.most / self.least)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def cols_ticks(self) -> list[int]:
        """Powers of sixteen within the scale: more would run into each other."""
        low, high = self._cols
        return [16**n for n in range(1, 8) if low <= 4 * n <= high]

    def ratio_ticks(self) -> list[float]:
        """Round ratios within the scale."""
        ticks = (0.5, 0.7, 1, 1.5, 2, 3, 5, 8, 12, 20, 50, 100)
        return [tick for tick in ticks if self.least <= tick <= self.most]


def _panel(run: PeerRun, at: int, scale: _Scale) -> list[str]:
    left, right = scale.left(at), scale.left(at) + scale.width
    bottom = HEIGHT - BOTTOM
    lines = [svg_text(left, TOP - 8, str(run.comparisons[0].problem.dtype), "")]
    for tick in scale.ratio_ticks():
        y, kind = scale.y(tick), "ours" if tick == 1 else "axis"
        lines.append(f'<path class="{kind}" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        if not at:
            lines.append(svg_text(left - 6, y + 4, f"{tick:g}", "quiet", "end"))
    for cols in scale.cols_ticks():
        x = scale.x(at, cols)
        lines.append(f'<path class="axis" d="M{x:.1f} {TOP}V{bottom}"/>')
        lines.append(svg_text(x, bottom + 16, f"{cols}", "quiet", "middle"))
    lines.append(svg_text((left + right) / 2, bottom + 34, "columns", "quiet", "middle"))
    for peer in STYLES:
        places = [(scale.x(at, c), scale.y(r)) for c, r in ratios(run, peer).items()]
        lines += _line(peer, places)
    return lines


def _line(peer: str, places: Sequence[tuple[float, float]]) -> list[str]:
    if not places:
        return []
    dashes, shape = STYLES[peer]
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return [
        f'<path class="line {peer}" stroke-dasharray="{dashes}" d="M{way}"/>',
        *(_point(peer, shape, x, y) for x, y in places),
    ]


def _point(peer: str, shape: str, x: float, y: float) -> str:
    ways = {
        "square": f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        "diamond": f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
        "cross": f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6",
    }
    if shape == "circle":
        return f'<circle class="point {peer}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    return f'<path class="point {peer}" d="{ways[shape]}"/>'


def _legend() -> list[str]:
    lines, x = [], float(LEFT)
    for peer, (dashes, shape) in STYLES.items():
        lines.append(
            f'<path class="line {peer}" stroke-dasharray="{dashes}" d="M{x:.1f} 62H{x + 30:.1f}"/>'
        )
        lines.append(_point(peer, shape, x + 15, 62))
        lines.append(svg_text(x + 38, 66, LABELS[peer], ""))
        x += 160
    return lines


def svg_text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    """Return an SVG text of class `kind`, `anchor` of it at (x, y) in pixels."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
