"""What is compiled ahead for peers: in processes that see no GPU, in order, whatever fails."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Lock
from pathlib import Path
from types import SimpleNamespace

import pytest

from explorer.model.gpu_spec import known_gpu
from explorer.model.peer import PeerName
from explorer.model.problem import Problem
from explorer.peers import ahead
from explorer.peers.ahead import PeersAhead, hide_gpus, sees_a_gpu, serve

GPU = known_gpu("NVIDIA H200")
PROBLEMS = [Problem(8, cols) for cols in (64, 96, 128)]
PEERS = [PeerName(name, f"t:{name}") for name in ("raises", "unknown", "notes")]


def raises(problem, gpu):
    raise SystemExit("no compiler")


def notes(problem, gpu):
    """Leave a file that says what this process sees."""
    told = f"{gpu.name} {os.environ['CUDA_VISIBLE_DEVICES']!r} {os.environ['CUTE_DSL_ARCH']}"
    partial = Path(os.environ["EXPLORER_TEST_NOTES"]) / f"{problem.cols}.partial"
    partial.write_text(f"{told} {os.getpid()}")
    partial.rename(partial.with_suffix(""))


def test_late_problems_are_left_out_and_failures_cost_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPLORER_TEST_NOTES", str(tmp_path))
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    targets = {f"t:{name}": f"{__name__}:{name}" for name in ("raises", "notes")}
    monkeypatch.setattr(ahead, "AHEAD", targets)
    with PeersAhead(GPU, processes=1) as processes:
        for problem in PROBLEMS:
            processes.submit(problem, PEERS)
        processes.begin(PROBLEMS[1])  # long before the process has started
        until = time.monotonic() + 60
        while not (tmp_path / "128").exists() and time.monotonic() < until:
            time.sleep(0.02)
        (process,) = processes._processes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["128", "96"]
    told = (tmp_path / "96").read_text().rpartition(" ")
    assert told[0] == "NVIDIA H200 '' sm_90a" and int(told[2]) == process.pid != os.getpid()
    assert not process.is_alive() and "CUTE_DSL_ARCH" not in os.environ


def makes_a_lock(problem, gpu):
    """As libraries do that PyTorch imports; in this process it is a semaphore with a name."""
    makes_a_lock.kept = Lock()
    notes(problem, gpu)


COMPILING = """
import os, sys, time
from pathlib import Path
from tests.peers.test_ahead import GPU, PROBLEMS, PeerName, PeersAhead, ahead

ahead.AHEAD = {"t:lock": "tests.peers.test_ahead:makes_a_lock"}
note = Path(os.environ["EXPLORER_TEST_NOTES"]) / str(PROBLEMS[0].cols)
until = time.monotonic() + 60
with PeersAhead(GPU, processes=1) as processes:
    processes.submit(PROBLEMS[0], [PeerName("lock", "t:lock")])
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.02)
sys.exit(not note.exists())
"""


def test_nothing_is_left_for_python_to_warn_of(tmp_path):
    environment = {**os.environ, "EXPLORER_TEST_NOTES": str(tmp_path)}
    environment.pop("CUTE_DSL_ARCH", None)
    ran = subprocess.run(
        [sys.executable, "-c", COMPILING],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def endless(problem, gpu):
    is_noted = False
    while True:
        with suppress(BaseException):
            if not is_noted:
                is_noted = True
                notes(problem, gpu)
            time.sleep(60)


def test_a_process_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPLORER_TEST_NOTES", str(tmp_path))
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    monkeypatch.setattr(ahead, "AHEAD", {"t:endless": f"{__name__}:endless"})
    with PeersAhead(GPU, processes=1) as processes:
        processes.submit(PROBLEMS[0], [PeerName("endless", "t:endless")])
        until = time.monotonic() + 60
        while not (tmp_path / "64").exists() and time.monotonic() < until:
            time.sleep(0.02)
        (process,) = processes._processes
        assert process.is_alive()
    assert not process.is_alive() and process.exitcode == -signal.SIGKILL


def test_nothing_starts_where_nothing_can_be_compiled_ahead():
    with PeersAhead(GPU) as processes:
        processes.submit(PROBLEMS[0], PEERS)
        processes.begin(PROBLEMS[0])
        assert processes._processes == []


@pytest.mark.parametrize(("status", "sees"), [(100, False), (0, True), (999, True)])
def test_a_driver_says_whether_a_gpu_is_seen(monkeypatch, status, sees):
    driver = SimpleNamespace(cuInit=lambda flags: status)
    monkeypatch.setattr(ahead.ctypes, "CDLL", lambda name: driver)
    assert sees_a_gpu() is sees


def test_without_a_driver_no_gpu_is_seen(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ahead.ctypes, "CDLL", missing)
    assert sees_a_gpu() is False


def test_a_process_that_still_sees_a_gpu_compiles_nothing(monkeypatch):
    """It could work on the GPU while another problem is timed there."""
    for name in ("CUDA_VISIBLE_DEVICES", "QUACK_ARCH", "CUTE_DSL_ARCH", "EXPLORER_DEBUG"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(ahead, "sees_a_gpu", lambda: True)
    monkeypatch.setattr(ahead.os, "nice", lambda by: None)
    monkeypatch.setattr(ahead.signal, "signal", lambda *_: None)

    def asked(timeout):
        raise AssertionError("it asks for something to compile")

    serve(SimpleNamespace(get=asked), SimpleNamespace(value=0), GPU)


@pytest.mark.parametrize(
    ("gpu", "number", "target"),
    [("NVIDIA H200", "90", "sm_90a"), ("NVIDIA A100-SXM4-80GB", "80", "sm_80")],
)
def test_compilers_are_told_the_gpu_that_they_cannot_see(monkeypatch, gpu, number, target):
    for name in ("CUDA_VISIBLE_DEVICES", "QUACK_ARCH", "CUTE_DSL_ARCH"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    hide_gpus(known_gpu(gpu))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert (os.environ["QUACK_ARCH"], os.environ["CUTE_DSL_ARCH"]) == (number, target)
