"""Check programs on a device: the emulator, by a process a core, or a GPU, which may time one."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from typing import NamedTuple

from explorer.devices.emulated.result import Status
from explorer.devices.names import gpu_alone, gpu_or_emulator
from explorer.evaluate.emulation import Emulator, Verdict
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import emulated_runs
from explorer.model.accuracy import Accuracy
from explorer.model.asked import command_of
from explorer.model.config import Config
from explorer.model.errors import WrongKernel
from explorer.model.outcome import Environment, Measured
from explorer.model.problem import Problem
from explorer.system.processes import FRESH, leave_interrupts, talking_to, usable_cores

# ------------------------------------------------------------------ on the emulator


FEW = 6
"""Programs up to which starting processes costs more than it saves."""


@cache
def _emulator(arch: str, accuracy: Accuracy, **limits: int) -> Emulator:
    """The emulator of this process, which is kept with its compiler for the next program."""
    return Emulator(arch, accuracy=accuracy, **limits)


def verify_many(
    programs: Sequence[ProgramUnderTest],
    arch: str,
    rows: int | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Iterator[Verdict]:
    """The verdict of each program, in order, as it is known.

    Abandoning the iterator, also by Ctrl-C, leaves no process behind.
    """
    processes = min(usable_cores(), len(programs))
    if processes < 2 or len(programs) <= FEW:
        for program in programs:
            yield _verify(program, arch, rows, accuracy)
        return
    pool = ProcessPoolExecutor(processes, mp_context=FRESH, initializer=leave_interrupts)
    try:
        waiting = [pool.submit(_verify, program, arch, rows, accuracy) for program in programs]
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _verify(program: ProgramUnderTest, arch: str, rows: int | None, accuracy: Accuracy) -> Verdict:
    """In any process."""
    return _emulator(arch, accuracy).verify(program, rows)


# ------------------------------------------------------------------ on a device by its name


def verify_on(
    device: str,
    programs: Sequence[ProgramUnderTest],
    arch: str,
    rows: int | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Iterator[Verdict]:
    """Each program's verdict, in order. `device` is emulated, cuda:N, or auto.

    Programs are of one problem; the emulator compiles them for `arch`. Raises InvalidInput for
    another device, and for a GPU that is not there.
    """
    index = gpu_or_emulator(device)
    if index is None:
        yield from verify_many(programs, arch, rows, accuracy)
        return
    from explorer.devices.cuda import CudaDevice
    from explorer.evaluate.live import LiveEvaluator

    problem = emulated_runs(programs[0], rows)[0].problem
    with LiveEvaluator(problem, CudaDevice(index), accuracy=accuracy) as live:
        emulator = Emulator(live.gpu.arch, accuracy=accuracy)
        for program in programs:
            yield _second_opinion(live.judge(program), emulator, rows)


def _second_opinion(verdict: Verdict, emulator: Emulator, rows: int | None) -> Verdict:
    """A GPU's check does not tell wrong numbers from rounding; the emulator does."""
    if verdict.status is not Status.WRONG or "ulp" not in verdict.sentence:
        return verdict
    emulated = emulator.verify(verdict.program, rows)
    if emulated.status is not Status.INACCURATE:
        return verdict
    return replace(verdict, status=Status.INACCURATE)


# ------------------------------------------------------------------ a file, which is timed as well


@dataclass(frozen=True, slots=True)
class TimedFile:
    """What became of a file's kernel on a GPU."""

    problem: Problem
    """What it was verified and timed on."""
    verdict: Verdict
    measured: Measured | None
    """Its times; None where it was not verified, and so not timed."""
    environment: Environment


