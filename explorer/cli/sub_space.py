"""`--where threads=256,512`: parameters narrowed to some of their values."""

from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.space import Space, parameters
from explorer.space.parameters import Value

MOST_POINTS = 100_000
"""More would take a day to measure."""


def sub_space(conditions: list[str], dtype: DType) -> dict[str, tuple[Value, ...]]:
    """The values that are left of each parameter named; raises InvalidInput."""
    return dict(_condition(text, dtype) for text in conditions)


def check_size(space: Space) -> None:
    """Raises InvalidInput where a space has too many legal points to measure each."""
    legal = space.legal_count()
    if legal > MOST_POINTS:
        raise InvalidInput(
            f"--where leaves {legal} legal points, more than {MOST_POINTS}; narrow it further, "
            "or give --sample 500"
        )


def _condition(text: str, dtype: DType) -> tuple[str, tuple[Value, ...]]:
    known = parameters(dtype)
    name, equals, written = text.partition("=")
    if not equals or name not in known:
        raise InvalidInput(
            f"where is {text!r}; write NAME=VALUE,VALUE with one of {', '.join(known)}"
        )
    by_text = {str(value): value for value in known[name]}
    foreign = [word for word in written.split(",") if word not in by_text]
    if foreign:
        raise InvalidInput(f"{name} has no value {foreign[0]!r}; it has {', '.join(by_text)}")
    return name, tuple(by_text[word] for word in written.split(","))
