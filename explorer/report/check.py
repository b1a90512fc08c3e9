"""One thing that `explorer doctor` looks for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked for."""

    name: str
    ok: bool
    detail: str
    needed_for: str
    required: bool = False
    """Whether the package itself cannot work without it."""
