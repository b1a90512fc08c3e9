"""Data from outside the program: JSON text, and the values in it, read within limits.

A recording, a study in a database or a saved result may be damaged, or made by another program.
Each reader raises InvalidInput with the fault, the value and the limit; its caller adds the path.
"""

import json
import math
import operator
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from explorer.model.errors import InvalidInput

Record = TypeVar("Record")
Name = TypeVar("Name", bound=StrEnum)

Reader = Callable[[Any, str], Any]
"""Converts a value to the type of a field, given the field's name. Raises InvalidInput."""

MAX_DIGITS = 40
"""Most digits of a whole number in JSON. Python refuses to read, or to print, more than 4300."""

MAX_WHOLE = 2**53
"""Largest whole number: not every larger one is a float."""

LEAST_TIME_US, MOST_TIME_US = 1e-6, 1e12
"""Limits of a measured time in microseconds: from a picosecond to eleven days."""

OLDER_KEYS = {"copy_us": "limit_us", "copy_name": "limit_name"}
"""Keys of files and studies that an earlier version wrote, and what these are called since."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, which a terminal executes, and halves of a surrogate pair, which no encoding
can write."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 60, 60, 40
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 3


def shown(value: Any) -> str:
    """Return a value as text for a message, at most a line long, however large or deep it is."""
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"a number of {value.bit_length()} bits"
    return _SHORT.repr(value)


def kind_of(value: Any) -> str:
    """Return the name of a value's type with its article: an int, a numpy.ndarray."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def parse_name(kind: type[Name], what: str, text: str, written: str | None = None) -> Name:
    """Return the value of an enumeration that `text` names; raises InvalidInput, which lists them.

    `written` is the user's text, if it differs from `text`.
    """
    try:
        return kind(text)
    except ValueError:
        names = ", ".join(kind)
        raise InvalidInput(
            f"{what} '{written or text}' is not known; choose one of {names}"
        ) from None


MOST_NEAREST = 3
"""Most names that an error suggests for an unknown one."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return which names resemble an unknown one: `the nearest is pytorch`; empty if none does."""
    return nearest_are(get_close_matches(name.lower(), names, MOST_NEAREST, cutoff=0.6))


def nearest_are(near: Sequence[str]) -> str:
    """Return a clause that these names are the nearest; empty if there is none."""
    return f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}" if near else ""


def parse_json(text: str, what: str, *, of: Literal["", "file", "line"] = "") -> Any:
    """Return the values of a JSON text; `what` names the text in errors.

    If the text is `of` a file, or a line of one, errors name the place at which it is not JSON.

    Raises InvalidInput for text that is not JSON, for NaN, infinities, whole numbers of more than
    MAX_DIGITS digits, an object with a name twice, and values nested deeper than Python's stack
    allows.
    """
    try:
        return json.loads(
            text,
            parse_int=_whole,
            parse_constant=_constant,
            object_pairs_hook=partial(_each_once, what),
        )
    except RecursionError:
        raise InvalidInput(f"{what} is not JSON: its values are nested too deeply") from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{what} is not JSON{_place(error, of)}") from None


