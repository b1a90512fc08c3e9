"""Many GPUs, by Dask: real schedulers and workers, which replay recordings in a drawn time.

Also on PostgreSQL, where a server is named by PGHOST.
"""

import gc
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")

from dask_processes import Processes, wait_until
from databases import digests, trials_of
from fake_evaluator import GPU
from optuna.trial import TrialState

import explorer
from explorer.devices.device import Facts, Job
from explorer.devices.recording import load_recording, write_recording
from explorer.evaluate import station
from explorer.evaluate.station import Described, code_digests
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import DeviceLost, InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Measured, Rejected, Resources, Stage
from explorer.model.problem import Problem
from explorer.tuning.cluster import Cluster, Reply, WorkerLost, open_cluster
from explorer.tuning.cluster_device import (
    ClusterBenches,
    ClusterDevice,
    cluster_evaluator,
    open_on_cluster,
)
from explorer.tuning.tune import tune

real = pytest.mark.exhaustive
needs_server = pytest.mark.skipif("PGHOST" not in os.environ, reason="needs a server")

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


# ------------------------------------------------------------------ real processes


@real
@pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=needs_server)], indirect=True
)
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
        wait_until(lambda: first.log.read_text().count("is lost") == 1, 10)
        # By then the kernels that were lost are done: with two workers lost, one is a crash.
        again = finished(url) + 30
        wait_until(lambda: finished(url) >= again)
        workers[1].send_signal(signal.SIGSTOP)
        processes.worker()
        # It takes 5 to 9 s where the cores are free; here some are shared by eight processes.
        wait_until(lambda: first.log.read_text().count("is lost") == 2, 20)
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert 20 <= finished(url) < KERNELS
        second = processes.explorer(*search)
        assert second.wait(60) == 0, second.log.read_text()
    trials = trials_of(url)
    evaluated = [trial for trial in trials if trial.user_attrs["digest"]]
    assert {trial.state for trial in evaluated} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(digests(trials)) == len(set(digests(trials))) == KERNELS
    measured = {k.digest: k.outcome for k in made.kernels if isinstance(k.outcome, Measured)}
    complete = {t.user_attrs["digest"]: t.value for t in evaluated if t.value is not None}
    assert complete == {digest: outcome.time_us for digest, outcome in measured.items()}
    lines = [line for line in second.log.read_text().splitlines() if " busy" in line]
    assert len({line.split(" · ")[0] for line in lines}) == 3, "the late worker is used"


def finished(url):
    """How many kernels are stored."""
    try:
        return len(digests(trials_of(url)))
    except Exception:  # nothing is stored yet
        gc.collect()  # what was raised may hold a connection, and with it a lock
        return 0


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A scheduler with one worker that has a GPU of a test, and one that only compiles."""
    with Processes(tmp_path_factory.mktemp("dask")) as processes:
        processes.scheduler()
        processes.worker(preload="fake_gpu")
        processes.worker(gpus=0, threads=1, preload="fake_gpu")
        yield processes


@real
def test_doctor_says_what_each_worker_has(running):
    asked = running.explorer("doctor", "--json")
    assert wait_until(lambda: asked.poll() is not None) and asked.returncode == 0
    told = asked.log.read_text()
    found = json.loads(told[told.index("{") :])["checks"]
    details = sorted(check["detail"] for check in found)
    assert any("compiles only" in one for one in details) and len(details) == 2
    assert any("NVIDIA H200, " in one and "softmax-explorer" in one for one in details)


@real
def test_a_list_of_problems_is_tuned(running, tmp_path):
    """A worker has the problem's kernels compiled, and does all that one machine would do."""
    problems = [Problem(64, 256), Problem(128, 512)]
    told = []
    with open_cluster("auto", None, str(running.file), told.append) as cluster:
        benches = ClusterBenches(cluster, "cold", 0, Accuracy.DEFAULT)
        progress = []
        found = tune(benches, problems, tmp_path / "a", tell=progress.append)
        assert {one.problem for one in found.table.problems} == set(problems)
        assert "busy" in progress[-1].workers[0]
        assert found.table.gpu == GPU and found.table.problems[0].timed
        assert tune(benches, problems, tmp_path / "a").resumed == 2
    assert any(sentence.startswith("dashboard: http") for sentence in told)


