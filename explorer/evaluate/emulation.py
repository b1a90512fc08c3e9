"""Check a program without a GPU: compile it with line info, run it on the emulator."""

import re
from collections.abc import Iterator

from explorer.accuracy import Accuracy
from explorer.codegen import scratch_bytes
from explorer.compile import SOURCE_NAME, CompileFailure, Compiler
from explorer.devices.emulated.device import STEP_LIMIT, EmulatedKernel, emulate
from explorer.devices.emulated.emulation import Emulation, Status
from explorer.devices.emulated.findings import LaunchError, UnsupportedPtx
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.small_problem import small_problems, too_large
from explorer.evaluate.verdict import Verdict
from explorer.problem import Problem
from explorer.reference import verification_inputs


class Emulator:
    """Checks programs compiled for one architecture, such as sm_90."""

    def __init__(
        self,
        arch: str,
        *,
        step_limit: int = STEP_LIMIT,
        accuracy: Accuracy = Accuracy.DEFAULT,
    ) -> None:
        self.arch = arch
        self._accuracy = accuracy
        self._compiler = Compiler(arch, line_info=True)
        self._step_limit = step_limit

    def verify(self, program: ProgramUnderTest, rows: int | None = None) -> Verdict:
        """Run a program on its small problems; ends with the first that is wrong or unknown.

        Raises InvalidInput for cols that do not suit the kernel. What cannot be compiled is
        wrong, and what the emulator does not know unverified: both are results.
        """
        problems = small_problems(program, rows)
        large = too_large(problems[0])
        if large:
            return self._verdict(program, [Emulation(problems[0], reason=large)])
        runs: list[Emulation] = []
        try:
            kernel = self._compiler.compile(program.source)
            module = EmulatedKernel.of(_named(kernel.ptx, program.file), ()).module
            for problem, odd in _runs(program, problems):
                scratch = scratch_bytes(problem, program.config)
                launched = program.launches(problem)
                steps = EmulatedKernel(module, launched, scratch, program.config.rewrites)
                runs.append(self._run(program, steps, problem, odd))
                if runs[-1].status in (Status.WRONG, Status.UNVERIFIED):
                    break
        except CompileFailure as failure:
            reason = f"it does not compile for {self.arch}: {failure}"
            runs.append(Emulation(problems[0], reason=reason))
        except UnsupportedPtx as error:
            runs.append(Emulation(problems[0], unsupported=error.opcodes))
        except LaunchError as error:
            runs.append(Emulation(problems[0], reason=f"it cannot be launched: {error}"))
        return self._verdict(program, runs)

    def _verdict(self, program: ProgramUnderTest, runs: list[Emulation]) -> Verdict:
        return Verdict.of_runs(program, tuple(runs), f"emulation for {self.arch}")

    def _run(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        problem: Problem,
        odd_elements: bool,
    ) -> Emulation:
        arrays = verification_inputs(problem)
        return emulate(
            kernel,
            problem,
            arrays,
            odd_elements=odd_elements,
            rounding=program.rounding(problem),
            step_limit=self._step_limit,
            accuracy=self._accuracy,
        )


def _named(ptx: str, file: str) -> str:
    """PTX that calls its source `file`, not by a path that NVRTC makes up."""
    return re.sub(rf'"[^"\n]*\b{re.escape(SOURCE_NAME)}"', lambda _: f'"{file}"', ptx)


def _runs(
    program: ProgramUnderTest, problems: tuple[Problem, ...]
) -> Iterator[tuple[Problem, bool]]:
    """Each problem; one of them again at odd elements, where the kernel allows any alignment."""
    for problem in problems:
        yield problem, False
    if program.any_alignment:
        yield problems[min(1, len(problems) - 1)], True
