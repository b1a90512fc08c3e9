"""What the emulator is to find nothing against."""

from planted import planted

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import ROW_THREADS
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.space import Space

FAULTLESS = (Status.VERIFIED, Status.INACCURATE)
"""A row summed by one thread in fp32 may miss the tolerance by rounding alone."""

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
    """Every second config: what such kernels do not change is in other arrays. Every third in f64.

    Kernels of f64 take an emulator three times as long.
    """
    return configs[:: 3 if dtype is DType.F64 else 2]


def verify(emulator, problem, config):
    """Assert that a config is legal on an H200, and its kernel verified."""
    space = Space(problem, known_gpu("NVIDIA H200"))
    assert space.foreign_value(config) is None, space.foreign_value(config)
    broken = space.broken_rule(config)
    assert broken is None, broken.reason(config)
    verdict = emulator.verify(ProgramUnderTest.of_config(problem, config), few_rows(problem))
    assert verdict.status is Status.VERIFIED, f"{config.to_json(brief=True)}: {verdict.sentence}"


def find_out(emulator, problem, config, substitutions, rows=None):
    """Assert that a config's kernel with planted defects is wrong, and return the verdict."""
    program = ProgramUnderTest.of_config(problem, config)
    verdict = emulator.verify(planted(program, substitutions), rows)
    assert verdict.status is Status.WRONG, verdict.sentence
    return verdict