@real
def test_libraries_are_compared_and_few_problems_are_tuned_by_their_kernels(running, tmp_path):
    """Of one problem, all GPUs evaluate kernels; a peer enters where it is timed."""
    more = {"cluster": running.file, "rows": 64}
    kept = {"storage": tmp_path / "a.db", "journal": tmp_path / "b"}
    run = explorer.compare(cols=256, peers=["torch"], **kept, **more)
    (one,) = run.comparisons
    assert one.peers[0].name == "torch" and one.peers[0].time_us == 120.0
    assert "nothing was searched" in one.origin and one.environment.driver == "580.1"
    running.worker(preload="fake_gpu")
    with open_cluster("auto", None, str(running.file), print) as cluster:
        wait_until(lambda: len(cluster.gpus) == 2)
    tuned = explorer.tune(cols=256, effort="quick", output=tmp_path / "t.json", **more)
    (one,) = tuned.run.table.problems
    assert one.torch_us == 120.0 and len(one.timed) > 20


@real
def test_a_recording_is_made(running, tmp_path):
    asked = running.explorer(
        *("record", "--cols", "256", "--rows", "64", "--sample", "12"),
        *("--output", str(tmp_path / "r.json.gz")),
    )
    assert asked.wait(60) == 0, asked.log.read_text()
    assert len(load_recording(str(tmp_path / "r.json.gz")).kernels) == 12


@real
def test_a_cluster_that_vanishes_is_a_sentence_and_nothing_is_lost(recording, tmp_path):
    made, path = recording
    with Processes(tmp_path, MEAN_S) as processes:
        scheduler = processes.scheduler()
        processes.worker()
        search = ("search", "--cols", "128", "--rows", str(made.header.problem.rows))
        search += ("--device", f"recorded:{path}", "--storage", str(tmp_path / "a.db"))
        asked = processes.explorer(*search, "--trials", "1000")
        wait_until(lambda: finished(str(tmp_path / "a.db")) >= 5)
        scheduler.kill()
        assert asked.wait(30) == 2
        assert "has vanished; once it is back, run the same command again" in asked.log.read_text()
        before = finished(str(tmp_path / "a.db"))
        assert 5 <= before < KERNELS
        processes.scheduler()
        processes.worker()
        again = processes.explorer(*search, "--trials", "3")
        assert again.wait(60) == 0, again.log.read_text()
        assert finished(str(tmp_path / "a.db")) == before + 3


@real
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_sigterm_ends_a_run_as_ctrl_c_does(recording, tmp_path, sent):
    """With workers on this machine, which end as well; Ctrl-C reaches them, too."""
    made, path = recording
    with Processes(tmp_path, MEAN_S) as processes:
        asked = processes.explorer(
            "search",
            *("--cols", "128", "--rows", str(made.header.problem.rows), "--trials", "1000"),
            *("--device", f"recorded:{path}", "--storage", str(tmp_path / "a.db")),
            at=("--gpus", "2"),
        )
        wait_until(lambda: re.search("[1-9][0-9]* done", asked.log.read_text()))
        if sent == signal.SIGINT:
            os.killpg(asked.pid, sent)
        else:
            asked.send_signal(sent)
        assert asked.wait(30) == 130
    assert " kept; run the same command again" in asked.log.read_text()
    assert "Traceback" not in asked.log.read_text()


@real
def test_a_program_that_uses_several_gpus_need_not_be_guarded(recording, tmp_path):
    made, path = recording
    program = tmp_path / "unguarded.py"
    program.write_text(
        "import explorer\n"
        f"found = explorer.search(cols=128, rows={made.header.problem.rows}, trials=6, gpus=2,\n"
        f"    device='recorded:{path}', storage='a.db', verify=False)\n"
        "print(found.trials)\n"
    )
    ran = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "6", "")


@real
def test_a_cluster_by_tls(recording, tmp_path):
    made, path = recording
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made_by = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=dask")
    subprocess.run([*made_by, "-keyout", key, "-out", cert], check=True, capture_output=True)
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    certificates = {f"{tls}CA_FILE": str(cert)}
    for one in ("SCHEDULER", "WORKER", "CLIENT"):
        certificates |= {f"{tls}{one}__CERT": str(cert), f"{tls}{one}__KEY": str(key)}
    with Processes(tmp_path, more=certificates) as processes:
        processes.scheduler("--protocol", "tls")
        processes.worker()
        asked = processes.explorer(
            *("search", "--cols", "128", "--rows", str(made.header.problem.rows), "--trials", "5"),
            *("--device", f"recorded:{path}", "--storage", str(tmp_path / "a.db")),
        )
        assert asked.wait(60) == 0, asked.log.read_text()
    assert json.loads(processes.file.read_text())["address"].startswith("tls://")


# ------------------------------------------------------------------ who is used


class Client:
    """Stands in for Dask's: workers with what they have, and tasks that are never done."""

    def __init__(self, workers):
        self.workers, self.marked, self.submitted = workers, {}, []

    def run(self, function, given, *, workers, on_error):
        if function.__name__ == "_marked":
            self.marked |= dict.fromkeys(workers, given)
            return {}
        return {name: one for name, one in self.workers.items() if name in (workers or [name])}

    def subscribe_topic(self, topic, handler):
        self.handler = handler

    def submit(self, function, *given, **how):
        self.submitted.append((given, how))
        return Future()

    def cancel(self, tasks):
        pass

    def nthreads(self):
        return dict.fromkeys(self.workers, 2)


