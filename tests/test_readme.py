"""The README's commands are those that are run, and exist."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from explorer.cli import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAIN_JOB = (
    "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/explorer search --cols 4096"
)
TESTS = (
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && "
    ".venv/bin/python -m pytest -q -n auto"
)


def shell_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_exactly_two_commands_set_up():
    assert [line for line in shell_lines() if "pip install" in line] == [MAIN_JOB, TESTS]


def test_ci_runs_the_readmes_lines(tmp_path):
    """.ci/run in a copy whose README holds harmless commands of the same form runs just those."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    log = tmp_path / "log"
    marked = README.replace(
        MAIN_JOB, f"python3 -m venv --help >>{log} && echo .venv/bin/explorer search >>{log}"
    )
    marked = marked.replace(
        TESTS, f"python3 -m venv --help >{log} && echo .venv/bin/python -m pytest >>{log}"
    )
    (tmp_path / "README.md").write_text(marked)
    run = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    ran = [line for line in log.read_text().splitlines() if line.startswith(".venv")]
    assert ran == [".venv/bin/python -m pytest", ".venv/bin/explorer search"]


def test_ci_finds_both_commands():
    assert len(re.findall(r"(?m)^python3 -m venv .* && .* \.venv/bin/explorer search", README)) == 1
    assert (
        len(re.findall(r"(?m)^python3 -m venv .* && .* \.venv/bin/python -m pytest", README)) == 1
    )


@pytest.mark.parametrize(
    "command", [c.name or c.callback.__name__ for c in app.registered_commands]
)
def test_every_command_has_help_and_is_in_the_readme(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0 and "Usage: " in result.output
    assert f"`explorer {command}" in README


def test_every_option_in_the_readme_exists():
    for line in re.findall(r"`(explorer [^`]+)`", README) + [
        line for line in shell_lines() if line.startswith("explorer ")
    ]:
        words = shlex.split(line, comments=True)
        help_text = CliRunner().invoke(app, [words[1], "--help"]).output
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text, line


def test_readme_is_short():
    assert len(README.splitlines()) <= 150
