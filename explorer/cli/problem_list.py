"""Lists of problems: ranges of columns and rows, and shapes drawn from them by a seed."""

import math
import random
from collections.abc import Sequence

from explorer.cli.options import whole_number, words
from explorer.errors import InvalidInput

MOST_PROBLEMS = 10_000
"""Of one command: at three seconds each it takes eight hours."""

MOST_DRAWN_ELEMENTS = 2**28
"""Of a matrix that is drawn: 1 GiB in f32. More rows are not drawn, so that what launches rotate
over fits a GPU of 80 GB."""


def numbers_of(name: str, text: str, most: int) -> list[int]:
    """Return the numbers of `8,64,100`, `64:4096:log` or `64:4096:log:20`, each once.

    Raises InvalidInput, which calls them `name`, for other text and for a number above `most`.
    """
    number = whole_number(name, 1, most)
    found: list[int] = []
    for part in words(name, text):
        first, *rest = part.split(":")
        if not rest:
            found.append(number(first))
            continue
        if len(rest) not in (2, 3) or rest[1] != "log":
            raise InvalidInput(
                f"{name} is {part!r}; write a range as 64:4096:log or 64:4096:log:20"
            )
        low, high = number(first), number(rest[0])
        if low > high:
            raise InvalidInput(f"{name} is {part!r}; the first number of a range is its least")
        doublings = math.log2(high / low)
        steps = (
            whole_number(f"steps of {name}", 2, MOST_PROBLEMS)(rest[2]) - 1
            if rest[2:]
            else int(doublings)
        )
        ratio = doublings / steps if rest[2:] else 1.0
        found += [round(low * 2 ** (ratio * step)) for step in range(steps + 1)]
    return list(dict.fromkeys(found))


def drawn(
    cols: Sequence[int], rows: Sequence[int], number: int, seed: int
) -> list[tuple[int, int | None]]:
    """Return (cols, rows) drawn between the least and the greatest of both, log-uniformly.

    Without any `rows` each is None. Rows are at most what makes MOST_DRAWN_ELEMENTS.
    """
    rng = random.Random(seed)

    def between(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    found: list[tuple[int, int | None]] = []
    for _ in range(number):
        width = between(min(cols), max(cols))
        if not rows:
            found.append((width, None))
            continue
        most = max(min(rows), min(max(rows), MOST_DRAWN_ELEMENTS // width))
        found.append((width, between(min(rows), most)))
    return found