def described(**other):
    usual = {"host": "a", "package": "1", "python": "3", "code": code_digests(), "nvrtc": "13.0"}
    return Described(**{**usual, "driver": "580", "gpu": GPU, "offers": True, **other})


def joined(workers, device="auto"):
    told = []
    cluster = Cluster(Client(workers), "tcp://x:1", device, told.append)
    cluster.start()
    return cluster, told


A100 = known_gpu("NVIDIA A100-SXM4-80GB")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"code": "templates 0, space 0"}, "templates 0, space 0 of softmax-explorer 1, and this"),
        ({"fault": "no driver"}, "is not used: no driver"),
    ],
)
def test_a_worker_that_does_not_fit_is_left_out_and_told(other, why):
    cluster, (told,) = joined({"a": described(), "b": described(**other)})
    assert [*cluster.gpus] == ["a"] and "b" not in cluster._client.marked
    assert told.startswith("worker b") and why in told
    with pytest.raises(InvalidInput, match=r"no worker with a GPU that can be used; worker b .*"):
        joined({"b": described(**other)})


def test_workers_that_cannot_say_what_they_have_are_told():
    _, (told,) = joined({"a": described(), "b": ModuleNotFoundError("No module named 'explorer'")})
    assert "No module named 'explorer'" in told and "install softmax-explorer there" in told


def test_a_cluster_of_several_gpus_asks_for_one_kind():
    both = {"a": described(), "b": described(gpu=A100)}
    with pytest.raises(InvalidInput, match=r"1 NVIDIA A100-SXM4-80GB, 1 NVIDIA H200: name one"):
        joined(both)
    cluster, (told,) = joined(both, "A100")
    assert [*cluster.gpus] == ["b"] and cluster.device == "cuda:0"
    assert told == "worker a is not used: its GPU is NVIDIA H200, and this run is of " + A100.name
    with pytest.raises(InvalidInput, match="device is 'B200'"):
        joined(both, "B200")


def test_other_versions_are_told_and_another_compiler_is_not_used():
    others = {"driver": "570", "package": "0.9", "python": "3.12", "nvrtc": "13.1"}
    cluster, (told,) = joined({"a": described(), "c": described(), "b": described(**others)})
    for word in ("compiles nothing", "nvrtc is 13.1", "driver is 570", "package is 0.9"):
        assert word in told
    assert len(cluster.gpus) == 3
    assert [len(cluster._client.marked[one]) for one in "acb"] == [2, 2, 1]


def test_a_worker_that_joins_late_is_used_and_one_that_is_lost_is_told():
    cluster, told = joined({"a": described()})
    client = cluster._client
    client.workers["b"] = described()
    client.handler((0.0, {"action": "add-worker", "worker": "b"}))
    wait_until(lambda: len(cluster.gpus) == 2)
    client.handler((0.0, {"action": "remove-worker", "worker": "a"}))
    wait_until(lambda: len(told) == 2)
    assert told == [
        "worker b has joined: 2 GPUs",
        "worker a on a is lost, its work is done again: 1 GPU left",
    ]
    assert cluster.lines == ("b · NVIDIA H200 · 0 done · 0 % busy",)


def test_what_had_no_worker_is_asked_again_and_is_lost_the_second_time():
    """The scheduler looks at a task when a worker joins, which is not marked by then."""
    cluster, told = joined({"a": described()})
    client = cluster._client
    answer = cluster.ask("evaluated", gpu=0.5)
    for times in (1, 2):
        (lost,) = cluster.gpus
        cluster._left(lost)
        assert "waits for one that joins" in told[-1]
        client.workers[f"new{times}"] = described()
        cluster._joined(f"new{times}")
        assert len(client.submitted) == 2
    with pytest.raises(WorkerLost, match="2 workers were lost with it"):
        answer.result(0)


def test_a_worker_that_may_start_no_process_says_how_it_is_started(monkeypatch):
    monkeypatch.setattr(station, "current_process", lambda: SimpleNamespace(daemon=True))
    fault = station.Station().described("cuda:0", 1).fault
    assert "--no-nanny" in fault and "DASK_DISTRIBUTED__WORKER__DAEMON=False" in fault
    assert station.Station().described("", 1).fault == ""


# ------------------------------------------------------------------ GPUs that differ


