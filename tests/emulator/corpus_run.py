"""Compiles a kernel's source for the emulator, runs it, and says all that is wrong with it."""

from dataclasses import dataclass

import numpy as np

from explorer.codegen import emit
from explorer.compile.headers import include_dir
from explorer.compile.nvrtc import compile_source
from explorer.devices.emulated.launch import launch
from explorer.devices.emulated.memory import GlobalMemory, check_output, poisoned
from explorer.devices.emulated.parse import parse
from explorer.reference import NUMPY_DTYPES, check, truth_of, verification_input

WRONG_NUMBERS = "wrong numbers"

STEP_LIMIT = 2_000_000
"""Steps after which a correct kernel on these small problems would be endless."""


@dataclass(frozen=True)
class Verdict:
    """What a run showed: `kinds` of findings, and WRONG_NUMBERS where an output is off."""

    kinds: frozenset[str]
    text: str

    @property
    def clean(self):
        return not self.kinds


def to_ptx(source, arch="compute_90"):
    """The PTX that NVRTC makes of a source; a virtual architecture spares the assembler."""
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--generate-line-info"]
    options += [f"--include-path={include_dir()}"]
    result = compile_source(source, tuple(options))
    assert result.succeeded, result.log
    return result.ptx


def run_variant(variant, source=None, *, edit=None, lead=0, arch="compute_90", steps=STEP_LIMIT):
    """The verdict on a variant's source, or on another `source` launched in the same way.

    `edit` changes the PTX; `lead` elements precede the output, which then starts out of step.
    """
    ptx = to_ptx(source or variant.source, arch)
    if edit is not None:
        ptx = edit(ptx)
    problem, (only,) = variant.problem, variant.launches
    x = verification_input(problem.rows, problem.cols, problem.dtype)
    memory = GlobalMemory()
    given = memory.allocate(x, name="input", writable=False)
    room = poisoned((lead + x.size,), NUMPY_DTYPES[problem.dtype])
    output = memory.allocate(room, name="output", initialised=False, written_once=True)
    values = {
        "input": given,
        "output": output.address + lead * x.itemsize,
        "rows": np.int64(problem.rows),
        "cols": np.int32(problem.cols),
    }
    result = launch(
        parse(ptx),
        only.entry,
        grid=(only.grid, 1, 1),
        block=(only.block, 1, 1),
        args=[values[name] for name in only.arguments],
        memory=memory,
        shared_bytes=only.shared_bytes,
        step_limit=steps,
    )
    before = slice(0, lead * x.itemsize)
    kinds = {"out-of-bounds"} if output.written[before].any() else set()
    memory.arena[output.offset : output.offset + lead * x.itemsize] = 0
    output.written[before] = True
    found = [*result.findings, *check_output(memory, output)]
    got = memory.read(output)[lead:].reshape(x.shape)
    compared = check(got, truth_of(problem, {"input": x}), problem.dtype)
    kinds |= {str(finding.kind) for finding in found}
    lines = [str(finding) for finding in found]
    if compared.wrong:
        kinds.add(WRONG_NUMBERS)
        lines.append(f"{compared.wrong} wrong, first at {compared.first}; {compared.error:.1e}")
    return Verdict(frozenset(kinds), "\n".join(lines))


def verdict_on(problem, config, **options):
    """The verdict on what a config emits for a problem."""
    return run_variant(emit(problem, config), **options)
