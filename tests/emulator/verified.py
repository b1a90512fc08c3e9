"""What the emulator is to find nothing against."""

from explorer.devices.emulated.result import Status
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.model.config import ROW_THREADS
from explorer.model.dtype import DType

WIDE, FEW_ROWS = 1000, 9
"""Of rows so wide, so few are run: more of them take longer, and show no more of a config."""


MOST_TERMS = 264
"""Elements of a row that a thread folds in the emulator: more take up to 15 s and show no more."""


def threads_a_row(cols, most=256):
    """Threads that may share a row of so many columns, of which none folds more than MOST_TERMS."""
    return tuple(n for n in ROW_THREADS if cols <= n * MOST_TERMS and n <= most)


def few_rows(problem):
    """How many rows to run of a problem; None for as many as a verification does."""
    plain = problem.mask_rows == 0 and problem.inner == 1
    return FEW_ROWS if plain and problem.cols >= WIDE else None


def some(configs, dtype):
    """Every third config in f64, whose kernels take an emulator three times as long."""
    return configs[::3] if dtype is DType.F64 else configs


def verify(emulator, problem, config):
    """Assert that a config's kernel is verified."""
    verdict = emulator.verify(ProgramUnderTest.of_config(problem, config), few_rows(problem))
    told = f"{config.to_json(brief=True)}: {verdict.sentence}"
    assert verdict.status is Status.VERIFIED, told
