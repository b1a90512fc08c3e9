"""Outputs that cannot be written, inputs that never end, an environment that names nonsense."""

import errno
import gzip
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from by_hand import SHAPE

from explorer.cli import app
from explorer.cli.output import MAX_SENTENCE, OutputLost, ReaderGone, guarded, say
from explorer.tuning.storage import open_storage

CONFIG = '{"threads":128,"threads_per_row":128}'
EMIT = ("emit", CONFIG, *SHAPE, "--no-verify")


def refused(ran, says):
    assert ran.code == 2, (ran.out, ran.err)
    (line,) = ran.err.strip().splitlines()
    assert line.startswith("error: ") and says in line, line
    assert ran.out == ""


def pipe(path):
    os.mkfifo(path)


def full(path):
    path.symlink_to("/dev/full")


NO_FILES = [pipe, full]
"""What test_user_files.py tries more of."""


@pytest.mark.parametrize("make", NO_FILES)
def test_a_file_that_is_none_is_refused_before_work_begins(explorer, tmp_path, make):
    for name in ("it.cu", "it.svg", "it.json", "it"):
        make(tmp_path / name)
    for more in ((), ("--force",)):
        refused(explorer(*EMIT, "--output", "it.cu", *more), "it.cu cannot be written: it")
    refused(explorer("journey", "--cols", "8", "--plot", "it.svg"), "name another --plot")
    refused(explorer("compare", "--cols", "8", "--save", "it.json"), "name another --save")
    for command in ("journey", "compare"):
        refused(explorer(command, "--from", "it"), "it cannot be read: ")
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("output", ["/dev/null/x.cu", "/proc/x.cu", "x" * 300 + ".cu"])
def test_emit_refuses_an_output_that_cannot_be(explorer, output):
    refused(explorer(*EMIT, "--output", output), "cannot be written: ")


@pytest.mark.parametrize("output", ["", "/dev/full", "softmax.txt", "x" * 300])
def test_emit_refuses_an_output_that_verify_would_not_take(explorer, tmp_path, output):
    said = "'', which names nothing" if not output else "'"
    ran = explorer(*EMIT, "--output", output)
    refused(ran, f"output is {said}")
    assert "; name a FILE.cu" in ran.err and not list(tmp_path.iterdir())


def test_emit_says_where_its_folder_is_a_file(explorer, tmp_path):
    (tmp_path / "generated").write_text("mine")
    refused(explorer(*EMIT), "generated/softmax_f32_512_")
    assert (tmp_path / "generated").read_text() == "mine"


