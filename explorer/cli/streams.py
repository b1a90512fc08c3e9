"""Standard output and standard error: what cannot be written there ends a command in one way.

A pipe whose reader has gone, a full disk and a closed descriptor show when something is written,
or only when the last of it is flushed; libraries that print answer each in a way of their own.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


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
