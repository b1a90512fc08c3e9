"""Compile what peers will need, in processes that see no GPU, while another problem is timed.

Most of a peer's preparation is its library's compiler. On one core of a server without a GPU, with
PyTorch 2.11, Triton 3.6 and QuACK 0.6.5, it takes 3.3 s to compile what torch.compile tries at
8192 x 4096 in f32 and 2.8 s at 300 x 50257 in bf16; 0.1 to 0.5 s for each form of the tuned Triton
kernel, up to 1.3 s for the tutorial's, and 0.3 to 0.5 s for QuACK's. These compilers keep their
results on disk, where the worker finds them when it prepares the peer: 0.2 s of the 2.8 s are left.

Why a timing is not disturbed: each process hides all GPUs from itself, asks the driver whether it
still sees one, and ends if it does. A process that cannot make a context can put no work on a GPU.
It shares the host's cores with the worker, at a lower priority and on a quarter of them or one; a
sample is one CUDA graph, which the GPU replays by itself.

Why a result is not changed: the worker prepares, tunes and verifies each peer as if nothing had
been compiled. The caches are keyed by the text that is compiled and its options, so another text is
compiled anew there.
"""

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import parent_process
from pkgutil import resolve_name
from queue import Empty
from typing import Any

from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerName
from explorer.model.problem import Problem
from explorer.peers.registry import AHEAD
from explorer.system.processes import FRESH, usable_cores

CompileAhead = Callable[[Problem, GpuSpec], None]
"""Compiles what a peer needs for a problem into its library's cache; it may raise anything."""

CORES_OF_A_PROCESS = 4
"""One process for so many cores: the rest are for the worker, NVRTC, and torch.compile's own."""

MOST_PROCESSES = 4
"""Each imports PyTorch, which takes 1 GB of memory."""

LOOKS_AFTER_S = 2.0
"""How often a process that has nothing to do looks whether its parent is alive."""

ENDS_WITHIN_S = 1.0
"""How long processes may take to end before they are killed: one may compile for minutes."""

NO_DEVICE = 100
"""What the driver's cuInit returns where no GPU is visible."""


class PeersAhead:
    """Processes that compile for peers. Use as a context manager; they are ended at its end.

    They start with the first thing there is to compile.
    """

    def __init__(self, gpu: GpuSpec, processes: int | None = None) -> None:
        self._count = processes or max(1, min(MOST_PROCESSES, usable_cores() // CORES_OF_A_PROCESS))
        self._gpu = gpu
        self._tasks: Any = FRESH.Queue()
        self._begun: Any = FRESH.Value("l", -1)
        """The number of the latest problem that the worker has begun."""
        self._numbers: dict[Problem, int] = {}
        self._processes: list[Any] = []

    def submit(self, problem: Problem, peers: Sequence[PeerName]) -> None:
        """Have what these peers need for a problem compiled; what comes first is compiled first."""
        number = self._numbers.setdefault(problem, len(self._numbers))
        for peer in peers:
            if peer.target in AHEAD:
                self._tasks.put((number, AHEAD[peer.target], problem))
                self._start()

    def begin(self, problem: Problem) -> None:
        """Tell that the worker is at a problem: what still waits for earlier ones is left out."""
        number = self._numbers.get(problem)
        if number is not None:
            self._begun.value = number

    def _start(self) -> None:
        if self._processes:
            return
        for _ in range(self._count):
            arguments = (self._tasks, self._begun, self._gpu)
            process = FRESH.Process(target=serve, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def __enter__(self) -> "PeersAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.close()
        self._tasks.cancel_join_thread()  # nobody reads what is left
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + ENDS_WITHIN_S
        try:
            for process in self._processes:
                process.join(max(0.0, until - time.monotonic()))
        finally:  # also where Ctrl-C ends the wait
            for process in self._processes:
                process.kill()  # caches take whole files alone
                process.join()


# ------------------------------------------------------------------ in a process without a GPU


class _Ended(BaseException):
    """Whoever started this process ends it."""


def _end(*_: object) -> None:
    raise _Ended


def serve(tasks: Any, begun: Any, gpu: GpuSpec) -> None:
    """Compile one task after another, until the process is ended or its parent has died.

    It ends as Python does: a process that was killed left semaphores of its libraries, of which
    Python warned when the command was done.
    """
    hide_gpus(gpu)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    with suppress(_Ended):
        signal.signal(signal.SIGTERM, _end)
        _compile_all(tasks, begun, gpu)


def _compile_all(tasks: Any, begun: Any, gpu: GpuSpec) -> None:
    os.nice(10)
    is_told = bool(os.environ.get("EXPLORER_DEBUG"))
    if not is_told:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    if sees_a_gpu():
        return
    parent = parent_process()
    while parent is not None and parent.is_alive():
        try:
            number, target, problem = tasks.get(timeout=LOOKS_AFTER_S)
        except Empty:
            continue
        if number < begun.value:
            continue
        try:
            compile_ahead: CompileAhead = resolve_name(target)
            compile_ahead(problem, gpu)
        except (Exception, SystemExit):  # the worker meets it too, and tells
            if is_told:
                traceback.print_exc()


def hide_gpus(gpu: GpuSpec) -> None:
    """Leave no GPU to be seen by what is loaded from now on; compilers are told which one is meant.

    QuACK's cache is not keyed by the architecture, so what it compiles must be for the very GPU.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    number = gpu.arch.removeprefix("sm_").rstrip("af")
    os.environ.setdefault("QUACK_ARCH", number)
    os.environ.setdefault("CUTE_DSL_ARCH", f"sm_{number}{'a' if int(number) >= 90 else ''}")


def sees_a_gpu() -> bool:
    """Return whether the driver would give this process a GPU."""
    with suppress(OSError):
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0)) != NO_DEVICE
    return False  # without a driver there is none
