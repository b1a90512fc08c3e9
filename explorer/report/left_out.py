"""Which peers a comparison left out, and why: a line for each peer and kind of reason."""

import re
from collections.abc import Iterable, Sequence

from explorer.model.problem import Problem
from explorer.tuning.peer_comparison import PeerRun

NAMED_CHARACTERS = 200
"""Characters of the problems that a line names: some three lines of a terminal of 100 columns."""

LONG_DIGITS = 4
"""A number of a reason with so many digits, such as 1572896 bytes, is of the problem's size."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?!\w|\.\d)")

_VARIES = "\0"
"""What stands for a number that differs from problem to problem."""

_VARYING_CLAUSE = re.compile(f"; [^;]*{_VARIES}[^;]*$")


def left_out_lines(run: PeerRun) -> list[tuple[str, str]]:
    """Return each peer that was left out with each kind of reason, and the problems of that kind.

    Reasons are of one kind if they differ only in the number of columns or in long numbers. Of
    many problems the first few are named, and the others counted: `PeerRun.as_dict` has all.
    """
    found: dict[str, dict[str, list[tuple[Problem, str]]]] = {}
    for one in run.comparisons:
        for entry in one.left_out:
            kinds = found.setdefault(entry.name, {})
            kind = _numbers_replaced(entry.why, one.problem)
            kinds.setdefault(kind, []).append((one.problem, entry.why))
    total = len(run.comparisons)
    lines = []
    for name, kinds in found.items():
        for cases in kinds.values():
            problems = [str(problem) for problem, _ in cases]
            named = "all" if len(problems) == total else few_of(problems)
            lines.append((name, f"{_common(cases)} ({named})"))
    return lines


def few_of(names: Sequence[str]) -> str:
    """Return as many names as NAMED_CHARACTERS have room for, and how many more there are."""
    room = NAMED_CHARACTERS
    shown = 0
    while shown < len(names) and (shown == 0 or len(names[shown]) + 2 <= room):
        room -= len(names[shown]) + 2
        shown += 1
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more else "")


def _numbers_of(reason: str, problem: Problem) -> list[re.Match[str]]:
    """Return where a reason has the number of columns, or a long number."""
    found = _NUMBER.finditer(reason)
    return [n for n in found if n[0] == str(problem.cols) or len(n[0]) >= LONG_DIGITS]


def _numbers_replaced(reason: str, problem: Problem) -> str:
    return _filled(reason, problem, [_VARIES] * len(_numbers_of(reason, problem)))


def _filled(reason: str, problem: Problem, words: Iterable[str]) -> str:
    """Return a reason with `words` in place of its numbers that depend on the problem."""
    parts, end = [], 0
    for number, word in zip(_numbers_of(reason, problem), words, strict=True):
        parts += [reason[end : number.start()], word]
        end = number.end()
    return "".join([*parts, reason[end:]])


def _common(cases: Sequence[tuple[Problem, str]]) -> str:
    """Return what the reasons of a kind say together: a last clause with a varying number goes."""
    each_has = ([n[0] for n in _numbers_of(why, problem)] for problem, why in cases)
    numbers = zip(*each_has, strict=True)
    words = [each[0] if len(set(each)) == 1 else _VARIES for each in numbers]
    problem, why = cases[0]
    return _VARYING_CLAUSE.sub("", _filled(why, problem, words)).replace(_VARIES, "…")
