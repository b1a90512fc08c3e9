"""Commands that the user can run next, written out."""

import shlex

from explorer.problem import Problem


def emit_command(what: str, problem: Problem, storage: str | None = None) -> str:
    """The `explorer emit` that writes a trial (or best, or a config as JSON) of a problem."""
    return _command("emit", what, problem, storage)


def search_command(problem: Problem, storage: str | None = None) -> str:
    """The `explorer search` that continues the problem's study."""
    return _command("search", None, problem, storage)


def _command(name: str, what: str | None, problem: Problem, storage: str | None) -> str:
    words = ["explorer", name, *([what] if what is not None else [])]
    words += ["--cols", str(problem.cols), "--dtype", str(problem.dtype)]
    words += ["--rows", str(problem.rows)]
    words += ["--storage", storage] if storage else []
    return shlex.join(words)