def time_file(
    program: ProgramUnderTest,
    device: str = "auto",
    rows: int | None = None,
    timing: str = "cold",
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> TimedFile:
    """Verify and time a program on `auto`, which is cuda:0, or `cuda:N`.

    Rows that are left out are those that it was emitted for. Raises InvalidInput for what is no
    GPU, where there is none, and for rows that its problem cannot have.
    """
    problem = program.problem.resized(rows, program.cols)
    instead = f"check the kernel without one: explorer verify {program.file}"
    index = gpu_alone(device, "a time", instead)
    from explorer.devices.cuda import CudaDevice
    from explorer.evaluate.live import LiveEvaluator, verdict_on

    with LiveEvaluator(problem, CudaDevice(index), timing, accuracy=accuracy) as live:
        outcome = live.measure(program)
        verdict = verdict_on(program, outcome, live.gpu.name)
        emulator = Emulator(live.gpu.arch, accuracy=accuracy)
        measured = outcome if isinstance(outcome, Measured) else None
        told = _second_opinion(verdict, emulator, None)
        return TimedFile(problem, told, measured, live.environment)


# ------------------------------------------------------------------ finalists of a replay


BUDGET_S, BUDGET_OF_TWO_S = 1.5, 1.0
"""Seconds after which no further finalist is begun by one process, and by two. Either way four or
five of a replay's seven or eight finalists were checked on a machine of two cores."""

STEP_LIMIT = 200_000
"""Instructions of one batch of blocks: about two seconds."""


@dataclass(frozen=True, slots=True)
class FinalistCheck:
    """How many of the finalists were checked, the best first, and how that ended."""

    finalists: int
    arch: str
    verified: int
    inaccurate: int
    unverified: int
    elapsed_s: float

    @property
    def checked(self) -> int:
        """Finalists that were executed."""
        return self.verified + self.inaccurate + self.unverified


class _Finalist(NamedTuple):
    """A kernel that is to be checked, and how."""

    problem: Problem
    config: Config
    arch: str
    accuracy: Accuracy

    @property
    def program(self) -> ProgramUnderTest:
        return ProgramUnderTest.of_config(self.problem, self.config)

    @property
    def emulator(self) -> Emulator:
        return _emulator(self.arch, self.accuracy, step_limit=STEP_LIMIT)

    def verdict(self) -> Verdict:
        """Check it in this process."""
        return self.emulator.verify(self.program)


class FinalistProcess:
    """Another process, which checks finalists beside this one. Use as a context manager.

    It takes a second to start, in which a search finds what it is to check.
    """

    def __init__(self) -> None:
        self._ours, self._process = talking_to(_serve_finalists)
        self._is_ready = False
        self._begun: _Finalist | None = None

    def begin(self, finalist: _Finalist) -> bool:
        """Have a finalist checked, and return whether the process takes it.

        It takes none before it has started, nor while it is at another one.
        """
        with suppress(EOFError, OSError):
            self._is_ready = self._is_ready or (self._ours.poll() and self._ours.recv() is None)
            if self._is_ready and self._begun is None:
                self._ours.send(finalist)
                self._begun = finalist
        return self._begun is finalist

    def ended(self, *, wait: bool) -> Verdict | None:
        """The verdict on what was begun; None where there is none, or none yet.

        What the process leaves undone because it was killed is checked here.
        """
        begun, verdict = self._begun, None
        if begun is None:
            return None
        try:
            if not wait and not self._ours.poll():
                return None
            verdict = self._ours.recv()
        except (EOFError, OSError):
            self._is_ready = False
        self._begun = None
        return verdict or begun.verdict()

    def __enter__(self) -> "FinalistProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._ours.close()


def _serve_finalists(connection: Connection) -> None:
    """Check one finalist after another, and say first that this process has started."""
    leave_interrupts()
    connection.send(None)
    with suppress(EOFError, OSError):  # the process that asks has ended
        while True:
            connection.send(connection.recv().verdict())


def check_finalists(
    problem: Problem,
    configs: Sequence[Config],
    arch: str,
    budget_s: float | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
    beside: FinalistProcess | None = None,
) -> FinalistCheck:
    """Check configs in order until the time is up; raises WrongKernel for one that is wrong.

    Where another process checks some `beside` this one, each takes the next one that is left.
    """
    waiting = deque(_Finalist(problem, config, arch, accuracy) for config in configs)
    if budget_s is None:
        budget_s = BUDGET_S if beside is None else BUDGET_OF_TWO_S
    started = time.monotonic()
    found: Counter[Status] = Counter()
    while waiting and time.monotonic() - started <= budget_s:
        here = waiting.popleft()
        if beside is not None and waiting and beside.begin(waiting[0]):
            waiting.popleft()
        # Only the next one compiles meanwhile: often there is time for no more than the first two.
        with here.emulator.compiling_ahead([one.program for one in list(waiting)[:1]]):
            _count(here.verdict(), found)
        if beside is not None:
            _count(beside.ended(wait=False), found)
    if beside is not None:
        _count(beside.ended(wait=True), found)
    return FinalistCheck(
        finalists=len(configs),
        arch=arch,
        verified=found[Status.VERIFIED],
        inaccurate=found[Status.INACCURATE],
        unverified=found[Status.UNVERIFIED],
        elapsed_s=time.monotonic() - started,
    )


def _count(verdict: Verdict | None, found: Counter[Status]) -> None:
    """Count a verdict, if there is one; raises WrongKernel for one that is wrong."""
    if verdict is None:
        return
    if verdict.status is Status.WRONG:
        problem, config = verdict.program.problem, verdict.program.config
        written = config.to_json(brief=True)
        raise WrongKernel(
            f"finalist {written} is wrong: {verdict.sentence}; see "
            f"{command_of('verify', written, problem)}"
        )
    found[verdict.status] += 1
