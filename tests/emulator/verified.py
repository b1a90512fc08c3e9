"""What the emulator is to find nothing against."""

from explorer.devices.emulated.emulation import Status
from explorer.evaluate.program_under_test import ProgramUnderTest

WIDE, FEW_ROWS = 1000, 9
"""Of rows so wide, so few are run: more of them take longer, and show no more of a config."""


def verify(emulator, problem, config):
    """Assert that a config's kernel is verified."""
    rows = FEW_ROWS if problem.cols >= WIDE and problem.mask_rows == 0 else None
    verdict = emulator.verify(ProgramUnderTest.of_config(problem, config), rows)
    told = f"{config.to_json(brief=True)}: {verdict.sentence}"
    assert verdict.status is Status.VERIFIED, told
