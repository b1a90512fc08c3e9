"""A cluster on one GPU: what it costs a search, and that all GPUs of a machine are used."""

import os
import subprocess
import sys
import time

import pytest
from dask_processes import Processes

import explorer
from explorer.devices.names import gpus_here

pytest.importorskip("distributed")

SEARCH = ("search", "--cols", "4096", "--dtype", "bf16", "--json")
MOST_S = 1.0
"""By which 200 kernels may take longer where workers are up."""


def seconds(run):
    began = time.monotonic()
    code = run()
    assert code == 0
    return time.monotonic() - began


@pytest.mark.alone
@pytest.mark.exhaustive
def test_a_cluster_of_one_gpu_costs_a_search_a_second_at_most(tmp_path):
    """Two more workers only compile. Nothing is in a cache, and the GPU's process is up."""
    trials = ("--trials", "200")

    def plain():
        words = [*SEARCH, *trials, "--storage", str(tmp_path / "plain.db")]
        cache = {"EXPLORER_CACHE_DIR": str(tmp_path / "plain")}
        command = [sys.executable, "-m", "explorer", *words]
        return subprocess.run(command, env={**os.environ, **cache}, capture_output=True).returncode

    cache = {"EXPLORER_CACHE_DIR": str(tmp_path / "cluster")}
    with Processes(tmp_path, more=cache) as processes:
        processes.scheduler()
        processes.worker(threads=os.cpu_count())
        for _ in range(2):
            processes.worker(gpus=0, threads=os.cpu_count())

        def spread(*more, name):
            storage = ("--storage", str(tmp_path / f"{name}.db"))
            return processes.explorer(*SEARCH, *more, *storage).wait(120)

        assert spread("--trials", "1", "--seed", "9", name="first") == 0
        alone_s, spread_s = seconds(plain), seconds(lambda: spread(*trials, name="cluster"))
    print(f"200 kernels: {alone_s:.1f} s alone, {spread_s:.1f} s by a cluster")
    assert spread_s < alone_s + MOST_S


def test_all_gpus_of_the_machine_search_and_tune(tmp_path):
    told = []
    found = explorer.search(
        cols=4096,
        gpus="all",
        trials=40,
        storage=tmp_path / "a.db",
        progress=lambda progress: told.append(progress.workers),
    )
    assert found.measured and found.finals.interleaved
    assert len(told[-1]) == gpus_here()
    tuned = explorer.tune(
        cols=[512, 1000],
        rows=4096,
        effort="quick",
        torch=False,
        gpus="all",
        output=tmp_path / "t.json",
    )
    assert len(tuned.run.table.problems) == 2 and not tuned.run.untuned
