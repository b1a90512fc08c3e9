"""The resident blocks of a kernel on an SM, and whether they are as many as were measured.

A compiler that gives a thread eight registers more can leave room for a block less. At 7000 x 5120
bf16 that cost an H200 6 %: nvcc 13.0 gave 40 registers where NVRTC 13.0 had given 32. Launch bounds
that ask for the measured blocks keep them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from explorer.codegen.variant import Launch, Variant
from explorer.compile.compiler import Compiler, nvrtc_version
from explorer.compile.resources import resources_on
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Resources


@dataclass(frozen=True, slots=True)
class MeasuredWith:
    """What a kernel was measured with: the compiler, and the registers that it gave a thread."""

    nvrtc: str
    registers: int

    def other_residency_here(self, gpu: GpuSpec, plain: Variant) -> str:
        """Say that the compiler at hand gives the kernel another residency on a GPU; else empty.

        `plain` is what was measured: a launch that begins before the one before it has ended has
        other code. Raises CompileFailure.
        """
        version = nvrtc_version()
        if version == self.nvrtc:  # nothing need be compiled
            return ""
        compiled = Compiler(gpu.arch).compile(plain.source).resources
        now = resources_on(gpu, plain.launches, compiled)
        return self.other_residency(gpu, plain.launches, now, version)

    def other_residency(
        self, gpu: GpuSpec, launches: Sequence[Launch], now: Resources, nvrtc: str
    ) -> str:
        """Say that `nvrtc` gives the kernel another residency on a GPU; empty where it does not.

        `now` are the resources by `nvrtc`. A launch whose blocks are all resident either way is not
        worth a word.
        """
        if nvrtc == self.nvrtc:
            return ""
        then = resources_on(gpu, launches, replace(now, registers=self.registers))
        most = math.ceil(launches[0].grid_on(gpu.sm_count) / gpu.sm_count)  # that an SM has
        if min(then.resident_blocks, most) == min(now.resident_blocks, most):
            return ""
        return (
            f"NVRTC {nvrtc} gives the kernel {now.registers} registers a thread, with which an SM "
            f"of {gpu.name} holds {now.resident_blocks} of its blocks; it was measured with "
            f"{self.registers} and {then.resident_blocks}, by NVRTC {self.nvrtc}: its time may "
            "differ, so search again with this compiler, or install the other one"
        )
