"""A cluster's GPUs as one device for one problem, and as benches for a list of problems.

Times of several GPUs are compared as ratios to the limit on the same one: a time of another GPU
than the first is stated as the first one's, by their limits. Finals are on one GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from explorer.codegen.units import emit
from explorer.compile.compiler import CompileFailure, Compiler, Kernel
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.devices.names import own_sources
from explorer.evaluate.device_evaluator import DeviceEvaluator, environment_of
from explorer.evaluate.open_evaluator import check_timing, open_evaluator, open_peer_benches
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Measured, Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.model.query import whole
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
        made = self._cluster.ask("compiled", self.arch, source).result().value
        if isinstance(made, str):
            raise CompileFailure(made)
        kernel: Kernel = made
        return kernel


class ClusterDevice(Device):
    """The GPUs of a cluster: all evaluate kernels, and one of them compares finalists."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._home = ""
        """The worker that compares, by its address."""
        self._begun: dict[Any, Future[Reply]] = {}
        self._limits_us: dict[str, float] = {}
        """The limit's time on each worker that evaluated a kernel, and first on the first one."""

    @property
    def workers(self) -> int | None:  # type: ignore[override]
        """GPUs that evaluate at the same time."""
        return len(self._cluster.gpus)

    @property
    def lines(self) -> Sequence[str]:  # type: ignore[override]
        """A line on each worker."""
        return self._cluster.lines

    def open(self, setting: Setting) -> Facts:
        """Prepare a problem on one GPU; the others do so before their first kernel of it."""
        self._setting = setting
        reply = self._cluster.ask("opened", self._cluster.device, setting, gpu=1.0).result()
        facts: Facts
        self.gpu, facts = reply.value
        self._home, self._limits_us = reply.worker, {reply.worker: facts.limit_us}
        return facts

    def begin(self, job: Job) -> None:
        """Have a kernel verified and timed by the next GPU that is free."""
        if _key(job) not in self._begun:
            self._begun[_key(job)] = self._ask("evaluate", job, gpu=SHARE, counts="kernel")

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
        """Prepare a peer on the GPU that compares."""
        entered: Entered | NotEntered = self._at_home("enter", peer, limit_s)
        return entered

    def compare(self, jobs: Sequence[Job], rounds: int, seed: int) -> Compared:
        """Time kernels in turn on one GPU, the first as long as it is there."""
        compared: Compared = self._at_home("compare", tuple(jobs), rounds, seed)
        return compared

    def _at_home(self, what: str, *given: Any) -> Any:
        reply = self._ask(what, *given, gpu=1.0, worker=self._home).result()
        self._home = reply.worker
        return reply.value[0]

    def _ask(self, what: str, *given: Any, **how: Any) -> Future[Reply]:
        return self._cluster.ask("done", self._cluster.device, self._setting, what, *given, **how)

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
    cluster: Cluster, setting: Setting, *, for_fastest: bool = False
) -> Iterator[DeviceEvaluator]:
    """Open a problem whose kernels are compiled and evaluated by all workers.

    How far apart the GPUs are is told in the end. Raises as `Device.open`.
    """
    device = ClusterDevice(cluster)
    with DeviceEvaluator(
        setting.problem,
        device,
        setting.timing,
        setting.seed,
        setting.accuracy,
        compiler=partial(ClusterCompiler, cluster),
        for_fastest=for_fastest,
        threads=min(MOST_COMPILING, cluster.threads),
    ) as live:
        yield live
        if device.spread:
            cluster.notice(device.spread)


# ------------------------------------------------------------------ many problems


class ClusterBenches:
    """A list of problems on a cluster: one on each GPU, or the kernels of one on all GPUs."""

    def __init__(self, cluster: Cluster, timing: str, seed: int, accuracy: Accuracy) -> None:
        self.cluster = cluster
        self._how = timing, seed, accuracy

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that times come from; raises InvalidInput where workers replay recordings."""
        found = next((one.gpu for one in self.cluster.gpus.values()), None)
        if found is None:
            raise InvalidInput(
                f"device is '{self.cluster.device}'; a list of problems needs GPUs: take auto"
            )
        return found

    def compile_ahead(self, problem: Problem, configs: Iterable[Config]) -> None:
        """Do nothing: all workers compile for the problem at work."""

    @contextmanager
    def on(self, problem: Problem) -> Iterator[PeerBench]:
        """Open a problem for all GPUs."""
        with cluster_evaluator(self.cluster, Setting(problem, *self._how)) as live:
            yield live

    def start(
        self, problem: Problem, work: Callable[[PeerBench], Any], configs: Iterable[Config]
    ) -> Future[Reply]:
        """Have a piece of work done on a problem's bench by a GPU that is free.

        Any worker compiles `configs` before. The reply's value is what came of the work.
        """
        sources = [*own_sources(problem), *(emit(problem, one).source for one in configs)]
        return self.cluster.ask(
            "measured",
            self.cluster.device,
            Setting(problem, *self._how),
            work,
            gpu=1.0,
            counts="problem",
            first=("all_compiled", self.gpu.arch, sources),
        )

    def stand_in(self, problem: Problem) -> Any:
        """Return what is known of a problem's bench before a worker opens it."""
        setting = Setting(problem, *self._how)
        made = environment_of(self.gpu, setting, Facts(), self.cluster.nvrtc)
        return SimpleNamespace(problem=problem, gpu=self.gpu, environment=made, catalogue=None)


# ------------------------------------------------------------------ one GPU, or many


@dataclass(frozen=True, slots=True)
class Measuring:
    """On what is measured, and how: one device, GPUs of this machine, or a scheduler's workers."""

    device: str
    timing: str
    seed: int
    accuracy: Accuracy
    gpus: str | int | None = None
    """`all`, or how many of this machine; None for the device alone."""
    cluster: str | None = None
    """Address or file of a scheduler."""

    def __post_init__(self) -> None:
        check_timing(self.timing)
        if self.gpus not in (None, "all"):
            number = int(self.gpus) if str(self.gpus).isdecimal() else self.gpus
            object.__setattr__(self, "gpus", whole("gpus", number, 1))

    @property
    def is_spread(self) -> bool:
        """Whether there may be several GPUs."""
        return self.gpus is not None or self.cluster is not None

    def _opened(self, notice: Callable[[str], None]) -> Any:
        return open_cluster(self.gpus, self.cluster, self.device, notice)

    @contextmanager
    def evaluator(
        self, problem: Problem, notice: Callable[[str], None], *, for_fastest: bool = False
    ) -> Iterator[PeerBench]:
        """Open one problem. Raises as `open_evaluator` and `open_cluster`."""
        setting = Setting(problem, self.timing, self.seed, self.accuracy)
        with ExitStack() as until_done:
            if self.is_spread:
                cluster = until_done.enter_context(self._opened(notice))
                opening: Any = cluster_evaluator(cluster, setting, for_fastest=for_fastest)
            else:
                how = (self.device, self.timing, self.seed, self.accuracy)
                opening = open_evaluator(problem, *how, for_fastest=for_fastest)
            yield until_done.enter_context(opening)

    @contextmanager
    def benches(self, notice: Callable[[str], None], **without: Any) -> Iterator[Any]:
        """Open what measures a list of problems. Raises as `open_peer_benches`, `open_cluster`."""
        how = (self.timing, self.seed, self.accuracy)
        if self.is_spread:
            with self._opened(notice) as cluster:
                yield ClusterBenches(cluster, *how)
            return
        with open_peer_benches(self.device, *how, **without) as benches:
            yield benches
