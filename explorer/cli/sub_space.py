"""`--where threads=256,512`: parameters narrowed to some of their values."""

from explorer.errors import InvalidInput
from explorer.problem import DType
from explorer.space import parameters
from explorer.space.parameters import Value


def sub_space(conditions: list[str], dtype: DType) -> dict[str, tuple[Value, ...]]:
    """The values that are left of each parameter named; raises InvalidInput."""
    return dict(_condition(text, dtype) for text in conditions)


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
