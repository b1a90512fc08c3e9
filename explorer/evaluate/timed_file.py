"""Verify a file's kernel on a GPU, then time it, as a search does with each of its trials."""

from dataclasses import dataclass

from explorer.accuracy import Accuracy
from explorer.devices.cuda import CudaDevice, device_index, driver_problem
from explorer.errors import InvalidInput
from explorer.evaluate.emulation import Emulator, Verdict
from explorer.evaluate.live import LiveEvaluator, verdict_on
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.verify import second_opinion
from explorer.outcome import Circumstances, Measured
from explorer.problem import Problem


@dataclass(frozen=True, slots=True)
class TimedFile:
    """What became of a file's kernel on a GPU."""

    problem: Problem
    """What it was verified and timed on."""
    verdict: Verdict
    measured: Measured | None
    """Its times; None where it was not verified, and so not timed."""
    circumstances: Circumstances


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
    index = _gpu_index(device, program.file)
    with LiveEvaluator(problem, CudaDevice(index), timing, accuracy=accuracy) as live:
        outcome = live.measure(program)
        verdict = verdict_on(program, outcome, live.gpu.name)
        emulator = Emulator(live.gpu.arch, accuracy=accuracy)
        measured = outcome if isinstance(outcome, Measured) else None
        told = second_opinion(verdict, emulator, None)
        return TimedFile(problem, told, measured, live.circumstances)


def _gpu_index(device: str, file: str) -> int:
    """Which GPU times; raises InvalidInput where there is none."""
    index = 0 if device == "auto" else device_index(device)
    if index is None:
        raise InvalidInput(
            f"device is '{device}'; a file is timed on a GPU: take auto or cuda:N such as cuda:0"
        )
    problem = driver_problem()
    if problem is not None:
        raise InvalidInput(
            f"a time needs a GPU, and there is none: {problem}; check the kernel without one: "
            f"explorer verify {file}"
        )
    return index
