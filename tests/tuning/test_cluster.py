"""Many GPUs, by Dask: real schedulers and workers, which replay recordings in a drawn time.

Also on PostgreSQL, where a server is named by PGHOST.
"""

import signal
from dataclasses import replace

import pytest
from dask_processes import Processes, wait_until
from databases import digests, trials_of
from optuna.trial import TrialState

from explorer.devices.recording import load_recording, write_recording

pytest.importorskip("distributed")
pytestmark = pytest.mark.exhaustive

KERNELS = 300
MEAN_S = 0.12


@pytest.fixture
def recording(tmp_path):
    """The first kernels of a recording, in a file of its own."""
    whole = load_recording("h200-f32-128")
    kernels = whole.kernels[:KERNELS]
    header = replace(whole.header, kernel_count=len(kernels), sub_space={})
    made = replace(whole, header=header, kernels=kernels, comparison=None)
    path = tmp_path / "few.json.gz"
    write_recording(made, path)
    return made, path


def test_whatever_dies_each_kernel_is_recorded_once(url, recording, tmp_path):
    """A worker is killed, one stops, one joins late, and the coordinator is killed in between."""
    made, path = recording
    search = ("search", "--cols", "128", "--rows", str(made.header.problem.rows))
    search += ("--device", f"recorded:{path}", "--storage", url, "--trials", "1000")
    with Processes(tmp_path, MEAN_S) as processes:
        processes.scheduler()
        workers = [processes.worker() for _ in range(4)]
        first = processes.explorer(*search)
        wait_until(lambda: finished(url) >= 20)
        workers[0].send_signal(signal.SIGKILL)
        workers[1].send_signal(signal.SIGSTOP)
        processes.worker()
        wait_until(lambda: first.log.read_text().count("is lost") == 2, 20)
        wait_until(lambda: "3 GPUs left" in first.log.read_text() or finished(url) >= 150)
        first.send_signal(signal.SIGKILL)
        first.wait()
        before = finished(url)
        assert 20 <= before < KERNELS
        second = processes.explorer(*search)
        assert second.wait(60) == 0, second.log.read_text()
    trials = trials_of(url)
    evaluated = [trial for trial in trials if trial.user_attrs["digest"]]
    assert {trial.state for trial in evaluated} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(digests(trials)) == len(set(digests(trials))) == KERNELS
    times = {kernel.digest: kernel.outcome for kernel in made.kernels}
    for trial in evaluated:
        if trial.state is TrialState.COMPLETE:
            assert trial.value == times[trial.user_attrs["digest"]].time_us
    assert second.log.read_text().count(" kernels ·") >= 3


def finished(url):
    """How many kernels are stored."""
    try:
        trials = trials_of(url)
    except Exception:  # nothing is stored yet
        return 0
    return len(digests(trials))
