"""Commands run in a folder, and searches in folders that tests copy."""

import json
from dataclasses import asdict, dataclass
from functools import cache

import pytest
import typer.main
from typer.testing import CliRunner

from explorer.cli import app

KEPT = "ran.json"

built = cache(typer.main.get_command)
"""Typer builds all commands of a program each time it runs: 10 ms, of 500 runs."""


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


def command_line(monkeypatch, folder):
    """Run `explorer ARGS` in a folder, with no driver whatever this machine has."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("typer.testing._get_command", built)
    without = "no NVIDIA driver (libcuda.so.1 is not found)"
    for module in ("program", "device"):
        monkeypatch.setattr(f"explorer.devices.cuda.{module}.driver_problem", lambda: without)
    monkeypatch.setattr("explorer.devices.names.driver_problem", lambda: without)

    def run(*args):
        result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="explorer")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


def keep_search(folder, words):
    """Search in a folder, and keep what that printed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ran = command_line(monkeypatch, folder)(*words)
    assert ran.code == 0, ran.err
    (folder / KEPT).write_text(json.dumps(asdict(ran)))


def kept_search(folder):
    """Return what the search printed that was kept in a folder."""
    return Ran(**json.loads((folder / KEPT).read_text()))
