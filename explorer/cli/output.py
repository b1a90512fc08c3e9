"""Where a command writes, and how it ends: one sentence on stderr, and an exit code."""

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from explorer.errors import ExplorerError

# ------------------------------------------------- what cannot be written ends a command in one way


class ReaderGone(Exception):
    """Whoever read our output has closed it: nothing is left to say."""


class OutputLost(Exception):
    """Standard output cannot be written; the message says why."""


class _Guarded:
    """A text stream whose failures to write are ReaderGone and OutputLost.

    Libraries would take an OSError for theirs to handle: Rich and Typer both leave with exit code 1
    where a reader has gone.
    """

    def __init__(self, stream: TextIO | None, *, is_needed: bool) -> None:
        self._stream = _Closed() if stream is None else stream
        self._is_needed = is_needed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know a µ

    def write(self, text: str) -> int:
        """Write, or say why that cannot be."""
        with self._said():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or say why that cannot be."""
        with self._said():
            self._stream.flush()

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            if self._is_needed:
                raise OutputLost(error.strerror or str(error)) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Closed(io.StringIO):
    """What stands for a stream that was closed before the program began."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


@contextmanager
def guarded() -> Iterator[None]:
    """Guard both streams while a command runs; what stderr loses ends no command.

    At the end stdout is flushed. Raises ReaderGone and OutputLost, after which nothing more is
    written, neither now nor when Python flushes its streams on leaving.
    """
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout = _Guarded(stdout, is_needed=True)
    sys.stderr = _Guarded(stderr, is_needed=False)
    try:
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    except (ReaderGone, OutputLost):
        _discard(stdout)
        raise
    finally:
        sys.stdout, sys.stderr = stdout, stderr


def _discard(stream: TextIO | None) -> None:
    """Send what a stream still holds, and all that comes, to nowhere."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


# ------------------------------------------------------------------ errors and exit codes


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
