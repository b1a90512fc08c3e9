"""What the emulator is to find nothing against."""

from explorer.devices.emulated.emulation import Status
from explorer.evaluate.program_under_test import ProgramUnderTest


def verify(emulator, problem, config):
    """Assert that a config's kernel is verified."""
    verdict = emulator.verify(ProgramUnderTest.of_config(problem, config))
    told = f"{config.to_json(brief=True)}: {verdict.sentence}"
    assert verdict.status is Status.VERIFIED, told
