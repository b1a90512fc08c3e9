"""The README's pictures: bars of medians beside other libraries, the report, and a race found."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import NamedTuple

from explorer.model.outcome import Environment
from explorer.model.tuned_table import TunedProblem
from explorer.tuning.peer_comparison import PeerRun

WIDTH, PANELS = 860, 3
"""Pixels of the picture, and panels side by side."""

LEFT, BAR, STEP, TITLE, TOP = 118, 15, 22, 40, 60
"""Pixels: of labels, of a bar, from a bar to the next, of a panel's title, above all panels."""

MOST = 2.5
"""Where the axis ends; a bar that goes on has an arrow at its end."""

LABELS = {
    "torch": "PyTorch",
    "torch-sdpa": "PyTorch SDPA",
    "torch-compile": "torch.compile",
    "triton-tuned": "Triton, tuned",
    "fa3": "FlashAttention 3",
    "flashinfer": "FlashInfer",
    "quack": "QuACK",
    "liger": "Liger",
}
"""The libraries that are drawn."""

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 16px; font-weight: 600; }
  .quiet { fill: #6e7781; font-size: 12px; }
  .bar { fill: #8c959f; } .us { stroke: #0072b2; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet { fill: #8d96a0; }
    .bar { fill: #6e7681; } .us { stroke: #56b4e9; }
  }
"""


class Panel(NamedTuple):
    """Bars of one operator."""

    bars: dict[str, tuple[float, int]]
    """The median of each library's time over ours, and of how many problems it is."""
    problems: int
    """Those that a library computes beside ours."""

    @classmethod
    def of(cls, runs: Sequence[PeerRun]) -> "Panel":
        """Take what some comparisons have of each library."""
        found: dict[str, list[float]] = {name: [] for name in LABELS}
        compared = [one for run in runs for one in run.comparisons if one.peers]
        for one in compared:
            for peer in one.peers:
                found.get(peer.name, []).append(peer.time_us / one.time_us)
        bars = {name: (median(over), len(over)) for name, over in found.items() if over}
        return cls(bars, len(compared))

    @classmethod
    def of_table(cls, problems: Sequence[TunedProblem]) -> "Panel":
        """Take what a tuned table has of PyTorch."""
        over = [one.torch_over_best for one in problems if one.torch_over_best]
        return cls({"torch": (median(over), len(over))}, len(over))


def peers_svg(panels: Mapping[str, Panel], measured: Environment) -> str:
    """Return an SVG with a panel for each name: a bar a library, as long as its median.

    Raises ValueError where there is no panel.
    """
    if not panels:
        raise ValueError("there is no comparison to draw")
    rows = [[*panels.items()][at : at + PANELS] for at in range(0, len(panels), PANELS)]
    lines, y = [], TOP
    for row in rows:
        for at, (name, panel) in enumerate(row):
            lines += _panel(name, panel.bars, at * WIDTH / PANELS, y, panel.problems)
        y += TITLE + STEP * max(len(panel.bars) for _, panel in row) + 14
    chosen = "medians over problems chosen by hand, (19) is over 19"
    where = f"{measured.gpu}, {measured.timing} L2: {chosen}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'viewBox="0 0 {WIDTH} {y}" role="img">',
        "<title>Time of other libraries over the time of our kernels</title>",
        f"<style>{_STYLE}</style>",
        svg_text(12, 24, "How many times as long as our kernel others take", "title"),
        svg_text(12, 44, f"{where}, the line is ours, pointed bars are cut", "quiet"),
        *lines,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(
    name: str, bars: Mapping[str, tuple[float, int]], left: float, top: float, problems: int
) -> list[str]:
    start, room = left + LEFT, WIDTH / PANELS - LEFT - 84
    lines = [svg_text(left + 12, top + 20, f"{name} ({problems} problems)", "")]
    for place, (peer, (ratio, of)) in enumerate(bars.items()):
        y = top + TITLE - 8 + place * STEP
        end = start + room * min(ratio, MOST) / MOST
        tip = f"l6 {BAR / 2:.1f}l-6 {BAR / 2:.1f}" if ratio > MOST else f"v{BAR}"
        lines.append(svg_text(start - 6, y + 12, LABELS[peer], "quiet", "end"))
        lines.append(
            f'<path class="bar {peer}" d="M{start:.1f} {y:.1f}H{end:.1f}{tip}H{start:.1f}z"/>'
        )
        some = f" ({of})" if of < problems else ""
        text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
        lines.append(svg_text(end + 10, y + 12, f"{text} ×{some}", ""))
    one, bottom = start + room / MOST, top + TITLE - 12 + STEP * len(bars)
    lines.append(f'<path class="us" d="M{one:.1f} {top + TITLE - 12:.1f}V{bottom:.1f}"/>')
    return lines


def terminal_svg(command: str, printed: Sequence[str]) -> str:
    """Return an SVG of a terminal in which a command printed some lines."""
    lines = [f"$ {command}", *printed]
    height = 34 + 19 * len(lines)
    kinds = ["given", *("said" for _ in printed)]
    texts = (
        f'<text class="{kind}" x="16" y="{32 + 19 * at}">{escape(line)}</text>'
        for at, (kind, line) in enumerate(zip(kinds, lines, strict=True))
    )
    style = (
        "text { font: 13px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #c9d1d9; "
        "white-space: pre; } .given { fill: #79c0ff; }"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(command)}</title>'
        f"<style>{style}</style>"
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>'
        f"{''.join(texts)}</svg>\n"
    )


def write_report_picture(path: Path) -> None:
    """Write the report of a replayed search to the end of its first chart as a PNG, with Chromium.

    `python -c 'from tests.peer_picture import *; write_report_picture(REPORT)'` draws it anew.
    """
    import base64
    import contextlib
    import sys
    import tempfile

    sys.path[:0] = [str(ROOT / "tests" / "report")]
    from browser import Browser

    import explorer

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), Browser() as opened:
        Path("studies").mkdir()  # as in a checkout
        explorer.search(cols=4096, device="recorded:h200-f32-4096", trials=200)
        page = explorer.write_report(cols=4096).resolve()
        opened.open(page, width=1200, scheme="light")
        end = opened.run("document.querySelector('.chart').getBoundingClientRect().bottom")
        shown = {"x": 0, "y": 0, "width": 1200, "height": round(end) + 12, "scale": 1}
        shot = opened.call("Page.captureScreenshot", clip=shown, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "studies" / "results" / "report.png"


def svg_text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    """Return an SVG text of class `kind`, `anchor` of it at (x, y) in pixels."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
