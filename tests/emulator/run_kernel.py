"""Compiles small CUDA C++ kernels to PTX by NVRTC and launches them on the emulator."""

import functools
from pathlib import Path

import numpy as np
import nvidia
from cuda.bindings import nvrtc
from virtual_arch import ARCH

from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import GlobalMemory, check_output, poisoned
from explorer.ptx_emulator.parser import parse

PRELUDE = """
#define FULL 0xffffffffu
#define NEG_INF __int_as_float(0xff800000)
"""


@functools.cache
def compile_ptx(source, arch=ARCH):
    """PTX of a CUDA C++ source; the compiler's log is in the error."""
    include = Path(next(iter(nvidia.__path__))) / "cu13" / "include"
    options = [f"--gpu-architecture={arch}", "-std=c++17", "-lineinfo", f"-I{include}"]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if int(status):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode().rstrip("\0")


class Run:
    """What a kernel did: outputs by name, findings, counters."""

    def __init__(self, result, memory, outputs):
        self.result = result
        self.counters = result.counters
        self.outputs = {name: memory.read(a) for name, a in outputs.items()}
        checks = [f for a in outputs.values() for f in check_output(memory, a)]
        self.findings = [*result.findings, *checks]
        self.kinds = {finding.kind.value for finding in self.findings}

    def __getitem__(self, name):
        return self.outputs[name]

    @property
    def text(self):
        return "\n".join(str(finding) for finding in self.findings)


class Out:
    """An output argument: poisoned, to be written once."""

    def __init__(self, shape, dtype=np.float32, once=True, initial=None):
        self.shape = shape if isinstance(shape, tuple) else (shape,)
        self.dtype, self.once, self.initial = np.dtype(dtype), once, initial


def run_kernel(source, *args, entry="k", grid=1, block=32, ptx=False, **options):
    """Launch a kernel. Arrays are read-only inputs, Out are outputs, scalars are passed as such."""
    text = source if ptx else compile_ptx(PRELUDE + source)
    memory = GlobalMemory()
    values, outputs = [], {}
    for number, arg in enumerate(args):
        if isinstance(arg, Out):
            name = f"out{len(outputs)}"
            pattern = arg.initial is not None or arg.dtype.kind in "iu"
            array = np.zeros(arg.shape, arg.dtype) if pattern else poisoned(arg.shape, arg.dtype)
            if arg.initial is not None:
                array = np.array(arg.initial, arg.dtype).reshape(arg.shape)
            outputs[name] = memory.allocate(
                array, name=name, initialised=arg.initial is not None, written_once=arg.once
            )
            values.append(outputs[name])
        elif isinstance(arg, np.ndarray):
            values.append(memory.allocate(arg, name=f"in{number}", writable=False))
        else:
            values.append(arg)
    grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
    block = block if isinstance(block, tuple) else (block, 1, 1)
    result = launch(
        parse(text), entry, grid=grid, block=block, args=values, memory=memory, **options
    )
    return Run(result, memory, outputs)
