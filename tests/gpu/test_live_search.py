"""Searches on a GPU: memory stays flat, and two at once share a study and take turns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.verification import CACHED_BYTES
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.problem import Problem
from explorer.space import Space
from explorer.space.space import sampled
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import load_history, survey


def resident_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def device_mib() -> float:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def memory_mib(device: CudaDevice) -> tuple[float, float]:
    """MiB in use on the host, by this process and the device's worker, and on the GPU."""
    return resident_mib(os.getpid()) + resident_mib(device._process.pid), device_mib()


def told(seen: list[tuple[float, float]]) -> str:
    return "\n".join(f"{host:8.0f} MiB on the host, {used:8.0f} on the GPU" for host, used in seen)


@pytest.mark.alone
@pytest.mark.parametrize("trials", [250, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_memory_stays_flat(trials, tmp_path):
    """Verification problems are kept for later kernels, up to a limit; kernels leave nothing.

    What this process holds before the search begins depends on which tests it has run.
    """
    device = CudaDevice(0)
    seen: list[tuple[float, float]] = []

    def look(progress):
        if progress.measured % 25 == 1:
            seen.append(memory_mib(device))

    with DeviceEvaluator(Problem(2048, 4096), device) as live:
        storage = open_storage(str(tmp_path / "memory.db"))
        result = run_search(live, storage, trials=trials, seed=1, on_progress=look)
        again = [evaluated_again(live, device, times) for times in (1, 4)]
    print(f"\n{told(seen)}\nthe same kernels again:\n{told(again)}")
    assert result.measured + sum(result.rejected.values()) >= trials
    host, used = zip(*seen, strict=True)
    kept = CACHED_BYTES / 2**20  # and their inputs, half of it, on the host
    assert max(host) - host[0] < 250 + kept / 2
    assert max(used) - used[0] < 128 + kept
    for first, last in zip(*again, strict=True):
        assert abs(last - first) <= 16


def evaluated_again(live: DeviceEvaluator, device: CudaDevice, times: int) -> tuple[float, float]:
    """The memory in use after 30 kernels were loaded, verified and timed so many times."""
    for config in times * sampled(Space(live.problem, live.gpu), 30, seed=1):
        live.evaluate(config)
    return memory_mib(device)


@pytest.mark.alone
def test_two_processes_share_a_study(tmp_path):
    """Each evaluates its own kernels, none twice; times are as if each had the GPU to itself."""
    database = tmp_path / "shared.db"
    command = [sys.executable, "-m", "explorer", "search", "--cols", "4096", "--trials", "40"]
    command += ["--storage", str(database)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=200)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    storage = open_storage(str(database), read_only=True)
    (summary,) = survey(storage).summaries
    (study,) = storage.get_all_studies()
    digests = [t.user_attrs["digest"] for t in storage.get_all_trials(study._study_id)]
    evaluated = [digest for digest in digests if digest]
    assert len(evaluated) == len(set(evaluated)) == 80
    view = load_history(storage, summary.problem).view
    assert view.finals.winner.time_us == pytest.approx(view.finals.limit_us, rel=0.04)
    for trial in storage.get_all_trials(study._study_id):
        if "finals_us" in trial.user_attrs:
            assert trial.values[0] == pytest.approx(trial.user_attrs["finals_us"], rel=0.04)
