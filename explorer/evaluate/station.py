"""What one process of a cluster keeps: its device, its compilers, and the problem that is open.

The process compiles, verifies and times what it is asked, and decides nothing. The device has its
own process and deadlines, as on one machine, so a kernel that hangs ends there.
"""

import platform
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import current_process
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from explorer import __version__
from explorer.codegen.units import template_digest
from explorer.compile.compiler import CompileFailure, Compiler, Kernel, nvrtc_version
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.devices.names import driver_here, open_device, takes_code
from explorer.evaluate.compile_processes import CompileProcesses
from explorer.evaluate.space_version import space_digest
from explorer.model.errors import DeviceLost, ExplorerError, InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Outcome
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName

if TYPE_CHECKING:
    pass

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Described:
    """What a process has, and what it must share with the one that asks it."""

    host: str
    version: str
    """Of this package."""
    python: str
    templates: str
    """Digest of the templates, `space` that of the parameters and rules."""
    space: str
    nvrtc: str
    """Version of the compiler; empty where there is none."""
    driver: str = ""
    gpu: GpuSpec | None = None
    """The GPU; None where it has none, and of a recording."""
    fault: str = ""
    """Why the device cannot be used; empty where it can be, or none is wanted."""

    @property
    def gpu_name(self) -> str:
        """The GPU's name; empty where there is none."""
        return self.gpu.name if self.gpu else ""


DAEMON = (
    "its process may start none of its own, and the GPU needs one: start the worker with "
    "--no-nanny, or with DASK_DISTRIBUTED__WORKER__DAEMON=False in its environment"
)


class Station:
    """The device of this process. Threads may share it: they take turns on the device."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._device: Device | None = None
        self._named = ""
        self._setting: Setting | None = None
        """Of the problem that is open on the device; None where that is not known."""
        self._facts = Facts()
        self._processes: CompileProcesses | None = None

    def described(self, device: str, threads: int) -> Described:
        """Say what this process has; `device` is empty where it only compiles.

        `threads` compile at the same time, each in a process of its own if there are several.
        """
        is_daemon = current_process().daemon
        if self._processes is None:
            self._processes = CompileProcesses(threads)
            if threads > 1 and not is_daemon:
                self._processes.start()
        found = Described(
            host=socket.gethostname(),
            version=__version__,
            python=platform.python_version(),
            templates=template_digest(),
            space=space_digest(),
            nvrtc=_nvrtc(),
        )
        if not takes_code(device):
            return found
        if is_daemon:
            return replace(found, fault=DAEMON)
        try:
            with self._turn:
                gpu = self._on(device).gpu
        except ExplorerError as error:
            return replace(found, fault=str(error))
        return replace(found, gpu=gpu, driver=driver_here())

    # -------------------------------------------------------------- without the device

    def compiler(self, arch: str) -> Compiler:
        """Return what compiles for an architecture in the processes of this one."""
        return self._processes.compiler(arch) if self._processes else Compiler(arch)

    def compiled(self, arch: str, source: str) -> Kernel | str:
        """Return the kernel of a source, or the log of the compiler that refused it."""
        try:
            return self.compiler(arch).compile(source)
        except CompileFailure as failure:
            return failure.log

    def all_compiled(self, arch: str, sources: Iterable[str]) -> tuple[tuple[str, Kernel], ...]:
        """Return the sources that compile, each with its kernel."""
        made = ((source, self.compiled(arch, source)) for source in sources)
        return tuple((source, one) for source, one in made if isinstance(one, Kernel))

    # -------------------------------------------------------------- on the device

    def opened(self, device: str, setting: Setting) -> tuple[GpuSpec, Facts]:
        """Prepare a problem; return the GPU that times come from, and what was found out."""
        from explorer.evaluate.device_evaluator import environment_of

        with self._ready(device, setting) as live:
            made = environment_of(live.gpu, setting, self._facts)
            return live.gpu, replace(self._facts, environment=made)

    def evaluated(self, device: str, setting: Setting, job: Job) -> tuple[Outcome, float]:
        """Verify and time a kernel; return its outcome, and the limit's time on this GPU."""
        with self._ready(device, setting) as live:
            return live.evaluate(job), self._facts.limit_us

    def entered(
        self, device: str, setting: Setting, peer: PeerName, limit_s: float
    ) -> Entered | NotEntered:
        """Prepare and verify a peer, for the comparisons of the problem that follow."""
        with self._ready(device, setting) as live:
            return live.enter(peer, limit_s)

    def compared(
        self, device: str, setting: Setting, jobs: Sequence[Job], rounds: int, seed: int
    ) -> Compared:
        """Time kernels, the limit and the peers that entered, in turn."""
        with self._ready(device, setting) as live:
            return live.compare(jobs, rounds, seed)

    def measured(
        self,
        device: str,
        setting: Setting,
        work: Callable[[PeerBench], Made],
        kernels: Iterable[tuple[str, Kernel]] = (),
    ) -> Made:
        """Do a piece of work on a problem's bench; `kernels` are those that are compiled already.

        What fails gives up the device, so that the next problem has a new worker.
        """
        from explorer.evaluate.device_evaluator import DeviceEvaluator

        with self._turn:
            self._setting = None  # the problem is opened by the bench
            live = self._on(device)
            if kernels:
                self._keep(live.gpu.arch, kernels)
            problem, timing, seed, accuracy = _asked(setting)
            bench: DeviceEvaluator
            with (
                self._given_up_if_it_fails(),
                DeviceEvaluator(
                    problem,
                    live,
                    timing,
                    seed,
                    accuracy,
                    keep_device=True,
                    compiler=self.compiler,
                ) as bench,
            ):
                return work(bench)

    def _keep(self, arch: str, kernels: Iterable[tuple[str, Kernel]]) -> None:
        """Have kernels that another process compiled in the cache of this host."""
        compiler = Compiler(arch)
        for source, kernel in kernels:
            key = compiler.key(source)
            if compiler.cache.load(key) is None:
                compiler.cache.store(key, kernel)

    @contextmanager
    def _ready(self, device: str, setting: Setting) -> Iterator[Device]:
        """Wait for this thread's turn on the device, on which the problem is open."""
        with self._turn, self._given_up_if_it_fails():
            live = self._on(device)
            if self._setting != setting:
                self._setting = None
                self._facts = live.open(setting)
                self._setting = setting
            yield live

    def _on(self, device: str) -> Device:
        """Return the device of that name, in place of another one."""
        if self._device is None or self._named != device:
            self._give_up()
            self._device, self._named = open_device(device), device
        return self._device

    @contextmanager
    def _given_up_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except (DeviceLost, InvalidInput):
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self._device is not None:
            self._device.close()
        self._device, self._setting = None, None


def _asked(setting: Setting) -> Any:
    return setting.problem, setting.timing, setting.seed, setting.accuracy


def _nvrtc() -> str:
    try:
        return nvrtc_version()
    except ExplorerError:
        return ""


STATION = Station()
"""Of this process: a cluster's workers have one each."""
