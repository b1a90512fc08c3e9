"""What commands print from kept data, at the widths that terminals have.

Nothing is cut, and no word is broken that a line can hold.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from by_hand import SHAPE
from rich.cells import cell_len

from explorer.report.table import LONGEST_WORD
from explorer.space.space import Count

pytestmark = pytest.mark.exhaustive

STUDIES = Path(__file__).resolve().parents[2] / "studies"
WIDTHS = (60, 80, 120, 200)
WIDE = 1000

COMMANDS = {
    "show": ("show", *SHAPE),
    "studies": ("studies",),
    "space": ("space", "--cols", "4096"),
    "presets": ("presets", "--cols", "4096"),
    "recordings": ("recordings",),
    "guide": ("guide",),
    "compare": ("compare", "--from", STUDIES / "results" / "compare-h200-bf16.json"),
    "journey": ("journey", "--from", STUDIES / "results" / "journey-h200-f32-4096.json"),
    "table": ("table", "show", STUDIES / "tuned" / "held-out" / "nvidia-h200.json"),
    "profile": ("profile", "heuristic", "--cols", "512", "--rows", "64"),
}


def words(text, name):
    """Return the words of a text that a line holds, and how often each stands there.

    Of `show` the numbers with a fraction alone: with less room it tells fewer differences.
    """
    found = (word for line in text.splitlines() for word in line.split())
    pattern = r"[0-9]+\.[0-9]+" if name == "show" else f".{{1,{LONGEST_WORD}}}"
    return Counter(word for word in found if re.fullmatch(pattern, word))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_cut(explorer, searched, monkeypatch, name):
    counts = {"excluded_share": 0.123, "legal_count": Count(123_456, 0.1)}  # they take 2 s
    for counted, answer in counts.items():
        monkeypatch.setattr(f"explorer.space.Space.{counted}", lambda *_, answer=answer: answer)

    def printed(width):
        monkeypatch.setenv("COLUMNS", str(width))
        ran = explorer(*COMMANDS[name])
        assert ran.code == 0, ran.err
        return ran.out

    whole = printed(WIDE)
    for width in WIDTHS:
        text = printed(width)
        lines = [line for line in text.splitlines() if not line.startswith("explorer ")]
        assert max(map(cell_len, lines)) <= width
        assert text.count("…") == whole.count("…")
        missing = words(whole, name) - words(text, name)
        assert not missing, (width, missing)
