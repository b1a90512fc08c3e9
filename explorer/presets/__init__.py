"""Published kernels as named points of the space."""

from explorer.presets.preset import Preset, Source
from explorer.presets.registry import PRESETS, REPORTED, ReportedRatio, find_preset

__all__ = ["PRESETS", "REPORTED", "Preset", "ReportedRatio", "Source", "find_preset"]
