"""What one process of a cluster keeps: its device, its compilers, and the problem that is open.

It compiles, verifies and times what it is asked, and decides nothing. The device has its own
process and deadlines, as on one machine, so a kernel that hangs ends there.
"""

import platform
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import current_process
from threading import Lock
from typing import Any

from explorer import __version__
from explorer.codegen.units import emit, template_digest
from explorer.compile.compiler import CompileFailure, Compiler, Kernel, nvrtc_version
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.devices.names import driver_here, open_device, own_sources, takes_code
from explorer.evaluate.compile_processes import CompileProcesses
from explorer.evaluate.device_evaluator import DeviceEvaluator, environment_of
from explorer.evaluate.space_version import space_digest
from explorer.model.config import Config
from explorer.model.errors import DeviceLost, ExplorerError, InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Outcome
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem


@dataclass(frozen=True, slots=True)
class Described:
    """What a process has, and what it must share with the one that asks it."""

    host: str = ""
    package: str = ""
    """Version of this package."""
    python: str = ""
    code: str = ""
    """Digests of the templates, and of the parameters and rules."""
    nvrtc: str = ""
    """Version of the compiler; empty where there is none."""
    driver: str = ""
    gpu: GpuSpec | None = None
    """The GPU that times are of; None where it has none, or replays a recording."""
    offers: bool = False
    """Whether it has a device, and does not only compile."""
    fault: str = ""
    """Why it cannot be used; empty where it can be."""

    @property
    def gpu_name(self) -> str:
        """The GPU's name; empty where there is none."""
        return self.gpu.name if self.gpu else ""

    @property
    def words(self) -> str:
        """What it has, or why it cannot be used, in words."""
        if self.fault:
            return self.fault
        does = self.gpu_name or "compiles only"
        parts = [self.host, does, f"driver {self.driver}" * bool(self.driver)]
        parts += [f"NVRTC {self.nvrtc or 'missing'}", f"softmax-explorer {self.package}"]
        return ", ".join(filter(None, [*parts, f"Python {self.python}"]))


def code_digests() -> str:
    """Return the digests of this process's templates and space, which a cluster's share."""
    return f"templates {template_digest()}, space {space_digest()}"


_DAEMON = (
    "its process may start no other, and its GPU needs one: start the worker with --no-nanny, or "
    "with DASK_DISTRIBUTED__WORKER__DAEMON=False in its environment"
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
        self._entered: set[PeerName] = set()
        """Peers that entered for a comparison of the open problem."""
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
        here = (socket.gethostname(), __version__, platform.python_version(), code_digests())
        found = Described(*here, offers=bool(device))
        try:
            with suppress(ExplorerError):  # it compiles nothing
                found = replace(found, nvrtc=nvrtc_version())
            if not takes_code(device):
                return found
            with self._turn:
                gpu = None if is_daemon else self._on(device).gpu
        except ExplorerError as error:
            return replace(found, fault=str(error))
        return replace(found, gpu=gpu, driver=driver_here(), fault=_DAEMON * is_daemon)

    def compiled(self, arch: str, source: str) -> Kernel | str:
        """Return the kernel of a source, or the log of the compiler that refused it."""
        try:
            return (self._processes or CompileProcesses()).compiler(arch).compile(source)
        except CompileFailure as failure:
            return failure.log

    def all_compiled(
        self, arch: str, problem: Problem, configs: Callable[[], Iterable[Config]]
    ) -> tuple[tuple[str, Kernel], ...]:
        """Return the sources that a problem needs and that compile, each with its kernel.

        They are the GPU's own ones, and those of configs, which are chosen here as well.
        """
        sources = [*own_sources(problem), *(emit(problem, one).source for one in configs())]
        made = ((source, self.compiled(arch, source)) for source in sources)
        return tuple((source, one) for source, one in made if isinstance(one, Kernel))

    def opened(self, device: str, setting: Setting) -> tuple[GpuSpec, Facts]:
        """Prepare a problem; return the GPU that times come from, and what was found out."""
        with self._ready(device, setting) as live:
            made = environment_of(live.gpu, setting, self._facts)
            return live.gpu, replace(self._facts, environment=made)

    def evaluated(self, device: str, setting: Setting, job: Job) -> tuple[Outcome, float]:
        """Return the outcome of a kernel, and the time of the problem's limit on this GPU."""
        with self._ready(device, setting) as live:
            return live.evaluate(job), self._facts.limit_us

    def entered(
        self, device: str, setting: Setting, peer: PeerName, limit_s: float
    ) -> Entered | NotEntered:
        """Prepare a peer on this GPU, and verify it."""
        with self._ready(device, setting) as live:
            self._entered.add(peer)
            return live.enter(peer, limit_s)

    def compared(
        self, device: str, setting: Setting, peers: Iterable[tuple[PeerName, float]], *given: Any
    ) -> Compared:
        """Have peers enter that have not on this device, and compare with them."""
        with self._ready(device, setting) as live:
            for peer, limit_s in peers:
                if peer not in self._entered:
                    live.enter(peer, limit_s)
                    self._entered.add(peer)
            return live.compare(*given)

    def measured(
        self,
        device: str,
        setting: Setting,
        work: Callable[[PeerBench], Any],
        kernels: Iterable[tuple[str, Kernel]],
    ) -> Any:
        """Do a piece of work on a problem's bench; the kernels were compiled elsewhere."""
        with self._turn, self._given_up_if_it_fails():
            self._setting = None  # the problem is opened by the bench
            live = self._on(device)
            compiler = Compiler(live.gpu.arch)
            for source, kernel in kernels:
                if compiler.cache.load(compiler.key(source)) is None:
                    compiler.cache.store(compiler.key(source), kernel)
            asked = (setting.problem, live, setting.timing, setting.seed, setting.accuracy)
            compilers = (self._processes or CompileProcesses()).compiler
            with DeviceEvaluator(*asked, keep_device=True, compiler=compilers) as bench:
                return work(bench)

    @contextmanager
    def _ready(self, device: str, setting: Setting) -> Iterator[Device]:
        """Wait for this thread's turn on the device, on which the problem is open."""
        with self._turn, self._given_up_if_it_fails():
            live = self._on(device)
            if self._setting != setting:
                self._setting = None
                self._facts, self._entered = live.open(setting), set()
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
        """Close the device if it cannot go on, so that the next problem has a new one."""
        try:
            yield
        except (DeviceLost, InvalidInput):
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self._device is not None:
            self._device.close()
        self._device, self._setting = None, None


STATION = Station()
"""Of this process: each worker of a cluster has one."""
