"""Errors as one sentence on stderr, and exit codes: 2 for what a user can mend, 130 for Ctrl-C."""

import re
import signal
import sys
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperGroup

from explorer.cli.streams import OutputLost, ReaderGone, guarded
from explorer.errors import ExplorerError

USER_ERROR = 2
INTERRUPTED = 130
READER_GONE = 128 + signal.SIGPIPE
"""As a shell says of a program that a closed pipe has ended."""

MAX_SENTENCE = 2000
"""Characters of a sentence that are printed: a value that a user gave may have any length."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all errors of usage, which Typer does not export."""


class SentenceErrors(TyperGroup):
    """Runs the command and leaves with its exit code; bugs alone keep their traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As the base class, in standalone mode whatever is asked for."""
        try:
            with guarded():
                status = self._status(*args, **kwargs)
        except ReaderGone:
            status = READER_GONE
        except OutputLost as error:
            with suppress(OSError):
                say(
                    f"error: stdout cannot be written: {error}; make room for it, or send it "
                    "elsewhere"
                )
            status = USER_ERROR
        sys.exit(status)

    def _status(self, *args: Any, **kwargs: Any) -> int:
        """Run the command; gives its exit code, having said its error."""
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except ExplorerError as error:
            say(f"error: {error}")
            return USER_ERROR
        except _UsageError as error:
            say(f"error: {_usage_sentence(error)}")
            return USER_ERROR
        except MemoryError as error:
            detail = str(error).rstrip(".") or "allocation failed"
            say(f"error: not enough memory: {detail}; ask for fewer rows or smaller strides")
            return USER_ERROR
        except (typer.Abort, KeyboardInterrupt):
            say("stopped")
            return INTERRUPTED
        except SystemExit as left:  # by which Typer leaves where shells ask for completions
            return 0 if not left.code else USER_ERROR
        return status if isinstance(status, int) else 0


def _usage_sentence(error: Any) -> str:
    """The parser's own sentence, and where help is."""
    sentence = error.format_message().rstrip(".").replace("\n", " ")
    sentence = sentence[:1].lower() + sentence[1:]
    command = error.ctx.command_path if error.ctx else "explorer"
    return f"{sentence}; see {command} --help"


def say(sentence: str) -> None:
    """One line on stderr: of at most MAX_SENTENCE characters, and without control characters."""
    line = _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], " ".join(sentence.split()))
    if len(line) > MAX_SENTENCE:
        half = MAX_SENTENCE // 2
        line = f"{line[:half]} … {line[-half:]}"
    if sys.stderr is not None:  # print would take None for stdout
        print(line, file=sys.stderr)
