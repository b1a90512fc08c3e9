"""Processes that work on one GPU take turns."""

import subprocess
import sys
import time

from explorer.devices.cuda.device import turn_on

HOLDER = """
import sys, time
from explorer.devices.cuda.device import turn_on
with turn_on(sys.argv[1]):
    print("held", flush=True)
    time.sleep(0.5)
"""


def test_a_gpu_is_one_process_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with subprocess.Popen([sys.executable, "-c", HOLDER, "ab"], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        began = time.monotonic()
        with turn_on("cd"):
            assert time.monotonic() - began < 0.3
        with turn_on("ab"):
            assert time.monotonic() - began > 0.3


def test_a_folder_without_locks_is_no_hindrance(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with turn_on("ab"):
        pass
