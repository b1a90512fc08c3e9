"""A variant is checked on the emulator before its source is given away."""

from explorer.accuracy import Accuracy
from explorer.codegen import Variant
from explorer.evaluate.emulation import Emulator, Verdict
from explorer.evaluate.program_under_test import ProgramUnderTest

STEP_LIMIT = 500_000
"""Instructions of one batch of blocks: some five seconds."""


def verify_variant(variant: Variant, arch: str, accuracy: Accuracy = Accuracy.DEFAULT) -> Verdict:
    """What the emulator says of a variant; a very slow one is left unverified."""
    emulator = Emulator(arch, step_limit=STEP_LIMIT, accuracy=accuracy)
    return emulator.verify(ProgramUnderTest.of(variant))
