"""Check programs on a device: on the emulator, by a process for each core, or on a GPU."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

from explorer.devices.device import Device, Setting
from explorer.devices.names import (
    EMULATED,
    gpu_alone,
    gpu_limits,
    gpu_or_emulator,
    open_device,
)
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import emulated_runs
from explorer.devices.verdict import Status, Verdict
from explorer.evaluate.device_evaluator import environment_of
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import WrongKernel
from explorer.model.outcome import Environment, Measured
from explorer.model.problem import Problem
from explorer.model.query import command_of
from explorer.space.covering import covering_array
from explorer.space.space import Space, sampled
from explorer.system.processes import FRESH, leave_interrupts, usable_cores

# ------------------------------------------------------------------ on the emulator


Told = Callable[[int, int], None]
"""Called with the runs of a program that have ended, and with how many there are at least."""

FEW = 6
"""Most programs that are verified without processes, whose start would cost more than they save."""


@cache
def _emulator(arch: str) -> Device:
    """Return the emulator of this process, which is cached with its compiler."""
    return open_device(EMULATED, arch)


def verify_many(
    programs: Sequence[ProgramUnderTest],
    arch: str,
    rows: int | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
    told: Told | None = None,
) -> Iterator[Verdict]:
    """Yield the verdict of each program, in order, as soon as it is known.

    Of a few programs the runs are `told` as they end. Closing the iterator, also by Ctrl-C, ends
    all processes.
    """
    processes = min(usable_cores(), len(programs))
    if processes < 2 or len(programs) <= FEW:
        for program in programs:
            yield _verify(program, arch, rows, accuracy, told).with_host_part()
        return
    pool = ProcessPoolExecutor(processes, mp_context=FRESH, initializer=leave_interrupts)
    try:
        waiting = [pool.submit(_verify, one, arch, rows, accuracy) for one in programs]
        for future in waiting:
            yield future.result().with_host_part()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _verify(
    program: ProgramUnderTest,
    arch: str,
    rows: int | None,
    accuracy: Accuracy,
    told: Told | None = None,
) -> Verdict:
    """Verify a program with the emulator of the process that runs this."""
    emulator = _emulator(arch)
    emulator.open(Setting(program.problem, accuracy=accuracy))
    return emulator.verify(program, rows, told=told)


# ------------------------------------------------------------------ on a device by its name


def verify_on(
    device: str,
    programs: Sequence[ProgramUnderTest],
    arch: str,
    rows: int | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
    told: Told | None = None,
) -> Iterator[Verdict]:
    """Yield each program's verdict, in order. `device` is emulated, cuda:N, or auto.

    Programs are of one problem; the emulator compiles them for `arch`. Raises InvalidInput for
    another device, and for a GPU that does not exist.
    """
    with open_device(gpu_or_emulator(device), arch) as opened:
        if not opened.can_time:
            yield from verify_many(programs, arch, rows, accuracy, told)
            return
        problem = emulated_runs(programs[0], rows)[0].problem
        setting = Setting(problem, seed=programs[0].seed, accuracy=accuracy)
        opened.open(replace(setting, only=programs[0].judged_on))
        for program in programs:
            verdict = _with_second_opinion(opened.verify(program), opened, rows, accuracy)
            yield verdict.with_host_part()


def _with_second_opinion(
    verdict: Verdict, device: Device, rows: int | None, accuracy: Accuracy
) -> Verdict:
    """Return the verdict of a GPU, corrected if the emulator finds rounding and no defect.

    A GPU's check does not distinguish wrong numbers from rounding.
    """
    if verdict.status is not Status.WRONG or "ulp" not in verdict.sentence:
        return verdict
    emulated = _verify(verdict.program, device.gpu.arch, rows, accuracy)
    if emulated.status is not Status.INACCURATE:
        return verdict
    return replace(verdict, status=Status.INACCURATE)


# ------------------------------------------------------------------ programs to check


SEEDS = 2**31
"""Seeds that are drawn from where none is given."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Programs of one problem that are to be checked."""

    programs: tuple[ProgramUnderTest, ...]
    arch: str
    """The architecture that the emulator compiles them for."""
    rows: int | None = None
    """Rows that are executed; None for a few that show every case."""

    def drawn_by(self, seed: int | None, *, thorough: bool) -> "Checks":
        """Return the checks with what `seed` draws, a fresh one if it is None."""
        seed = secrets.randbelow(SEEDS) if seed is None else seed
        programs = (replace(one, seed=seed, thorough=thorough) for one in self.programs)
        return replace(self, programs=tuple(programs))

    def verdicts(
        self, device: str, accuracy: Accuracy, told: Told | None = None
    ) -> Iterator[Verdict]:
        """Return each program's verdict, in order. Raises as `verify_on`."""
        return verify_on(device, self.programs, self.arch, self.rows, accuracy, told)


