"""A cluster's GPUs as one device, and lists of problems that are spread over them.

Times of several GPUs are compared as ratios to the limit's on the same one: a time of another GPU
than the first is stated as the first one's would be, by the two limits. Finals are on one GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from explorer.codegen.units import emit
from explorer.compile.compiler import CompileFailure, Compiler, Kernel
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.devices.names import own_sources
from explorer.evaluate.device_evaluator import DeviceEvaluator, environment_of
from explorer.evaluate.open_evaluator import check_timing
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.model.query import whole
from explorer.tuning.cluster import SHARE, Cluster, Reply, WorkerLost, open_cluster
from explorer.tuning.runs import AHEAD

Made = TypeVar("Made")


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
    """The GPUs of a cluster: each evaluates one kernel, and the first compares finalists."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._home: str | None = None
        """The worker that opened the problem first, by its address."""
        self._begun: dict[Any, Future[Reply]] = {}
        self._limits_us: dict[str, float] = {}
        """The limit's time on each worker, by its address; the first one's is first."""

    @property
    def workers(self) -> int | None:  # type: ignore[override]
        """GPUs that evaluate at the same time."""
        return len(self._cluster.gpus)

    @property
    def lines(self) -> Sequence[str]:  # type: ignore[override]
        """A line on each worker."""
        return self._cluster.lines()

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
        key = _key(job)
        if key not in self._begun:
            self._begun[key] = self._ask("evaluated", job, gpu=SHARE, counts="kernel")

    def evaluating(self, job: Job) -> Future[Any] | None:
        """Return a future that is done once a job that was begun is."""
        return self._begun.get(_key(job))

    def evaluate(self, job: Job) -> Outcome:
        """Return a kernel's outcome; it is a crash if two workers were lost with it."""
        self.begin(job)
        try:
            reply = self._begun.pop(_key(job)).result()
        except WorkerLost as lost:
            return Rejected(Stage.CRASH, str(lost))
        outcome: Outcome
        outcome, limit_us = reply.value
        self._limits_us[reply.worker] = limit_us
        ours_us = next(iter(self._limits_us.values()))
        if isinstance(outcome, Measured) and limit_us and ours_us and limit_us != ours_us:
            scaled = tuple(round(us * ours_us / limit_us, 4) for us in outcome.samples_us)
            return replace(outcome, samples_us=scaled)
        return outcome

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer on the GPU that compares."""
        entered: Entered | NotEntered = self._at_home("entered", peer, limit_s)
        return entered

    def compare(self, jobs: Sequence[Job], rounds: int, seed: int) -> Compared:
        """Time kernels in turn on one GPU, the first as long as it is there."""
        compared: Compared = self._at_home("compared", tuple(jobs), rounds, seed)
        return compared

    def _at_home(self, function: str, *given: Any) -> Any:
        reply = self._ask(function, *given, gpu=1.0, worker=self._home).result()
        self._home = reply.worker
        return reply.value

    def _ask(self, function: str, *given: Any, **how: Any) -> Future[Reply]:
        return self._cluster.ask(function, self._cluster.device, self._setting, *given, **how)

    @property
    def spread(self) -> str:
        """A sentence on how far apart the GPUs are; empty where one alone, or none, timed."""
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


# ------------------------------------------------------------------ one problem, on all GPUs


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
        threads=cluster.threads,
    ) as live:
        yield live
        if device.spread:
            cluster.notice(device.spread)


# ------------------------------------------------------------------ many problems


class ClusterBenches:
    """Problems on a cluster: one a GPU, or, of few problems, the kernels of one on all GPUs."""

    def __init__(self, cluster: Cluster, timing: str, seed: int, accuracy: Accuracy) -> None:
        self.cluster = cluster
        self._how = timing, seed, accuracy

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that times come from; raises InvalidInput where workers replay recordings."""
        found = next(iter(self.cluster.gpus.values())).gpu
        if found is None:
            raise InvalidInput(
                f"device is '{self.cluster.device}'; a list of problems needs GPUs: take auto"
            )
        return found

    @property
    def room(self) -> int:
        """Problems that are under way: one on each GPU, one that is compiled for it, and some."""
        return 2 * len(self.cluster.gpus) + AHEAD

    def are_enough(self, problems: int) -> bool:
        """Return whether each GPU has a problem of its own."""
        return problems >= len(self.cluster.gpus)

    @property
    def lines(self) -> Sequence[str]:
        """A line on each worker."""
        return self.cluster.lines()

    @property
    def is_gone(self) -> bool:
        """Whether nothing more can be measured."""
        return self.cluster.gone is not None

    def compile_ahead(self, problem: Problem, configs: Iterable[Config]) -> None:
        """Do nothing: what a problem needs is compiled before it has its GPU."""

    @contextmanager
    def on(self, problem: Problem) -> Iterator[PeerBench]:
        """Open a problem for all GPUs."""
        with cluster_evaluator(self.cluster, Setting(problem, *self._how)) as live:
            yield live

    def start(
        self, problem: Problem, work: Callable[[PeerBench], Made], configs: Iterable[Config]
    ) -> Future[Reply]:
        """Have a piece of work done on a problem by one worker; `configs` are compiled before."""
        sources = [*own_sources(problem), *(emit(problem, one).source for one in configs)]
        return self.cluster.ask(
            "measured",
            self.cluster.device,
            Setting(problem, *self._how),
            work,
            gpu=1.0,
            counts="problem",
            first=("all_compiled", (self.gpu.arch, sources)),
        )

    def stand_in(self, problem: Problem) -> "StandIn":
        """Return what is known of a problem's bench before a worker opens it."""
        setting = Setting(problem, *self._how)
        made = environment_of(self.gpu, setting, Facts(), self.cluster.nvrtc)
        return StandIn(problem, self.gpu, made)


@dataclass(frozen=True, slots=True)
class StandIn:
    """What a stored study is looked up by."""

    problem: Problem
    gpu: GpuSpec
    environment: Environment
    catalogue: None = None


# ------------------------------------------------------------------ as a command names them


@dataclass(frozen=True, slots=True)
class Spread:
    """GPUs of this machine, or a scheduler whose workers have some."""

    gpus: str | int | None
    at: str | None

    @classmethod
    def of(cls, gpus: str | int | None, at: str | None) -> "Spread | None":
        """Read what names them; None where nothing does. Raises InvalidInput."""
        if gpus is None and at is None:
            return None
        if gpus is not None and gpus != "all":
            gpus = whole("gpus", int(gpus) if str(gpus).isdecimal() else gpus, 1)
        return cls(gpus, at)

    @contextmanager
    def evaluator(
        self,
        problem: Problem,
        device: str,
        timing: str,
        seed: int,
        accuracy: Accuracy,
        notice: Callable[[str], None],
        *,
        for_fastest: bool = False,
    ) -> Iterator[DeviceEvaluator]:
        """Open one problem on all GPUs. Raises as `open_cluster` and `Device.open`."""
        check_timing(timing)
        setting = Setting(problem, timing, seed, accuracy)
        with (
            open_cluster(self.gpus, self.at, device, notice) as cluster,
            cluster_evaluator(cluster, setting, for_fastest=for_fastest) as live,
        ):
            yield live

    @contextmanager
    def benches(
        self, device: str, settings: tuple[str, int, Accuracy], notice: Callable[[str], None]
    ) -> Iterator[ClusterBenches]:
        """Open what measures a list of problems; the settings are timing, seed and accuracy."""
        check_timing(settings[0])
        with open_cluster(self.gpus, self.at, device, notice) as cluster:
            yield ClusterBenches(cluster, *settings)