def test_a_full_disk_costs_no_file(explorer, tmp_path, monkeypatch):
    path = tmp_path / "it.cu"
    path.write_text("mine")

    def no_space(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("explorer.system.user_files.os.fsync", no_space)
    ran = explorer(*EMIT, "--output", "it.cu", "--force")
    assert ran.code == 2 and "No space left on device" in ran.err.splitlines()[-1]
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_no_text_is_written_all_the_same(explorer, tmp_path):
    ran = explorer(*EMIT, "--output", "\udcff.cu")
    assert ran.code == 0 and "\\udcff.cu: written" in ran.out
    assert (tmp_path / "\udcff.cu").is_file()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("command", ["journey", "compare"])
def test_a_kept_result_of_other_content(explorer, tmp_path, command, content):
    (tmp_path / "it").write_bytes(content)
    refused(explorer(command, "--from", "it"), "it ")


# Recordings and databases that lie where they are looked for.


def damaged(recording):
    """Return a recording beside the sound one, whose JSON is deep."""
    recording.with_name("aaa.json.gz").write_bytes(gzip.compress(b"[" * 100_000))


def test_a_search_passes_a_damaged_recording_over_and_says_so_once(
    explorer, recording, monkeypatch
):
    monkeypatch.setattr("explorer.api._check_replayed", lambda *_: None)
    damaged(recording)
    recording.with_name("bbb.json.gz").mkdir()
    os.mkfifo(recording.with_name("ccc.json.gz"))
    ran = explorer("search", *SHAPE, "--trials", "2")
    assert ran.code == 0
    for name in ("aaa", "bbb", "ccc"):
        assert ran.err.count(f"/{name}.json.gz") == 1
    refused(explorer("search", *SHAPE, "--device", "recorded:aaa"), "is damaged or no recording")
    refused(explorer("search", *SHAPE, "--device", "recorded:ccc"), "it is a pipe")


@pytest.mark.parametrize("value", [-1.0, "abc"])
def test_a_search_that_needs_a_damaged_recording_says_why_not(explorer, recording, value):
    lines = [json.loads(line) for line in gzip.decompress(recording.read_bytes()).splitlines()]
    lines[1]["samples_us"] = [value] * 9
    text = "\n".join(map(json.dumps, lines))
    recording.write_bytes(gzip.compress(text.encode()))
    refused(explorer("search", *SHAPE), "by-hand.json.gz is damaged")
    refused(
        explorer("search", *SHAPE, "--device", "recorded:by-hand"), "by-hand.json.gz is damaged"
    )


@pytest.mark.exhaustive
def test_doctor_says_what_is_damaged(explorer, recording, monkeypatch):
    monkeypatch.setattr("explorer.report.machine._emulator", lambda: (True, "not asked"))
    damaged(recording)
    recording.parent.with_name("explorer.db").write_text("mine")
    ran = explorer("doctor", "--json")
    assert ran.code == 1
    checks = {check["name"]: check for check in json.loads(ran.out)["checks"]}
    assert not checks["recordings"]["ok"] and "aaa.json.gz" in checks["recordings"]["detail"]
    assert "by-hand" in checks["recordings"]["detail"]
    assert not checks["storage"]["ok"] and "is no SQLite database" in checks["storage"]["detail"]


COMMANDS = {
    "studies": ("studies",),
    "show": ("show", *SHAPE),
    "emit": ("emit", "best", *SHAPE),
    "verify": ("verify", "best", *SHAPE),
    "profile": ("profile", "best", *SHAPE),
    "search": ("search", *SHAPE),
    "dashboard": ("dashboard",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_of_another_program_where_studies_are(
    explorer, recording, tmp_path, monkeypatch, command
):
    monkeypatch.setattr("explorer.report.studies.dashboard_program", lambda: "/bin/false")
    path = tmp_path / "studies" / "explorer.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title)")
    before = path.read_bytes()
    refused(explorer(*COMMANDS[command]), "is a database of another program")
    refused(
        explorer(*COMMANDS[command], "--storage", str(path)), "is a database of another program"
    )
    assert path.read_bytes() == before


def test_a_dashboard_that_fails_is_no_wrong_kernel(explorer, tmp_path, monkeypatch):
    path = tmp_path / "mine.db"
    open_storage(str(path))
    for program, says in (("/bin/false", "ended with exit code 1"), ("/none", "cannot be run")):
        monkeypatch.setattr(
            "explorer.report.studies.dashboard_program", lambda program=program: program
        )
        refused(explorer("dashboard", "--storage", str(path)), says)


# Standard output.


class Broken(io.StringIO):
    """A stream that fails where it is written, or only where it is flushed."""

    def __init__(self, error, when):
        super().__init__()
        self.error, self.when = error, when

    def write(self, text):
        if self.when == "write":
            raise self.error
        return super().write(text)

    def flush(self):
        if self.when == "flush":
            raise self.error


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
PRINTING = [("presets", "--json"), ("--help",), ("--version",)]


def run(arguments, stdout, stderr, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(SystemExit) as left:
        app(list(arguments), prog_name="explorer")
    return left.value.code


@pytest.mark.parametrize("when", ["write", "flush"])
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_that_is_gone_ends_it_in_silence(arguments, when, monkeypatch):
    stderr = io.StringIO()
    stdout = Broken(BrokenPipeError(errno.EPIPE, "Broken pipe"), when)
    assert run(arguments, stdout, stderr, monkeypatch) == 128 + signal.SIGPIPE
    assert stderr.getvalue() == ""


@pytest.mark.parametrize("when", ["write", "flush"])
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_stdout_is_said(arguments, when, monkeypatch):
    stderr = io.StringIO()
    assert run(arguments, Broken(NO_SPACE, when), stderr, monkeypatch) == 2
    (line,) = stderr.getvalue().splitlines()
    assert line.startswith("error: stdout cannot be written: No space left on device; ")


def test_a_closed_stdout_is_said(monkeypatch):
    stderr = io.StringIO()
    assert run(["presets"], None, stderr, monkeypatch) == 2
    assert stderr.getvalue().startswith("error: stdout cannot be written: it is closed")


@pytest.mark.parametrize("stderr", [None, Broken(NO_SPACE, "write")])
def test_what_stderr_loses_ends_no_command(stderr, monkeypatch):
    stdout = io.StringIO()
    assert run(["presets"], stdout, stderr, monkeypatch) == 0
    assert "online" in stdout.getvalue()
    stdout = io.StringIO()
    assert run(["show", "--cols", "0"], stdout, stderr, monkeypatch) == 2
    assert stdout.getvalue() == ""


def test_guards_are_taken_off(monkeypatch):
    for error, kind in ((NO_SPACE, OutputLost), (BrokenPipeError(), ReaderGone)):
        stdout = Broken(error, "write")
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(kind), guarded():
            print("text")
        assert sys.stdout is stdout


def test_a_terminal_gets_sentences_broken_between_words(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.stderr", Terminal())
    say("error: no study yet: /a/long/path/of/a/database.db does not exist")
    assert sys.stderr.getvalue().splitlines() == [
        "error: no study yet:",
        "/a/long/path/of/a/database.db",
        "does not exist",
    ]


def test_a_sentence_is_one_line_of_bounded_length(capsys):
    say(f"error: a\nb\x1b[2J \ud800 {'x' * 10_000}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: a b\\x1b[2J \\ud800 xxx") and len(line) < MAX_SENTENCE + 10


def started(arguments, **options):
    command = [sys.executable, "-m", "explorer", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def test_a_shells_redirections():
    """As a shell makes them: what Python flushes on leaving is lost in silence, too."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = started(["--version"], stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and said.count("\n") == 1
    process = started(["--version"], stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE


# The environment.


@pytest.mark.parametrize("value", ["0", "²", "9" * 5000])
def test_a_terminal_of_no_size(explorer, monkeypatch, value):
    monkeypatch.setenv("COLUMNS", value)
    monkeypatch.setenv("LINES", value)
    ran = explorer("presets")
    assert ran.code == 0 and ran.out


def test_a_completion_that_no_shell_asks_for_is_no_wrong_kernel(explorer, monkeypatch):
    monkeypatch.setenv("_EXPLORER_COMPLETE", "nonsense")
    assert explorer("presets").code == 2


@pytest.mark.parametrize("name", ["EXPLORER_CACHE_DIR", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("value", ["/dev/null", "x" * 5000, "\udcff"])
def test_a_cache_that_cannot_be(explorer, monkeypatch, tmp_path, name, value):
    from explorer.compile.compiler import Kernel, KernelCache
    from explorer.model.outcome import Resources

    monkeypatch.delenv("EXPLORER_CACHE_DIR", raising=False)
    monkeypatch.setenv(name, value)
    cache = KernelCache()
    with suppress(UnicodeEncodeError):
        cache.store("a" * 32, Kernel(b"cubin", "ptx", "log", Resources(0)))
    cache.load("a" * 32)


def test_a_user_without_a_home(monkeypatch):
    from pathlib import Path

    from explorer.compile.compiler import KernelCache

    def nobody(*_):
        raise RuntimeError("Could not determine home directory.")

    for name in ("EXPLORER_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert KernelCache().load("a" * 32) is None
