"""A search on a GPU: memory stays flat, and faults of kernels do not end it."""

import os
import subprocess
from pathlib import Path

import pytest

from explorer.devices.cuda import CudaDevice
from explorer.evaluate.live import LiveEvaluator
from explorer.problem import Problem
from explorer.search import open_storage, run_search


def resident_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def device_mib() -> float:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


@pytest.mark.alone
@pytest.mark.parametrize("trials", [250, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_memory_stays_flat(trials, tmp_path):
    """Host: searcher and worker together. Device: all that is in use on the GPU.

    What this process holds before the search began depends on which tests it has run.
    """
    device = CudaDevice(0)
    seen: list[tuple[int, float, float]] = []

    def look(progress):
        if progress.measured % 25 == 1 and (not seen or progress.measured > seen[-1][0]):
            host = resident_mib(os.getpid()) + resident_mib(device._process.pid)
            seen.append((progress.measured, host, device_mib()))

    with LiveEvaluator(Problem(2048, 4096), device) as live:
        storage = open_storage(str(tmp_path / "memory.db"))
        result = run_search(live, storage, trials=trials, seed=1, on_progress=look)
    print("\nkernels  host MiB  device MiB")
    for kernels, host, used in seen:
        print(f"{kernels:7d}  {host:8.0f}  {used:10.0f}")
    assert result.measured + sum(result.rejected.values()) >= trials
    _, first, _ = seen[0]
    assert max(host for _, host, _ in seen) - first < 250
    settled = [memory for kernels, *memory in seen if kernels > trials // 2]
    # Verification buffers grow to the largest block that was tried, then no more.
    for used in zip(*settled, strict=True):
        assert max(used) - min(used) <= 64