def space_checks(
    problem: Problem,
    rows: int | None,
    gpu: str | None,
    *,
    drawn: tuple[int, int] | None = None,
    strength: int = 1,
) -> Checks:
    """Return a covering array of the space of that strength, or configs `drawn`: number, seed."""
    limits = gpu_limits(gpu)
    space = Space(problem, limits)
    configs = sampled(space, *drawn) if drawn else covering_array(space, strength)
    programs = (ProgramUnderTest.of_config(problem, config) for config in configs)
    return Checks(tuple(programs), limits.arch, rows)


# ------------------------------------------------------------------ timing a file


@dataclass(frozen=True, slots=True)
class TimedFile:
    """The verdict and the times of a file's kernel on a GPU."""

    problem: Problem
    """The problem on which it was verified and timed."""
    verdict: Verdict
    measured: Measured | None
    """Its times; None if it was not verified, and so not timed."""
    environment: Environment


def time_file(
    program: ProgramUnderTest,
    device: str = "auto",
    rows: int | None = None,
    timing: str = "cold",
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> TimedFile:
    """Verify and time a program on `auto`, which is cuda:0, or `cuda:N`.

    `rows` defaults to the rows that it was emitted for. Raises InvalidInput for another device,
    without a GPU, and for rows that its problem cannot have.
    """
    problem = program.problem.resized(rows, program.cols)
    instead = (
        "explorer profile counts what the kernel does without one, and this checks it: explorer "
        f"verify {program.file}"
    )
    with open_device(gpu_alone(device, "a time", instead)) as opened:
        setting = Setting(problem, timing, accuracy=accuracy, only=program.judged_on)
        environment = environment_of(opened.gpu, setting, opened.open(setting))
        verdict = opened.verify(program)
        measured = verdict.outcome if isinstance(verdict.outcome, Measured) else None
        verdict = _with_second_opinion(verdict, opened, None, accuracy).with_host_part()
        return TimedFile(problem, verdict, measured, environment)


# ------------------------------------------------------------------ finalists of a replay


BUDGET_S = 1.5
"""Seconds after which no further finalist is begun: enough for four or five of a replay's seven or
eight finalists on a machine of two cores."""

STEP_LIMIT = 200_000
"""Most instructions of a batch of blocks: about two seconds."""


@dataclass(frozen=True, slots=True)
class FinalistCheck:
    """How many of the finalists were checked, the best first, and with which results."""

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
    """Check configs in order within `budget_s` seconds; raises WrongKernel for a wrong one."""
    programs = [ProgramUnderTest.of_config(problem, config) for config in configs]
    emulator = open_device(EMULATED, arch, step_limit=STEP_LIMIT)
    emulator.open(Setting(problem, accuracy=accuracy))
    started = time.monotonic()
    counts: Counter[Status] = Counter()
    for number, program in enumerate(programs, 1):
        if time.monotonic() - started > budget_s:
            break
        # Only the next one compiles ahead: often there is time for no more than the first two.
        verdict = emulator.verify(program, then=programs[number : number + 1])
        if verdict.status is Status.WRONG:
            raise _wrong(verdict)
        counts[verdict.status] += 1
    return FinalistCheck(
        finalists=len(configs),
        arch=arch,
        verified=counts[Status.VERIFIED],
        inaccurate=counts[Status.INACCURATE],
        unverified=counts[Status.UNVERIFIED],
        elapsed_s=time.monotonic() - started,
    )


def _wrong(verdict: Verdict) -> WrongKernel:
    problem, config = verdict.program.problem, verdict.program.config
    written = config.to_json(brief=True)
    return WrongKernel(
        f"finalist {written} is wrong: {verdict.sentence}; see "
        f"{command_of('verify', written, problem)}"
    )
