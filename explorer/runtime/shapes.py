"""Count the problems of a running program's calls, and write them to a file for `warm_up`."""

import atexit
import csv
import io
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.model.problem import USUAL, Problem
from explorer.model.query import from_text
from explorer.system.plain_data import shown
from explorer.system.user_files import StrPath, check_writable, named_file, read_text, write_file

COLUMNS = tuple(USUAL)
"""The columns of a file: a problem's fields."""

COUNT = "count"
"""The last column: the number of calls."""


class ShapeLog:
    """Counts problems until it is closed, or the process ends; then it writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts: Counter[Problem] | None = Counter()
        """None after it is closed."""
        self._lock = threading.Lock()
        self._process = os.getpid()
        atexit.register(self.close)

    def add(self, problem: Problem) -> None:
        """Count a call."""
        with self._lock:
            if self._counts is not None:
                self._counts[problem] += 1

    def close(self) -> None:
        """Write the file, most frequent problems first, and stop. Raises InvalidInput."""
        global logs
        atexit.unregister(self.close)
        logs = tuple(log for log in logs if log is not self)
        if os.getpid() != self._process:  # in a forked process: the file is its parent's
            return
        with self._lock:
            counts, self._counts = self._counts, None
        if counts is None:
            return
        earlier = _counts_in(self.path)
        if earlier and not counts:
            return
        counts = earlier + counts
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*COLUMNS, COUNT])
        for problem, count in counts.most_common():
            values = problem.as_dict()
            writer.writerow([*(_text(values.get(name)) for name in COLUMNS), count])
        write_file(self.path, text.getvalue(), _REMEDY)

    def __enter__(self) -> "ShapeLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


logs: tuple[ShapeLog, ...] = ()
"""The open logs."""


def _forget() -> None:
    """Close all logs in a forked process, because the file is its parent's."""
    global logs
    logs = ()


os.register_at_fork(after_in_child=_forget)

_REMEDY = "name another file"


def log_shapes(path: StrPath) -> ShapeLog:
    """Log the problems of all later calls of explorer's functions to a CSV file, with counts.

    It has a row for each problem: op, rows, cols, types, mask, strides, and the number of calls. It
    is written when the process ends, or when the returned log is closed, which may be used in a
    `with` statement. `explorer.warm_up` reads the file. Counts are added to those of an earlier
    process in the same file. Raises InvalidInput if it cannot be written, for a file that this
    function did not write, and for a value that is no path.
    """
    global logs
    named = named_file("path", path, "the path of a CSV file")
    file = named.absolute()  # a program may change its folder
    check_writable(file, _REMEDY)
    _counts_in(named)
    log = ShapeLog(file)
    logs = (*logs, log)
    return log


def count_call(problem: Problem) -> None:
    """Count a call in each open log."""
    for log in logs:
        log.add(problem)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def read_shapes(path: Path) -> list[Problem]:
    """Return the problems of a file that `log_shapes` wrote.

    Raises InvalidInput, which names every line that is wrong.
    """
    return [problem for problem, _ in _lines(path, _text_of(path))]


def _text_of(path: Path) -> str:
    return read_text(path, remedy=_REMEDY).removeprefix("\ufeff")  # which spreadsheets write first


def _lines(path: Path, text: str) -> list[tuple[Problem, dict[str, Any]]]:
    """Return the problem of each line of a file after the first, and the line's values."""
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = list(reader)
    except csv.Error as error:
        raise InvalidInput(f"{path} cannot be read: {error}; {_REMEDY}") from None
    if not {"rows", "cols"} <= set(reader.fieldnames or ()):
        raise InvalidInput(
            f"{path} names no columns 'rows' and 'cols' in its first line; name a file that "
            "explorer.log_shapes wrote"
        )
    _check_names(path, reader.fieldnames or ())
    problems, faults = [], []
    for number, row in enumerate(rows, 2):
        try:
            problems.append((_problem(row), row))
        except InvalidInput as error:
            faults.append(f"line {number}: {error}")
    if faults:
        more = f"; and {len(faults) - MOST_FAULTS} more lines" if faults[MOST_FAULTS:] else ""
        raise InvalidInput(f"{path}, {'; '.join(faults[:MOST_FAULTS])}{more}")
    if not problems:
        raise InvalidInput(f"{path} names no problem; give a line for each after the first")
    return problems


def _counts_in(path: Path) -> Counter[Problem]:
    """Return the counts in the file of an earlier log; none if it is missing or empty.

    Raises InvalidInput for a file of another kind, and for a wrong line.
    """
    counts: Counter[Problem] = Counter()
    text = _text_of(path) if path.exists() else ""
    first, _, rest = text.strip().partition("\n")
    if first and first.strip() != ",".join((*COLUMNS, COUNT)):
        raise InvalidInput(f"{path} exists and is no file of explorer.log_shapes; {_REMEDY}")
    for number, (problem, row) in enumerate(_lines(path, text) if rest else (), 2):
        counts[problem] += _count(path, number, row[COUNT])
    return counts


def _count(path: Path, line: int, text: str | None) -> int:
    """Return a row's count. Raises InvalidInput."""
    if not re.fullmatch("[0-9]{1,18}", text or ""):
        raise InvalidInput(
            f"{path}, line {line}: count is {shown(text)}; it must be a whole number; {_REMEDY}"
        )
    return int(text or "0")


def _check_names(path: Path, names: Iterable[str]) -> None:
    """Raise InvalidInput for a column with a misspelled name, whose values would be ignored.

    Columns with other names may hold a user's own data.
    """
    for name in (name for name in names if name not in (*COLUMNS, COUNT)):
        near = get_close_matches(name or "", COLUMNS, 1, cutoff=NEARLY)
        if near:
            raise InvalidInput(
                f"{path} has a column {shown(name)}, which is not known; call it {near[0]}, or "
                "give it a name that is less like that"
            )


NEARLY = 0.75
"""Similarity of two names, from 0 to 1, from which one counts as a misspelling of the other."""


MOST_FAULTS = 20
"""Most wrong lines of a file that an error describes; it counts the others."""


def _problem(row: dict[str, Any]) -> Problem:
    """Return the problem of a row; an empty column has its default."""
    values = {name: text for name, text in row.items() if name in COLUMNS and text}
    missing = next((name for name in ("rows", "cols") if name not in values), None)
    if missing is not None:
        raise InvalidInput(f"{missing} is missing")
    return Problem(**{name: from_text(name, text) for name, text in values.items()})