def _place(error: ValueError, of: str) -> str:
    """Return the place at which a text is not JSON, or else the reason."""
    if not of or not isinstance(error, json.JSONDecodeError):
        return f": {error}"
    line = f"line {error.lineno}, " if of == "file" else ""
    return f" ({line}column {error.colno})"


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; at most {MAX_DIGITS} are read")
    return int(digits)


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _each_once(what: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values by name. Raises InvalidInput for a name that occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        ((twice, times),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidInput(f"{what} has {shown(twice)} {times} times; give it one value")
    return values


def read_object(values: Any, name: str) -> dict[str, Any]:
    """Return a JSON object as it is. Raises InvalidInput for anything else."""
    if not isinstance(values, dict):
        raise InvalidInput(f"{name} is {shown(values)}; it must be a JSON object")
    return values


def read_list(values: Any, name: str) -> list[Any]:
    """Return a JSON list as it is. Raises InvalidInput for anything else."""
    if not isinstance(values, list | tuple):
        raise InvalidInput(f"{name} is {shown(values)}; it must be a list")
    return list(values)


def read_text(value: Any, name: str) -> str:
    """Return a text that can be printed. Raises InvalidInput for anything else."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is {shown(value)}; it must be text")
    if _UNPRINTABLE.search(value):
        raise InvalidInput(f"{name} is {shown(value)}; it must be text without control characters")
    return value


def whole_of(value: Any) -> int | None:
    """Return a whole number of Python's or NumPy's as an int; None for anything else.

    A bool is refused, because True would silently be 1.
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def read_whole(value: Any, name: str, least: int = 0, most: int = MAX_WHOLE) -> int:
    """Return a whole number from `least` to `most`. Raises InvalidInput for anything else."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(
            f"{name} is {shown(value)}; it must be a whole number from {least} to {most}"
        )
    return value


def read_number(value: Any, name: str, least: float = 0.0) -> float:
    """Return a finite number of at least `least`. Raises InvalidInput for anything else."""
    is_number = type(value) is float or (type(value) is int and abs(value) <= MAX_WHOLE)
    if not is_number or not math.isfinite(value) or value < least:
        limit = "" if least == -math.inf else f" of at least {least:g}"
        raise InvalidInput(f"{name} is {shown(value)}; it must be a finite number{limit}")
    return float(value)


def read_time_us(value: Any, name: str, *, or_zero: bool = False) -> float:
    """Return a measured time in microseconds, or 0 for an unknown one. Raises InvalidInput."""
    if or_zero and type(value) in (int, float) and value == 0:
        return 0.0
    is_number = type(value) in (int, float)
    if not is_number or not LEAST_TIME_US <= value <= MOST_TIME_US:
        raise InvalidInput(
            f"{name} is {shown(value)}; it must be a number of microseconds from "
            f"{LEAST_TIME_US:g} to {MOST_TIME_US:g}"
        )
    return float(value)


def read_times_us(values: Any, name: str) -> tuple[float, ...]:
    """Return measured times in microseconds. Raises InvalidInput for anything else."""
    times = read_list(values, name)
    return tuple(read_time_us(time, f"{name}[{place}]") for place, time in enumerate(times))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: what `read_fields` reads of a dataclass, lists of tuples.

    A dataclass within another one is written by its own `as_dict` where it has one.
    """
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if hasattr(value, "as_dict"):
        return value.as_dict()
    return write_fields(value) if is_dataclass(value) else value


def write_fields(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain data, each under the key that files have for it."""
    return {
        field.metadata.get("key", field.name): plain(getattr(values, field.name))
        for field in fields(values)
    }


def read_fields(
    kind: type[Record], values: Any, what: str, *, ignore_unknown: bool = False
) -> Record:
    """Return a dataclass with the values of a JSON object, each of its field's type.

    Numbers must be finite and not negative. A field whose name ends in `_us` is a measured time; a
    scalar one may be 0, which means unknown. Fields that are dataclasses are read by their own
    `from_dict`, if they have one. A field's metadata may name the `key` under which files have it.
    What OLDER_KEYS renames may have its older name. Raises InvalidInput for a value of another
    type, a missing name and, unless `ignore_unknown`, an unknown name.
    """
    given = {OLDER_KEYS.get(key, key): one for key, one in read_object(values, what).items()}
    known = _fields(cast(Any, kind))
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None and not ignore_unknown:
        names = ", ".join(known)
        raise InvalidInput(f"{what} has {shown(unknown)}, which is not one of {names}")
    read: dict[str, Any] = {}
    for key, (name, read_value, is_needed) in known.items():
        if key in given:
            read[name] = read_value(given[key], key)
        elif is_needed:
            raise InvalidInput(f"{what} has no {key}")
    return kind(**read)


@cache
def _fields(kind: type) -> dict[str, tuple[str, Reader, bool]]:
    """Return the fields of a dataclass by key: name, reader, and whether it is required."""
    hints = get_type_hints(kind)
    return {
        field.metadata.get("key", field.name): (
            field.name,
            _reader(hints[field.name], is_time=field.name.endswith("_us")),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(kind)
    }


def _reader(annotation: Any, *, is_time: bool) -> Reader:
    """Return the function that reads a value of the annotated type."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        (inner,) = (one for one in get_args(annotation) if one is not NoneType)
        return partial(_read_optional, _reader(inner, is_time=is_time))
    if origin is tuple:
        inner = get_args(annotation)[0]
        if inner is float and is_time:
            return read_times_us
        return partial(_read_each, _reader(inner, is_time=is_time))
    if is_dataclass(annotation):
        return partial(_read_nested, annotation)
    if annotation is float:
        return partial(read_time_us, or_zero=True) if is_time else read_number
    if annotation is int:
        return read_whole
    if annotation is bool:
        return _read_flag
    if issubclass(annotation, StrEnum):
        return partial(read_word, annotation)
    return read_text


def _read_optional(read: Reader, value: Any, name: str) -> Any:
    return None if value is None else read(value, name)


def _read_each(read: Reader, values: Any, name: str) -> tuple[Any, ...]:
    listed = enumerate(read_list(values, name))
    return tuple(read(value, f"{name}[{place}]") for place, value in listed)


def _read_nested(kind: Any, value: Any, name: str) -> Any:
    """Return a dataclass within another one; errors name the field that holds it."""
    try:
        if hasattr(kind, "from_dict"):
            return kind.from_dict(value)
        return read_fields(kind, value, name)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def _read_flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is {shown(value)}; it must be true or false")
    return value


def read_word(kind: type[StrEnum], value: Any, name: str) -> StrEnum:
    """Return the member of an enumeration whose value is a text; raises InvalidInput."""
    if not isinstance(value, str) or value not in set(kind):
        raise InvalidInput(f"{name} is {shown(value)}; it must be one of {', '.join(kind)}")
    return kind(value)
