"""Lists of C++ that may not fit a line, wrapped as clang-format wraps them."""

from collections.abc import Iterable

LINE = 100
"""Columns of an emitted line."""

DEEPER = 4
"""Columns by which a wrapped line is indented more than the first."""


def wrap(
    items: Iterable[str],
    head: str,
    tail: str,
    indent: int = 0,
    *,
    before: str = "",
    hang: int = DEEPER,
) -> str:
    """`before`, `head`, the items, `tail`: on one line if they fit.

    Else `before` keeps the first line and the rest hangs `hang` columns below it if that fits;
    else the items have lines of their own, and `head` too if it does not fit behind `before`.
    `indent` is how far the template indents the first.
    """
    words = [f"{item}," for item in items]
    words[-1] = words[-1][:-1] + tail
    call = f"{head}{' '.join(words)}"
    space = f"{before} " if before else ""
    if indent + len(space) + len(call) <= LINE:
        return space + call
    if before and indent + hang + len(call) <= LINE:
        return f"{before}\n{' ' * (indent + hang)}{call}"
    lines = [space + head]
    if before and indent + len(lines[0]) > LINE:
        indent += hang
        lines = [before, " " * indent + head]
    first = len(lines)
    for word in words:
        if len(lines) > first and len(lines[-1]) + 1 + len(word) <= LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * (indent + DEEPER) + word)
    return "\n".join(lines)


def in_braces(head: str, statement: str, indent: int = 0, end: str = "}") -> str:
    """Return a function of one statement: on one line if that fits, else on three.

    `indent` is how far the template indents the first.
    """
    line = f"{head} {{ {statement} {end}"
    if indent + len(line) <= LINE:
        return line
    space = " " * indent
    return f"{head} {{\n{space}  {statement}\n{space}{end}"


def returns(head: str, expression: str) -> str:
    """Return a function that returns an expression."""
    return in_braces(head, f"return {expression};")
