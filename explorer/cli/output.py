"""Where a command writes, and how it ends: one sentence on stderr, and an exit code."""

import errno
import io
import json
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from explorer.cli.help import Group, UsageError
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.query import option_of
from explorer.system.user_files import write_file

if TYPE_CHECKING:
    from rich.console import Console

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
        self.has_text = False
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know a µ

    def write(self, text: str) -> int:
        """Write, or say why that cannot be."""
        self.has_text |= bool(text)
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
def guarded() -> Iterator[_Guarded]:
    """Guard both streams while a command runs, and give stdout; what stderr loses ends no command.

    At the end stdout is flushed. Raises ReaderGone and OutputLost, after which nothing more is
    written, neither now nor when Python flushes its streams on leaving.
    """
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout = results = _Guarded(stdout, is_needed=True)
    sys.stderr = _Guarded(stderr, is_needed=False)
    try:
        yield results
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


_COMPLETING = "_EXPLORER_COMPLETE"
"""The environment variable by which a shell asks for completions."""

_COMPLETION_OPTIONS = {"--install-completion", "--show-completion"}


class _Refused(Exception):
    """What an option's reader raised, on its way past Typer, which would replace a ValueError."""

    def __init__(self, error: ExplorerError) -> None:
        super().__init__(str(error))
        self.error = error


def passing_errors(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader of an option's text whose errors reach the user as they are."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except ExplorerError as error:
            raise _Refused(error) from None

    return reader


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a command ended that has no result."""

    kind: str
    """The exception that a program would have caught: InvalidInput, NotFound and so on."""
    sentence: str
    status: int = USER_ERROR

    def as_json(self) -> str:
        """Return what a program reads that asked for JSON."""
        error = {"kind": self.kind, "message": _printable(self.sentence)}
        return json.dumps({"error": error, "exit_code": self.status}, indent=2)


class SentenceErrors(Group):
    """Runs the command and leaves with its exit code; bugs alone keep their traceback.

    Under --json stdout has an object in any case: the result, or else the error.
    """

    def main(self, args: Any = None, *more: Any, **kwargs: Any) -> Any:
        """As the base class, in standalone mode whatever is asked for."""
        words = list(sys.argv[1:] if args is None else args)
        if _COMPLETING in os.environ:  # a help text of several lines would be several completions
            os.environ["COLUMNS"] = str(MAX_SENTENCE)
        try:
            with guarded() as stdout, _ended_by_term():
                status = self._said(self._ended(words, *more, **kwargs), words, stdout)
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

    def _said(self, ended: "int | _Failure", words: list[str], stdout: _Guarded) -> int:
        """Return the exit code, having said why there is no result."""
        if isinstance(ended, int):
            if ended != INTERRUPTED:
                return ended
            ended = _Failure(_INTERRUPTED, "stopped; stderr says what is kept", INTERRUPTED)
        elif ended.status == INTERRUPTED:
            say(ended.sentence)
        else:
            say(f"error: {ended.sentence}")
        if "--json" in words and not stdout.has_text:
            print(ended.as_json())
        return ended.status

    def _ended(self, words: list[str], *more: Any, **kwargs: Any) -> "int | _Failure":
        """Run the command; gives its exit code, or why it has no result."""
        try:
            status = super().main(words, *more, **{**kwargs, "standalone_mode": False})
        except (ExplorerError, _Refused) as raised:
            error = raised.error if isinstance(raised, _Refused) else raised
            return _Failure(type(error).__name__, str(error))
        except UsageError as error:
            return _Failure("UsageError", _usage_sentence(error))
        except MemoryError as error:
            detail = str(error).rstrip(".") or "allocation failed"
            sentence = f"not enough memory: {detail}; ask for fewer rows or smaller strides"
            return _Failure("MemoryError", sentence)
        except (typer.Abort, KeyboardInterrupt):
            return _Failure(_INTERRUPTED, "stopped", INTERRUPTED)
        except SystemExit as left:  # by which Typer leaves where shells ask for completions
            return 0 if not left.code else USER_ERROR
        if status == 1 and _COMPLETION_OPTIONS & set(words):
            return _Failure("NotFound", _NO_SHELL)
        return status if isinstance(status, int) else 0


_INTERRUPTED = "KeyboardInterrupt"

_NO_SHELL = (
    "this process was started by no shell whose completion is known; run the command in bash, zsh, "
    "fish or PowerShell"
)


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """End as Ctrl-C does, with what is kept said, where SIGTERM comes, as of `kill` and Slurm."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # outside the main thread, as in a test, no handler can be set
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _usage_sentence(error: Any) -> str:
    """Return the parser's own sentence, and where help is."""
    sentence = error.format_message().rstrip(".").replace("\n", " ")
    sentence = sentence[:1].lower() + sentence[1:]
    command = error.ctx.command_path if error.ctx else "explorer"
    return f"{sentence}; see {command} --help"


def say(sentence: str) -> None:
    """One line on stderr; a terminal gets it on several where one is too narrow, between words."""
    line = _printable(sentence)
    if sys.stderr is None:  # print would take None for stdout
        return
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


def _printable(sentence: str) -> str:
    """One line of at most MAX_SENTENCE characters, and without control characters."""
    line = _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], " ".join(sentence.split()))
    if len(line) <= MAX_SENTENCE:
        return line
    half = MAX_SENTENCE // 2
    return f"{line[:half]} … {line[-half:]}"


@contextmanager
def stopped(sentence: str) -> Iterator[None]:
    """Say on Ctrl-C what is kept, and leave with its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped{sentence}")
        raise typer.Exit(INTERRUPTED) from None


# ------------------------------------------------------------------ results


def show_result(
    form: str,
    show: "Callable[[Console], None]",
    data: Callable[[], Any],
    *,
    rows: Callable[[], Sequence[Mapping[str, Any]]] = list,
    markdown: Callable[[], str] = str,
    plot: Path | None = None,
    chart: Callable[[], Any] | None = None,
) -> None:
    """Print a result as `json`, `csv` or `markdown`, or `show` it; draw its chart to `plot`.

    It is drawn before a reader of stdout may be gone, and printed even if it cannot be drawn.
    """
    from explorer.report.table import as_csv, results
    from explorer.report.text import as_json

    try:
        if plot is not None and chart is not None:
            from explorer.report import charts

            charts.write_chart(chart(), plot)
            say(f"{plot}: drawn")
    finally:
        if form == "json":
            print(as_json(data()))
        elif form == "csv":
            print(as_csv(rows()), end="")
        elif form == "markdown":
            print(markdown(), end="")
        else:
            show(results())


def keep_result(path: Path, data: Any, remedy: str, done: str = "written") -> None:
    """Write a result's data as JSON, and say so. Raises InvalidInput, which ends in `remedy`."""
    from explorer.report.text import as_json

    write_file(path, as_json(data) + "\n", remedy)
    say(f"{path}: {done}")


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_nothing_is_measured(**options: object) -> None:
    """Raise InvalidInput for an option beside --from that was given, and would change nothing."""
    given = [option_of(name) for name, value in options.items() if value not in (None, False)]
    if given:
        raise InvalidInput(f"--from shows a file and measures nothing; drop {' and '.join(given)}")
