"""Compiles a kernel's source for the emulator, runs it, and says all that is wrong with it."""

from dataclasses import dataclass

import numpy as np

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import emulated_grid
from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import GlobalMemory, check_output, poisoned
from explorer.ptx_emulator.parser import parse
from explorer.reference.check import check
from explorer.reference.inputs import verification_inputs
from explorer.reference.truth import truth_of

WRONG_NUMBERS = "wrong numbers"

STEP_LIMIT = 2_000_000
"""Steps after which a correct kernel on these small problems would be endless."""


@dataclass(frozen=True)
class Verdict:
    """What a run showed: `kinds` of findings, and WRONG_NUMBERS where an output is off."""

    kinds: frozenset[str]
    text: str
    error: float = 0.0
    """The largest relative error of an element."""

    @property
    def clean(self):
        return not self.kinds


def to_ptx(source, arch="compute_90"):
    """The PTX that NVRTC makes of a source, once in a session; a virtual architecture spares the
    assembler."""
    return Compiler(arch, line_info=True).compile(source).ptx


def run_variant(variant, source=None, *, edit=None, lead=0, arch="compute_90", steps=STEP_LIMIT):
    """The verdict on a variant's source, or on another `source` launched in the same way.

    `edit` changes the PTX; `lead` elements precede the output, which then starts out of step.
    """
    ptx = to_ptx(source or variant.source, arch)
    if edit is not None:
        ptx = edit(ptx)
    problem = variant.problem
    x = verification_inputs(problem)["input"]
    memory = GlobalMemory()
    given = memory.allocate(x, name="input", writable=False)
    room = poisoned((lead + x.size,), problem.dtype.numpy)
    output = memory.allocate(room, name="output", initialised=False)
    output.written_once = not variant.config.rewrites
    values = {
        "input": given,
        "output": output.address + lead * x.itemsize,
        "scratch": _scratch(memory, variant.scratch_bytes),
        "rows": np.int64(problem.rows),
        "cols": np.int32(problem.cols),
    }
    found = _launch_all(parse(ptx), variant.launches, values, memory, steps)
    before = slice(0, lead * x.itemsize)
    kinds = {"out-of-bounds"} if output.written[before].any() else set()
    memory.arena[output.offset : output.offset + lead * x.itemsize] = 0
    output.written[before] = True
    found += check_output(memory, output)
    got = memory.read(output)[lead:].reshape(x.shape)
    compared = check(got, truth_of(problem, {"input": x}), problem.dtype)
    kinds |= {str(finding.kind) for finding in found}
    lines = [str(finding) for finding in found]
    if compared.wrong:
        kinds.add(WRONG_NUMBERS)
        lines.append(f"{compared.wrong} wrong, first at {compared.first}; {compared.error:.1e}")
    return Verdict(frozenset(kinds), "\n".join(lines), compared.error)


def _scratch(memory, size):
    room = poisoned((max(1, -(-size // 4)),), np.float32)
    return memory.allocate(room, name="scratch", initialised=False)


def _launch_all(module, launches, values, memory, steps):
    """What is found in launches, one after the other."""
    found = []
    for step in launches:
        result = launch(
            module,
            step.entry,
            grid=(emulated_grid(step), 1, 1),
            block=(step.block, 1, 1),
            args=[values[name] for name in step.arguments],
            memory=memory,
            shared_bytes=step.shared_bytes,
            step_limit=steps,
            counting=False,
        )
        found += result.findings
    return found


def verdict_on(problem, config, **options):
    """The verdict on what a config emits for a problem."""
    return run_variant(emit(problem, config), **options)
