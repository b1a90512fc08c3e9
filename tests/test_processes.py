"""Processes are started from a script as people write them: without a main guard."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
from concurrent.futures import ProcessPoolExecutor
from operator import add
from explorer.processes import FRESH

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
