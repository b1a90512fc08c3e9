"""Check programs on a device by its name: the emulator, or a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from explorer.accuracy import Accuracy
from explorer.devices.cuda import CudaDevice, device_index, driver_problem
from explorer.devices.emulated.emulation import Status
from explorer.errors import InvalidInput
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.live import LiveEvaluator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import emulated_runs
from explorer.evaluate.verdict import Verdict
from explorer.evaluate.verify_many import verify_many

EMULATED = "emulated"


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
    if device == "auto":
        device = EMULATED if driver_problem() else "cuda:0"
    index = device_index(device)
    if device == EMULATED:
        yield from verify_many(programs, arch, rows, accuracy)
    elif index is not None:
        problem = emulated_runs(programs[0], rows)[0].problem
        with LiveEvaluator(problem, CudaDevice(index), accuracy=accuracy) as live:
            emulator = Emulator(live.gpu.arch, accuracy=accuracy)
            for program in programs:
                yield _second_opinion(live.judge(program), emulator, rows)
    else:
        raise InvalidInput(
            f"device '{device}' is not known; it is emulated, cuda:N such as cuda:0, or auto"
        )


def _second_opinion(verdict: Verdict, emulator: Emulator, rows: int | None) -> Verdict:
    """A GPU's check does not tell wrong numbers from rounding; the emulator does."""
    if verdict.status is not Status.WRONG or "ulp" not in verdict.sentence:
        return verdict
    emulated = emulator.verify(verdict.program, rows)
    if emulated.status is not Status.INACCURATE:
        return verdict
    return replace(verdict, status=Status.INACCURATE)
