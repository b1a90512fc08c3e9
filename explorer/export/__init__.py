"""A kernel's source for a person or a program: choose the config, check it, write the file."""

from explorer.export.check import checked_config, compile_for
from explorer.export.choice import HEURISTIC, Choice, is_of_study, parse_choice
from explorer.export.destination import REMEDY, Written, default_path, write_source
from explorer.export.from_trial import variant_of
from explorer.export.verified import verify_variant

__all__ = [
    "HEURISTIC",
    "REMEDY",
    "Choice",
    "Written",
    "checked_config",
    "compile_for",
    "default_path",
    "is_of_study",
    "parse_choice",
    "variant_of",
    "verify_variant",
    "write_source",
]
