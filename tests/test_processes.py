"""Processes are started from a script as people write them: without a main guard."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import explorer.system.processes
from explorer.system.processes import FRESH, usable_cores

SCRIPT = """
from concurrent.futures import ProcessPoolExecutor
from operator import add
from explorer.system.processes import FRESH

print("the script runs")
with ProcessPoolExecutor(2, mp_context=FRESH) as pool:
    print(list(pool.map(add, [1, 2], [3, 4])))
process = FRESH.Process(target=print, args=("a process runs",))
process.start()
process.join()
print(process.exitcode)
"""


def test_a_script_without_a_main_guard_starts_processes(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert (ran.stdout.splitlines(), ran.stderr) == (
        ["the script runs", "[4, 6]", "a process runs", "0"],
        "",
    )


def test_threads_that_start_processes_at_once_leave_the_main_program_alone():
    main = sys.modules["__main__"]
    processes = [FRESH.Process(target=print) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda process: process.start(), processes))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert sys.modules["__main__"] is main


@pytest.mark.parametrize(
    ("share", "cores"),
    [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8), ("", 8)],
)
def test_a_container_may_use_its_share_of_the_cores(share, cores, monkeypatch, tmp_path):
    file = tmp_path / "cpu.max"
    file.write_text(f"{share}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(explorer.system.processes, "QUOTA", file)
    assert usable_cores() == cores
    file.unlink()
    assert usable_cores() == 8
