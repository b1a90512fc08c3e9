"""A cluster's GPUs as one device for one problem, and as benches for a list of problems.

Times of several GPUs are compared as ratios to the limit on the same one: a time of another GPU
than the first is stated as the first one's, by their limits. Finals are on one GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from explorer.compile.compiler import CompileFailure, Compiler, Kernel
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.evaluate.device_evaluator import DeviceEvaluator, environment_of
from explorer.evaluate.open_evaluator import check_timing
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Measured, Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.tuning.cluster import Cluster, Reply, WorkerLost, open_cluster

SHARE = 0.5
"""Of a GPU, that a kernel takes: the next one waits in the worker, and is begun at once."""

MOST_COMPILING = 64
"""Threads of the coordinator that wait for kernels to be compiled, at most."""


class ClusterCompiler(Compiler):
    """Compiles in the workers of a cluster, which keep what they made on their disks."""

    def __init__(self, cluster: Cluster, arch: str) -> None:
        super().__init__(arch)
        self._cluster = cluster

    def compile(self, source: str) -> Kernel:
        """As `Compiler.compile`, by whichever worker has a thread for it."""
        try:
            made = self._cluster.ask("compiled", self.arch, source).result().value
        except WorkerLost as lost:
            raise CompileFailure(f"error: {lost}") from None
        if isinstance(made, str):
            raise CompileFailure(made)
        kernel: Kernel = made
        return kernel


class ClusterDevice(Device):
    """The GPUs of a cluster: all evaluate kernels, and one of them compares finalists."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._peers: list[tuple[PeerName, float]] = []
        """Those that entered, with their limits."""
        self._begun: dict[Any, Future[Reply]] = {}
        self._limits_us: dict[str, float] = {}
        """The limit's time on each worker that evaluated a kernel, and first on the first one."""

    @property
    def workers(self) -> Sequence[str] | None:  # type: ignore[override]
        """A line on each GPU."""
        return self._cluster.lines

    def open(self, setting: Setting) -> Facts:
        """Prepare a problem on one GPU; the others do so before their first kernel of it."""
        self._setting = setting
        reply = self._cluster.ask("opened", self._cluster.device, setting, gpu=1.0).result()
        facts: Facts
        self.gpu, facts = reply.value
        self._limits_us, self._peers = {reply.worker: facts.limit_us}, []
        return facts

    def begin(self, job: Job) -> None:
        """Have a kernel verified and timed by the next GPU that is free."""
        if _key(job) not in self._begun:
            self._begun[_key(job)] = self._ask("evaluated", job, gpu=SHARE)

    def evaluating(self, job: Job) -> Future[Any] | None:
        """Return a future that is done once a job that was begun is."""
        return self._begun.get(_key(job))

    def evaluate(self, job: Job) -> Outcome:
        """Return a kernel's outcome; it is a crash if too many workers were lost with it."""
        self.begin(job)
        try:
            reply = self._begun.pop(_key(job)).result()
        except WorkerLost as lost:
            return Rejected(Stage.CRASH, str(lost))
        outcome: Outcome
        outcome, limit_us = reply.value
        self._limits_us[reply.worker] = limit_us
        ours_us = next(iter(self._limits_us.values()))
        if isinstance(outcome, Measured) and limit_us and limit_us != ours_us:
            scaled = tuple(round(us * ours_us / limit_us, 4) for us in outcome.samples_us)
            return replace(outcome, samples_us=scaled)
        return outcome

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer on some GPU, and again on the one that compares if that is another."""
        entered: Entered | NotEntered
        entered = self._ask("entered", peer, limit_s, gpu=1.0).result().value
        self._peers += [(peer, limit_s)] if isinstance(entered, Entered) else []
        return entered

    def compare(self, jobs: Sequence[Job], rounds: int, seed: int) -> Compared:
        """Time kernels, the limit and the peers that entered in turn, on one GPU."""
        given = (tuple(self._peers), tuple(jobs), rounds, seed)
        compared: Compared = self._ask("compared", *given, gpu=1.0).result().value
        return compared

    def _ask(self, name: str, *given: Any, **how: Any) -> Future[Reply]:
        return self._cluster.ask(name, self._cluster.device, self._setting, *given, **how)

    @property
    def spread(self) -> str:
        """A sentence on how far apart the GPUs are; empty where only one timed its limit."""
        limits = [us for us in self._limits_us.values() if us]
        if len(limits) < 2:
            return ""
        least, most = min(limits), max(limits)
        return (
            f"the limit takes {least:.4g} to {most:.4g} µs on {len(limits)} GPUs, "
            f"{100 * (most / least - 1):.1f} % apart: times of each are stated by its own limit, "
            "as the first one's; the finals are of one GPU"
        )


def _key(job: Job) -> Any:
    return job.code_digest or job.config


@contextmanager
def cluster_evaluator(
    cluster: Cluster, problem: Problem, *how: Any, for_fastest: bool = False
) -> Iterator[DeviceEvaluator]:
    """Open a problem whose kernels are compiled and evaluated by all workers.

    `how` are timing, seed and accuracy. In the end it is told how far apart the GPUs are.
    """
    device, threads = ClusterDevice(cluster), min(MOST_COMPILING, cluster.threads)
    with DeviceEvaluator(
        problem,
        device,
        *how,
        compiler=partial(ClusterCompiler, cluster),
        for_fastest=for_fastest,
        threads=threads,
    ) as live:
        try:
            yield live
        except KeyboardInterrupt:
            cluster.end("the run was stopped;")  # or what compiles would be waited for
            raise
        if device.spread:
            cluster.notice(device.spread)


# ------------------------------------------------------------------ many problems


class ClusterBenches:
    """A list of problems on a cluster: one on each GPU, or the kernels of one on all GPUs."""

    def __init__(self, cluster: Cluster, timing: str, seed: int, accuracy: Accuracy) -> None:
        """Take a cluster of GPUs; raises InvalidInput where its workers replay recordings."""
        self.cluster = cluster
        self._how = timing, seed, accuracy
        gpu = next((one.gpu for one in cluster.gpus.values()), None)
        if gpu is None:
            raise InvalidInput(f"device is '{cluster.device}'; this needs GPUs: take auto")
        self.gpu: GpuSpec = gpu
        """The GPU that times come from."""

    def compile_ahead(self, problem: Problem, configs: Iterable[Config]) -> None:
        """Do nothing: all workers compile for the problem at work."""

    @contextmanager
    def on(self, problem: Problem) -> Iterator[PeerBench]:
        """Open a problem for all GPUs."""
        with cluster_evaluator(self.cluster, problem, *self._how) as live:
            yield live

    def start(
        self,
        problem: Problem,
        work: Callable[[PeerBench], Any],
        configs: Callable[[], Iterable[Config]],
    ) -> Future[Reply]:
        """Have a piece of work done on a problem's bench by a GPU that is free.

        Any worker chooses and compiles `configs` before. The reply has what came of the work.
        """
        return self.cluster.ask(
            "measured",
            self.cluster.device,
            Setting(problem, *self._how),
            work,
            gpu=1.0,
            first=("all_compiled", self.gpu.arch, problem, configs),
        )

    def stand_in(self, problem: Problem) -> Any:
        """Return what is known of a problem's bench before a worker opens it."""
        setting = Setting(problem, *self._how)
        made = environment_of(self.gpu, setting, Facts(), self.cluster.nvrtc)
        return SimpleNamespace(problem=problem, gpu=self.gpu, environment=made, catalogue=None)


# ------------------------------------------------------------------ opening them


@contextmanager
def open_on_cluster(
    problem: Problem, device: str, timing: str, *more: Any, for_fastest: bool = False
) -> Iterator[DeviceEvaluator]:
    """Open a problem on many GPUs.

    `more` are seed and accuracy, then GPUs of this machine, a scheduler, and what is told notices,
    as of `open_cluster`. Raises as that and as `Device.open`.
    """
    check_timing(timing)
    with ExitStack() as until_done:
        cluster = until_done.enter_context(open_cluster(device, *more[2:]))
        how = (cluster, problem, timing, *more[:2])
        yield until_done.enter_context(cluster_evaluator(*how, for_fastest=for_fastest))


@contextmanager
def open_cluster_benches(device: str, timing: str, *more: Any) -> Iterator[ClusterBenches]:
    """Open what measures a list of problems on many GPUs; `more` is as of `open_on_cluster`."""
    check_timing(timing)
    with open_cluster(device, *more[2:]) as cluster:
        yield ClusterBenches(cluster, timing, *more[:2])
