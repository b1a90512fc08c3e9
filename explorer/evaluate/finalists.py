"""Finalists of a search without a GPU, checked on the emulator as far as the time allows."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from explorer.accuracy import Accuracy
from explorer.config import Config
from explorer.devices.emulated.emulation import Status
from explorer.errors import WrongKernel
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.problem import Problem

BUDGET_S = 2.0
"""Seconds after which no further finalist is begun."""

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
    emulator = Emulator(arch, step_limit=STEP_LIMIT, accuracy=accuracy)
    started = time.monotonic()
    found: Counter[Status] = Counter()
    for config in configs:
        if time.monotonic() - started > budget_s:
            break
        verdict = emulator.verify(ProgramUnderTest.of_config(problem, config))
        if verdict.status is Status.WRONG:
            written = config.to_json(brief=True)
            raise WrongKernel(
                f"finalist {written} is wrong: {verdict.sentence}; see explorer verify "
                f"'{written}' --cols {problem.cols} --dtype {problem.dtype}"
            )
        found[verdict.status] += 1
    return FinalistCheck(
        finalists=len(configs),
        arch=arch,
        verified=found[Status.VERIFIED],
        inaccurate=found[Status.INACCURATE],
        unverified=found[Status.UNVERIFIED],
        elapsed_s=time.monotonic() - started,
    )
