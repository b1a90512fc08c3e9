"""Restrict parameters to some of their values, as `--where cache=shared,none` does."""

from collections.abc import Iterable, Mapping
from typing import Any

from explorer.model.config import Value, parameters
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.system.plain_data import nearest, shown

Conditions = str | Iterable[str] | Mapping[str, Value | Iterable[Value]] | None
"""`NAME=V,V`, several of these, or the values by the name of each parameter."""


def restriction(where: Conditions, problem: Problem) -> dict[str, tuple[Value, ...]]:
    """Return the values that are left of each parameter named, in the order of the space.

    Raises InvalidInput for a parameter or a value that there is not, and for one named twice.
    """
    known = parameters(problem.dtype, problem.operator)
    given: dict[str, list[str]] = {}
    for name, values in _named(where):
        _check_name(name, known)
        if name in given:
            both = ",".join(dict.fromkeys((*given[name], *values)))
            raise InvalidInput(f"where has {name} twice; write it once, {name}={both}")
        by_text = {str(value): value for value in known[name]}
        foreign = [value for value in values if value not in by_text]
        if foreign or not values:
            has = f"{name} has no value {foreign[0]!r}" if foreign else f"{name} is left no value"
            raise InvalidInput(f"{has}; it has {', '.join(by_text)}")
        given[name] = values
    return {
        name: tuple(value for value in values if str(value) in given[name])
        for name, values in known.items()
        if name in given
    }


def _named(where: Conditions) -> list[tuple[str, list[str]]]:
    """Return each parameter's name with its values as text. Raises InvalidInput."""
    if isinstance(where, Mapping):
        several = (
            (name, one if isinstance(one, list | tuple) else [one]) for name, one in where.items()
        )
        return [(str(name), [str(value) for value in values]) for name, values in several]
    texts = [where] if isinstance(where, str) else where or []
    if not isinstance(texts, Iterable):
        raise InvalidInput(f"where is {shown(where)}; write NAME=VALUE,VALUE, or a dict of values")
    return [_parted(text) for text in texts]


def _parted(text: Any) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals:
        raise InvalidInput(
            f"where is {shown(text)}; write NAME=VALUE,VALUE, such as cache=shared,none"
        )
    return name, values.split(",")


def _check_name(name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        near = nearest(name, known) or f"it is one of {', '.join(known)}"
        raise InvalidInput(f"where is of {name!r}, and there is no parameter {name!r}; {near}")
