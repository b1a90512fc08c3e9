"""Open a device by its name, to evaluate kernels or to compare them with peers."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from explorer.compile.compiler import CompilePool
from explorer.devices.names import (
    gpu_alone,
    gpu_or_recording,
    limits_of,
    open_device,
    own_sources,
    takes_code,
)
from explorer.evaluate.compile_processes import CompileProcesses
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerBench
from explorer.model.problem import Problem

if TYPE_CHECKING:
    from explorer.devices.device import Device

TIMINGS = ("cold", "warm")


def check_timing(timing: str) -> None:
    """Raise InvalidInput for what is no way to time."""
    if timing not in TIMINGS:
        raise InvalidInput(f"timing '{timing}' is not known; choose cold or warm")


Meanwhile = Callable[[GpuSpec, CompilePool], object]
"""A function to call while a GPU is prepared, with the GPU's limits and a pool that compiles for
it."""


@contextmanager
def open_evaluator(
    problem: Problem,
    device: str = "auto",
    timing: str = "cold",
    seed: int = 0,
    accuracy: Accuracy = Accuracy.DEFAULT,
    *,
    meanwhile: Meanwhile | None = None,
    for_fastest: bool = False,
) -> Iterator[PeerBench]:
    """Open the evaluator of `auto`, `cuda:N` or `recorded:NAME` for a problem; close it at the end.

    `auto` is cuda:0 where a driver answers, else the recording of the problem. `meanwhile` is
    called while a GPU is prepared, and `for_fastest` is explained by `DeviceEvaluator`. Raises
    InvalidInput for an unknown device or timing, a GPU that is not there or a problem that does not
    fit it, and NotFound where there is no recording.
    """
    check_timing(timing)
    name = gpu_or_recording(device)
    processes = CompileProcesses()
    with processes if takes_code(name) else nullcontext():
        with _prepared(problem, name, processes, meanwhile) as opened:
            from explorer.evaluate.device_evaluator import DeviceEvaluator

            evaluator = DeviceEvaluator(
                problem,
                opened,
                timing,
                seed,
                accuracy,
                compiler=processes.compiler,
                for_fastest=for_fastest,
            )
        with evaluator as live:
            try:
                yield live
            finally:
                processes.end()  # it takes them 0.07 s, while the GPU's process ends in 0.1


@contextmanager
def _prepared(
    problem: Problem, name: str, processes: CompileProcesses, meanwhile: Meanwhile | None
) -> Iterator["Device"]:
    """Open a device, and do meanwhile, until the end of the block, what else takes time.

    A GPU's process takes a second or two to start and to prepare the problem. What it needs is
    compiled first, as it waits for that. `meanwhile` has a thread of its own, which is waited for
    at the end; what it compiles comes after. If the block fails, what has not begun to compile is
    left. Raises InvalidInput for a GPU that cannot be used.
    """
    gpu = limits_of(name)
    pool = CompilePool(processes.compiler(gpu.arch)) if gpu else None
    with ThreadPoolExecutor(1) as aside:
        if gpu and pool:
            for source in own_sources(problem):
                pool.submit(source)
            aside.submit(import_module, "explorer.evaluate.device_evaluator")
            if meanwhile is not None:
                aside.submit(meanwhile, gpu, pool)
        try:
            yield open_device(name)
        finally:
            if pool:
                pool.leave()


# ------------------------------------------------------------------ comparisons with peers


class PeerBenches:
    """Opens one problem after another on a GPU. Use as a context manager."""

    def __init__(self, name: str, timing: str, seed: int, accuracy: Accuracy) -> None:
        self._name = name
        self._timing = timing
        self._seed = seed
        self._accuracy = accuracy
        self._device: Device | None = None
        self._processes = CompileProcesses()
        self._ahead: CompilePool | None = None

    @property
    def gpu(self) -> GpuSpec:
        """The GPU, whose process is started if it was given up."""
        if self._device is None:
            self._device = open_device(self._name)
        return self._device.gpu

    def compile_ahead(self, problem: Problem, configs: Iterable[Config]) -> None:
        """Compile kernels, and what the device itself needs for the problem, in the background.

        They lie on disk when they are needed: the latter took 3 s of each of the first problems of
        a list on an H200's host. What fails to compile now fails again when it is evaluated.
        """
        from explorer.codegen.units import emit

        if self._ahead is None:
            self._ahead = CompilePool(self._processes.compiler(self.gpu.arch))
        for source in own_sources(problem):
            self._ahead.submit(source)
        for config in configs:
            self._ahead.submit(emit(problem, config).source)

    @contextmanager
    def on(self, problem: Problem) -> Iterator[PeerBench]:
        """Open the bench of a problem; raises InvalidInput if it does not fit, and DeviceLost."""
        from explorer.evaluate.device_evaluator import DeviceEvaluator

        if self._device is None:
            self._device = open_device(self._name)
        try:
            with DeviceEvaluator(
                problem,
                self._device,
                self._timing,
                self._seed,
                self._accuracy,
                keep_device=True,
                compiler=self._processes.compiler,
            ) as live:
                yield live
        except ExplorerError:
            self._give_up()  # the next problem gets a new worker, and all of the memory
            raise

    def _give_up(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def __enter__(self) -> "PeerBenches":
        """Start the GPU's worker; raises InvalidInput for a GPU that is not there, DeviceLost."""
        with ExitStack() as unless_started:
            unless_started.enter_context(self._processes)
            self._device = open_device(self._name)
            unless_started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as all_of_them:
            all_of_them.callback(self._give_up)
            if self._ahead is not None:
                all_of_them.push(self._ahead)
            all_of_them.push(self._processes)


_SHOW_KEPT = (
    "show one that was kept: explorer compare --from FILE, or in a program "
    "explorer.PeerRun.from_dict(json.load(open(FILE)))"
)


def open_peer_benches(
    device: str,
    timing: str,
    seed: int,
    accuracy: Accuracy = Accuracy.DEFAULT,
    *,
    wanted: str = "a comparison",
    instead: str = _SHOW_KEPT,
) -> PeerBenches:
    """Of `auto` or `cuda:N`; kernels and peers must meet `accuracy`.

    Raises InvalidInput for what is no GPU, or where there is none: `wanted` needs it, and `instead`
    says what to do.
    """
    check_timing(timing)
    return PeerBenches(gpu_alone(device, wanted, instead), timing, seed, accuracy)
