"""Check many programs at once on the emulator: one process a core."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from explorer.accuracy import Accuracy
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.verdict import Verdict

FEW = 6
"""Programs up to which starting processes costs more than it saves."""

_emulators: dict[tuple[str, Accuracy], Emulator] = {}


def verify_many(
    programs: Sequence[ProgramUnderTest],
    arch: str,
    rows: int | None = None,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Iterator[Verdict]:
    """The verdict of each program, in order, as it is known.

    Abandoning the iterator, also by Ctrl-C, leaves no process behind.
    """
    processes = min(os.cpu_count() or 1, len(programs))
    if processes < 2 or len(programs) <= FEW:
        for program in programs:
            yield _verify(program, arch, rows, accuracy)
        return
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_leave_interrupts
    )
    try:
        waiting = [pool.submit(_verify, program, arch, rows, accuracy) for program in programs]
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C reaches the whole process group; it is the caller's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _verify(program: ProgramUnderTest, arch: str, rows: int | None, accuracy: Accuracy) -> Verdict:
    """In any process; its emulator, with its compiler, is kept for the next one."""
    if (arch, accuracy) not in _emulators:
        _emulators[arch, accuracy] = Emulator(arch, accuracy=accuracy)
    return _emulators[arch, accuracy].verify(program, rows)
