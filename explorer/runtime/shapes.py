"""The problems that a running program meets: counted, and written to a file for tuning."""

import atexit
import csv
import os
import threading
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from explorer.errors import InvalidInput
from explorer.problem import Problem

COLUMNS = tuple(field.name for field in fields(Problem))
"""Those of a file: a problem's fields; and after them `count`, the calls there were."""


class ShapeLog:
    """Counts problems until it is closed, or the process ends; then the file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts: Counter[Problem] = Counter()
        self._lock = threading.Lock()
        self._process = os.getpid()
        atexit.register(self.close)

    def add(self, problem: Problem) -> None:
        """Count a call."""
        with self._lock:
            self._counts[problem] += 1

    def close(self) -> None:
        """Write the file, most frequent problems first, and count no more."""
        global _log
        atexit.unregister(self.close)
        if _log is self:
            _log = None
        if os.getpid() != self._process:  # a forked one: the file is its parent's
            return
        with self.path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*COLUMNS, "count"])
            for problem, count in self._counts.most_common():
                said = problem.as_dict()
                writer.writerow([*(_text(said.get(name)) for name in COLUMNS), count])

    def __enter__(self) -> "ShapeLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_log: ShapeLog | None = None


def log_shapes(path: str | Path) -> ShapeLog:
    """Write the problems that explorer's functions meet from now on to a CSV file, with counts.

    It has a row a problem: op, rows, cols, types, mask and strides, and how many calls there were.
    It is written when the process ends, or when what is returned is closed, which may be used in a
    `with` statement. `explorer.warm_up` reads it. Raises InvalidInput where it cannot be written.
    """
    global _log
    path = Path(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    _log = ShapeLog(path)
    return _log


def met(problem: Problem) -> None:
    """Count a call, if problems are being logged."""
    if _log is not None:
        _log.add(problem)


def is_logging() -> bool:
    """Return whether calls are counted."""
    return _log is not None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def read_shapes(path: Path) -> list[Problem]:
    """Return the problems of a file that `log_shapes` wrote; raises InvalidInput."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    return [_problem(path, number, row) for number, row in enumerate(rows, 2)]


def _problem(path: Path, line: int, row: dict[str, Any]) -> Problem:
    """Return the problem of a row. What a column leaves empty has its default."""
    said = {name: text for name, text in row.items() if name in COLUMNS and text}
    try:
        return Problem(
            **{
                field.name: _value(field, said[field.name])
                for field in fields(Problem)
                if field.name in said
            }
        )
    except (InvalidInput, TypeError) as error:
        raise InvalidInput(f"{path}, line {line}: {error}") from None


def _value(field: Any, text: str) -> Any:
    """Return what a field's text says, as an option's would."""
    if field.metadata["option"].kind is bool:
        return text == "True"
    return field.metadata["option"].read(field.name, text)
