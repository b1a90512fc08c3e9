"""Published kernels as named points of the space; what publications report of some."""

from dataclasses import dataclass
from difflib import get_close_matches

from explorer.model.errors import InvalidInput
from explorer.presets import aitemplate, fast_softmax, llm_c, oneflow, pytorch, survey, triton
from explorer.presets.preset import Preset, Source

__all__ = [
    "PRESETS",
    "PRESET_NAMES",
    "REPORTED",
    "Preset",
    "ReportedRatio",
    "Source",
    "find_preset",
]

PRESETS: tuple[Preset, ...] = (
    *survey.PRESETS,
    *llm_c.PRESETS,
    *fast_softmax.PRESETS,
    *aitemplate.PRESETS,
    *oneflow.PRESETS,
    *pytorch.PRESETS,
    *triton.PRESETS,
)
"""Every published kernel that the space holds, the simplest first."""

_BY_NAME = {name: preset for preset in PRESETS for name in (preset.name, *preset.other_names)}

PRESET_NAMES = tuple(_BY_NAME)
"""Their names, and the other names by which some of them are known."""


def find_preset(name: str) -> Preset:
    """The preset of that name, or of that other name; raises InvalidInput."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = get_close_matches(name, _BY_NAME, n=3)
    but = f", but {', '.join(near)} {'is' if len(near) == 1 else 'are'}" if near else ""
    raise InvalidInput(f"preset '{name}' is not known{but}; explorer presets lists them all")


# ------------------------------------------------------------------ ratios that publications report


@dataclass(frozen=True, slots=True)
class ReportedRatio:
    """How many times as fast one preset was as another, where it was published."""

    slower: str
    faster: str
    low: float
    high: float
    """Greater than `low` where several shapes were measured."""
    where: str
    """Shapes, dtype and GPU."""
    publication: str


_T4 = "f16 kernels of one thread a row"

REPORTED = (
    ReportedRatio("unfused", "thread-per-row", 1.58, 1.58, "f16 32x4096, Tesla T4", _T4),
    ReportedRatio(
        "unfused",
        "thread-per-row-online",
        1.86,
        1.97,
        "f16, 32 and 64 rows x 512 to 8192, Tesla T4",
        _T4,
    ),
    ReportedRatio(
        "thread-per-row", "thread-per-row-online", 1.19, 1.19, "f16 32x4096, Tesla T4", _T4
    ),
    ReportedRatio(
        "llm.c-8",
        "llm.c-9",
        1.10,
        1.10,
        "f32 8192x50257, RTX 4060 Laptop",
        "llm.c pull request 841",
    ),
)
"""Computed from the published times: 1.063, 0.672 and 0.567 ms; 22.82 and 20.76 ms."""
