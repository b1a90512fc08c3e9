"""A kernel's source for a person or a program: choose the config, check it, write the file."""

from explorer.export.files import (
    HEURISTIC,
    REMEDY,
    Choice,
    Written,
    checked_config,
    compile_for,
    default_path,
    is_of_study,
    parse_choice,
    variant_of,
    verify_variant,
    write_source,
)

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
