"""Errors as one sentence on stderr, and exit codes: 2 for what a user can mend, 130 for Ctrl-C."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from explorer.errors import ExplorerError

USER_ERROR = 2
INTERRUPTED = 130

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all errors of usage, which Typer does not export."""


class SentenceErrors(TyperGroup):
    """Runs the command and leaves with its exit code; bugs alone keep their traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As the base class, in standalone mode whatever is asked for."""
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except ExplorerError as error:
            say(f"error: {error}")
            status = USER_ERROR
        except _UsageError as error:
            say(f"error: {_usage_sentence(error)}")
            status = USER_ERROR
        except MemoryError as error:
            detail = str(error).rstrip(".") or "allocation failed"
            say(f"error: not enough memory: {detail}; ask for fewer rows or smaller strides")
            status = USER_ERROR
        except (typer.Abort, KeyboardInterrupt):
            say("stopped")
            status = INTERRUPTED
        sys.exit(status if isinstance(status, int) else 0)


def _usage_sentence(error: Any) -> str:
    """The parser's own sentence, and where help is."""
    sentence = error.format_message().rstrip(".").replace("\n", " ")
    sentence = sentence[:1].lower() + sentence[1:]
    command = error.ctx.command_path if error.ctx else "explorer"
    return f"{sentence}; see {command} --help"


def say(sentence: str) -> None:
    """One line on stderr."""
    print(" ".join(sentence.split()), file=sys.stderr)
