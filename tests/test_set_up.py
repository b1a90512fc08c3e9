"""The README's two commands that set up are those that .ci/run runs."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAIN_JOB = (
    "python3 -m venv .venv && . .venv/bin/activate && pip install -q . && "
    "explorer search --cols 4096"
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


INSTALLED = '#!/bin/sh\necho "$0 $*" >>log\n'
"""A program that says how it was called."""


def run_ci(folder, tests, main_job):
    """What .ci/run does in a copy whose README has these commands, where all is installed."""
    programs = [folder / ".venv" / "bin" / name for name in ("python", "explorer")]
    for program in programs:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(INSTALLED)
        program.chmod(0o755)
    (folder / "bin").mkdir()
    for name in ("pg_virtualenv", "chromium"):  # or .ci/run would install them
        program = folder / "bin" / name
        program.write_text('#!/bin/sh\nexec "$@"\n')
        program.chmod(0o755)
    (folder / ".ci").mkdir()
    (folder / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (folder / "README.md").write_text(README.replace(TESTS, tests).replace(MAIN_JOB, main_job))
    path = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", ".ci/run"], cwd=folder, capture_output=True, text=True, env=os.environ | path
    )


def test_ci_runs_the_readmes_lines_and_then_all_other_tests(tmp_path):
    """Commands of the same form that install nothing; further tests are run by the first one's."""
    set_up = "python3 -m venv --help >help && true"
    tests = f"{set_up} && .venv/bin/python -m pytest -q -n auto"
    main_job = f"{set_up} && PATH=.venv/bin:$PATH && explorer search --cols 4096"
    ran = run_ci(tmp_path, tests, main_job)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "help").exists()
    exhaustive = ".venv/bin/python -m pytest -q -n auto -n 3 -m exhaustive"
    install = ".venv/bin/python -m pip install -q -e '.[torch-tests]'"
    folders = "tests/runtime tests/pytorch tests/export"
    of_torch = f".venv/bin/python -m pytest -q -n auto -m '' -k 'torch or language' {folders}"
    driver = install.replace("torch-tests", "postgresql")
    shared = "-m '' -k postgresql tests/tuning"
    server = f".venv/bin/python -m pytest -q -n auto {shared}"
    of_server = f"{driver} && pg_virtualenv {server}"
    commands = [tests, main_job, exhaustive, f"{install} && {of_torch}", of_server]
    assert ran.stdout.splitlines() == [f"+ {command}" for command in commands]
    assert (tmp_path / "log").read_text().splitlines() == [
        ".venv/bin/python -m pytest -q -n auto",
        ".venv/bin/explorer search --cols 4096",
        exhaustive,
        install.replace("'", ""),
        of_torch.replace("'", ""),
        driver.replace("'", ""),
        server.replace("'", ""),
    ]


def test_ci_ends_where_the_quick_tests_fail(tmp_path):
    tests = "python3 -m venv --help >help && false && .venv/bin/python -m pytest -q"
    ran = run_ci(tmp_path, tests, MAIN_JOB)
    assert ran.returncode == 1 and ran.stdout == f"+ {tests}\n"
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("tests", ["", "pytest", f"{TESTS}\n{TESTS}"])
def test_ci_runs_nothing_where_the_readme_has_not_just_one_command_for_it(tmp_path, tests):
    ran = run_ci(tmp_path, tests, MAIN_JOB)
    assert ran.returncode == 1 and ran.stdout == ""
    assert "has not exactly one set-up command that runs: " in ran.stderr


def test_ci_finds_both_commands():
    assert len(re.findall(r"(?m)^python3 -m venv .* && .* explorer search", README)) == 1
    assert (
        len(re.findall(r"(?m)^python3 -m venv .* && .* \.venv/bin/python -m pytest", README)) == 1
    )
