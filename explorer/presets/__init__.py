"""Published kernels as named points of the space."""

from explorer.presets.preset import Preset, Source
from explorer.presets.registry import PRESETS, find_preset
from explorer.presets.reported import REPORTED, ReportedRatio

__all__ = ["PRESETS", "REPORTED", "Preset", "ReportedRatio", "Source", "find_preset"]
