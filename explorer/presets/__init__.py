"""Published kernels as named points of the space; what publications report of some."""

from explorer.presets.preset import Preset, Source
from explorer.presets.published import (
    PRESET_NAMES,
    PRESETS,
    REPORTED,
    ReportedRatio,
    find_preset,
)

__all__ = [
    "PRESETS",
    "PRESET_NAMES",
    "REPORTED",
    "Preset",
    "ReportedRatio",
    "Source",
    "find_preset",
]