class Answers:
    """A cluster whose workers answer at once, each with its own limit."""

    device, gpus, lines = "cuda:0", {"a": None, "b": None}, ()

    def __init__(self, limits_us):
        self.limits_us = limits_us

    def ask(self, name, *given, **how):
        answer = Future()
        worker, limit_us = self.limits_us.pop(0)
        if limit_us is None:
            answer.set_exception(WorkerLost())
        elif name == "opened":
            answer.set_result(Reply(worker, 0.0, (GPU, Facts(limit_us=limit_us)), None))
        else:
            measured = Measured((2 * limit_us,) * 9, 1e-7, Resources(registers=32), "x")
            answer.set_result(Reply(worker, 0.0, (measured, limit_us), None))
        return answer


def test_times_of_another_gpu_are_stated_by_its_own_limit():
    device = ClusterDevice(Answers([("a", 60.0), ("b", 61.5), ("a", 60.0)]))
    device.open(None)
    times = [device.evaluate(Job(Config(threads=32 * n))).samples_us[0] for n in (1, 2)]
    assert times == [120.0, 120.0]
    assert "60 to 61.5 µs on 2 GPUs, 2.5 % apart" in device.spread


def test_a_kernel_with_which_two_workers_were_lost_is_a_crash():
    device = ClusterDevice(Answers([("a", 60.0), ("b", None)]))
    device.open(None)
    outcome = device.evaluate(Job(Config()))
    assert isinstance(outcome, Rejected) and outcome.stage is Stage.CRASH
    assert device.spread == ""


def test_a_run_that_is_stopped_waits_for_nothing_that_compiles():
    """All workers may be lost: what is asked of them would never end."""
    cluster = Answers([("a", 60.0)])
    ended = []
    cluster.threads, cluster.end = 1, ended.append
    with (
        pytest.raises(KeyboardInterrupt),
        cluster_evaluator(cluster, Problem(64, 256), "cold", 0, Accuracy.DEFAULT),
    ):
        raise KeyboardInterrupt
    assert ended == ["the run was stopped;"]


# ------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("gpus", "at", "device", "why"),
    [
        ("2", None, "auto", "gpus is 2, and there is no GPU here: no NVIDIA driver"),
        ("all", None, "cuda:1", "device is cuda:1 and gpus is all; leave one of the two out"),
        ("none", None, "auto", "gpus is 'none'; it must be a whole number"),
        (0, None, "auto", "gpus is 0; it must be a whole number"),
        ("2", "tcp://x:1", "auto", "gpus is 2 and cluster is tcp://x:1"),
        (None, "no.json", "auto", r"cluster is 'no.json', which does not exist; give the"),
    ],
)
def test_many_gpus_that_cannot_be_are_a_sentence(gpus, at, device, why, monkeypatch):
    monkeypatch.setattr(
        "explorer.tuning.cluster.why_no_gpu", lambda _: "no NVIDIA driver (libcuda.so.1)"
    )
    settings = (Problem(64, 256), device, "cold", 0, Accuracy.DEFAULT, gpus, at, print)
    with pytest.raises(InvalidInput, match=why), open_on_cluster(*settings):
        pass


def test_more_gpus_than_there_are_are_a_sentence(monkeypatch):
    monkeypatch.setattr("explorer.tuning.cluster.why_no_gpu", lambda _: None)
    monkeypatch.setattr("explorer.tuning.cluster.gpus_here", lambda: 2)
    with (
        pytest.raises(InvalidInput, match="gpus is 3, and this machine has 2 GPUs; give 2 or all"),
        open_cluster("auto", "3", None, print),
    ):
        pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(InvalidInput, match=r"pip install '.\[cluster\]'"),
        open_cluster("auto", "2", None, print),
    ):
        pass


def test_what_is_asked_of_a_cluster_that_is_gone_fails_at_once():
    cluster, _ = joined({"a": described()})
    under_way = cluster.ask("evaluated", gpu=0.5)
    cluster.end("the cluster has vanished; once it is back,")
    for answer in (under_way, cluster.ask("evaluated", gpu=0.5)):
        with pytest.raises(DeviceLost, match="run the same command again: what was finished is"):
            answer.result(0)


# ------------------------------------------------------------------ the guide


@real
def test_the_guide_is_what_happens(tmp_path, monkeypatch):
    """Its commands for one host run as they stand there; the scheduler has its usual port."""
    from distributed import Client as Real

    root = Path(__file__).resolve().parents[2]
    for folder in (root / "tests", root / "tests" / "cli"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(root))
    from command_line import command_line
    from documents import Runner, adapted, with_printed

    path = root / "explorer" / "guide" / "cluster.md"
    try:
        runner = Runner(tmp_path, adapted(command_line(monkeypatch, tmp_path)))
        assert with_printed(path, runner, ("cluster",)) == path.read_text()
    finally:
        with Real("tcp://127.0.0.1:8786", timeout=5) as client:
            client.shutdown()
