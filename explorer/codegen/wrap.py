"""Lists of C++ that may not fit a line, wrapped as clang-format wraps them."""

from collections.abc import Iterable

LINE = 100
"""Columns of an emitted line."""


def wrap(items: Iterable[str], head: str, tail: str, indent: int = 0) -> str:
    """`head`, the items and `tail`: on one line if they fit, else the items on lines of their own.

    `indent` is how far the line of `head` is indented, by the template; the items' lines are
    indented by four columns more.
    """
    words = [f"{item}," for item in items]
    words[-1] = words[-1][:-1] + tail
    together = f"{head}{' '.join(words)}"
    if indent + len(together) <= LINE:
        return together
    pad = " " * (indent + 4)
    lines = [head]
    for word in words:
        if len(lines) > 1 and len(lines[-1]) + 1 + len(word) <= LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(pad + word)
    return "\n".join(lines)
