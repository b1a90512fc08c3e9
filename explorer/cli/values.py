"""Reading numbers and durations as people write them. Defaults pass through unchanged."""

import math
import re
from collections.abc import Callable

from explorer.errors import InvalidInput

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|m|min|h)?")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}

MAX_DURATION_S = 366 * 24 * 3600.0
"""A year: nobody waits longer, and a clock can count it."""


def whole_number(name: str, least: int, most: int = 2**31 - 1) -> Callable[[str | int], int]:
    """A reader of whole numbers from `least` to `most` that raises InvalidInput naming `name`."""

    def read(text: str | int) -> int:
        text = str(text)
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) else None
        if number is None or not least <= number <= most:
            raise InvalidInput(
                f"{name} is {text!r}; it must be a whole number from {least} to {most}"
            )
        return number

    return read


def number(name: str) -> Callable[[str | float], float]:
    """A reader of finite numbers that raises InvalidInput naming `name`."""

    def read(text: str | float) -> float:
        value = float(text) if _NUMBER.fullmatch(str(text).strip()) else math.nan
        if not math.isfinite(value):
            raise InvalidInput(f"{name} is {text!r}; it must be a finite number such as 0.125")
        return value

    return read


def extents(name: str, most: int) -> Callable[[str], list[int]]:
    """A reader of extents such as 8,3,224,224 that raises InvalidInput naming `name`."""
    extent = whole_number(name, 1, most)

    def read(text: str) -> list[int]:
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise InvalidInput(f"{name} is {text!r}; write whole numbers with commas, as 8,3,224")
        return [extent(part) for part in parts]

    return read


def words(name: str, text: str) -> list[str]:
    """Words between commas; raises InvalidInput where one is empty."""
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise InvalidInput(f"{name} is {text!r}; write one word, or several as a,b")
    return found


def duration(name: str) -> Callable[[str], float]:
    """A reader of seconds: `90`, `30s`, `2m` or `1.5h`; it raises InvalidInput naming `name`."""

    def read(text: str) -> float:
        match = _DURATION.fullmatch(text.strip())
        value = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
        if not 0 < value <= MAX_DURATION_S:
            raise InvalidInput(
                f"{name} is {text!r}; write a duration above 0, and of a year at most, such as "
                "30s, 2m or 90"
            )
        return value

    return read


duration_s = duration("budget")


def one_of(name: str, *choices: str) -> Callable[[str], str]:
    """A reader of one of a few words that raises InvalidInput naming them."""

    def read(text: str) -> str:
        if text not in choices:
            raise InvalidInput(f"{name} is {text!r}; choose one of {', '.join(choices)}")
        return text

    return read
