"""Data from outside the program: JSON text, and the values in it, read within limits.

A recording, a study in a database and a kept result may be damaged, or made by another program.
Each reader raises InvalidInput that says what was wrong, the value and the limit; the caller adds
where the data lies.
"""

import json
import math
import re
import reprlib
from collections import Counter
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from explorer.errors import InvalidInput

Kind = TypeVar("Kind")

MAX_DIGITS = 40
"""Digits of a whole number in JSON. Python refuses to read, or to print, more than 4300."""

MAX_WHOLE = 2**53
"""Largest whole number: above it a float no longer holds each."""

LEAST_TIME_US, MOST_TIME_US = 1e-6, 1e12
"""A measured time in microseconds: from a picosecond to eleven days."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, which a terminal obeys, and halves of a surrogate pair, which no encoding
can write."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 60, 60, 40
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 3


def shown(value: Any) -> str:
    """Return a value for a message: no longer than a line, however large or deep it is."""
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"a number of {value.bit_length()} bits"
    return _SHORT.repr(value)


def parse_json(text: str, what: str) -> Any:
    """Return what a JSON text says; `what` names the text in errors.

    Raises InvalidInput for what is not JSON, and for NaN, the infinities, whole numbers of more
    than MAX_DIGITS digits, an object that gives a name twice, and what is nested deeper than
    Python's stack allows.
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
    except ValueError as error:
        raise InvalidInput(f"{what} is not JSON: {error}") from None


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; at most {MAX_DIGITS} are read")
    return int(digits)


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _each_once(what: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values by name. Raises InvalidInput for a name that comes twice."""
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


def read_fields(kind: type[Kind], values: Any, what: str, *, ignore_unknown: bool = False) -> Kind:
    """Return a dataclass with the values of a JSON object, each of the type that its field has.

    Numbers must be finite and not negative. A field whose name ends in `_us` is a measured time:
    a scalar one may be 0, which means that it is not known. Fields that are dataclasses are read
    by their own `from_dict` where they have one. Raises InvalidInput for a value of another type,
    a name that is missing and, unless told to ignore it, a name that is not known.
    """
    given = read_object(values, what)
    known = _fields(cast(Any, kind))
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None and not ignore_unknown:
        names = ", ".join(known)
        raise InvalidInput(f"{what} has {shown(unknown)}, which is not one of {names}")
    read: dict[str, Any] = {}
    for name, (field, annotation) in known.items():
        if name in given:
            read[name] = _read(annotation, given[name], name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InvalidInput(f"{what} has no {name}")
    return kind(**read)


@cache
def _fields(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    """Return the fields of a dataclass by name, each with its annotation."""
    hints = get_type_hints(kind)
    return {field.name: (field, hints[field.name]) for field in fields(kind)}


def _read(annotation: Any, value: Any, name: str) -> Any:
    """Return a value of the annotated type. Raises InvalidInput for another one."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        (inner,) = (one for one in get_args(annotation) if one is not NoneType)
        return None if value is None else _read(inner, value, name)
    if origin is tuple:
        inner = get_args(annotation)[0]
        if inner is float and _is_time(name):
            return read_times_us(value, name)
        listed = enumerate(read_list(value, name))
        return tuple(_read(inner, one, f"{name}[{place}]") for place, one in listed)
    if is_dataclass(annotation):
        return _nested(annotation, value, name)
    return _read_plain(annotation, value, name)


def _is_time(name: str) -> bool:
    """Return whether a value is in microseconds, by the name of its field: `samples_us[3]`."""
    return name.partition("[")[0].endswith("_us")


def _nested(kind: Any, value: Any, name: str) -> Any:
    """Return a dataclass within another one; errors say the name of the field that holds it."""
    try:
        if hasattr(kind, "from_dict"):
            return kind.from_dict(value)
        return read_fields(kind, value, name)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def _read_plain(kind: Any, value: Any, name: str) -> Any:
    """Return a flag, a number, a text, or one of an enumeration's words."""
    if kind is bool:
        if type(value) is not bool:
            raise InvalidInput(f"{name} is {shown(value)}; it must be true or false")
        return value
    if kind is int:
        return read_whole(value, name)
    if kind is float:
        is_time = _is_time(name)
        return read_time_us(value, name, or_zero=True) if is_time else read_number(value, name)
    if issubclass(kind, StrEnum):
        if not isinstance(value, str) or value not in set(kind):
            raise InvalidInput(f"{name} is {shown(value)}; it must be one of {', '.join(kind)}")
        return kind(value)
    return read_text(value, name)
