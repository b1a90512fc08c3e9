"""Check programs on a device: the emulator, by a process a core, or a GPU, which may time one."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

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
from explorer.system.processes import FRESH, leave_interrupts, usable_cores

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


BUDGET_S = 1.5
"""Seconds after which no further finalist is begun. Four or five of a replay's seven or eight
finalists were checked in them, on a machine of two cores."""

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


def check_finalists(
    problem: Problem,
    configs: Sequence[Config],
    arch: str,
    budget_s: float = BUDGET_S,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> FinalistCheck:
    """Check configs in order until the time is up; raises WrongKernel for one that is wrong."""
    programs = [ProgramUnderTest.of_config(problem, config) for config in configs]
    emulator = _emulator(arch, accuracy, step_limit=STEP_LIMIT)
    started = time.monotonic()
    found: Counter[Status] = Counter()
    for number, program in enumerate(programs, 1):
        if time.monotonic() - started > budget_s:
            break
        # Only the next one compiles meanwhile: often there is time for no more than the first two.
        with emulator.compiling_ahead(programs[number : number + 1]):
            verdict = emulator.verify(program)
        if verdict.status is Status.WRONG:
            raise _wrong(verdict)
        found[verdict.status] += 1
    return FinalistCheck(
        finalists=len(configs),
        arch=arch,
        verified=found[Status.VERIFIED],
        inaccurate=found[Status.INACCURATE],
        unverified=found[Status.UNVERIFIED],
        elapsed_s=time.monotonic() - started,
    )


def _wrong(verdict: Verdict) -> WrongKernel:
    problem, config = verdict.program.problem, verdict.program.config
    written = config.to_json(brief=True)
    return WrongKernel(
        f"finalist {written} is wrong: {verdict.sentence}; see "
        f"{command_of('verify', written, problem)}"
    )
