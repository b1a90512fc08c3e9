"""Plans of decode attention: kernels of a fixed config, run by the emulator on host memory.

Unlike problems, calls have strides and numbers of keys of their own: arrays are read where these
say, so that a wrong one shows as a wrong result.
"""

import functools
from types import SimpleNamespace

import numpy as np
from emulated_plans import ARCH, H200, memory

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel, launched
from explorer.model.config import Config
from explorer.model.problem import inputs, scalars
from explorer.model.problem import results as written
from explorer.ptx_emulator import GlobalMemory
from explorer.ptx_emulator.memory import poisoned
from explorer.runtime.kernels import in_parts

MULTIPLY_ADDS = Config(
    core="fma", static_cols=False, exp="ex2.approx", threads=32, lanes_per_key=8, min_blocks=1
)


@functools.cache
def kernel(problem, config):
    variant = emit(problem, config)
    ptx = Compiler(ARCH).compile(variant.code).ptx
    return EmulatedKernel.of(ptx, variant.launches, variant.scratch_bytes)


class AttentionPlan:
    """What `launcher.Plan` is. `launches` gets what each launch was told, by name."""

    def __init__(self, problem, asked, launches, config=MULTIPLY_ADDS):
        if asked.splits is not None:
            config = in_parts(config, asked.splits, problem, H200)
        self._kernel = kernel(problem, config)
        self.problem, self._launches = problem, launches
        self.kernel = SimpleNamespace(scratch_bytes=self._kernel.scratch_bytes)
        self._numbers = scalars(problem)
        self._scale = 1.0

    def scale(self, value):
        self._scale = value

    def launch(self, stream, query, output, **told):
        problem, told = self.problem, {"query": query, "output": output, **told}
        assert all(told[name] % 16 == 0 for name in ("query", "key", "value", "output"))
        numbers = {
            n: one.dtype.numpy.type(told.get(n, one.value)) for n, one in self._numbers.items()
        }
        numbers["scale"] = np.float32(self._scale)
        room, host, sizes = GlobalMemory(), {}, self._sizes(told)
        values = dict(numbers)
        names = {one.name: one.dtype.numpy for one in (*inputs(problem), *written(problem))}
        read = {one.name for one in inputs(problem)}
        for name, dtype in names.items():
            host[name] = memory(told[name], dtype, sizes.get(name, sizes["rows"]))
            content = host[name].copy() if name in read else poisoned(host[name].shape, dtype)
            values[name] = room.allocate(
                content, name=name, writable=name not in read, initialised=name in read
            )
        if self._kernel.scratch_bytes:
            scratch = poisoned((self._kernel.scratch_bytes // 4,), np.float32)
            values["scratch"] = room.allocate(scratch, name="scratch", initialised=False)
        result = launched(self._kernel, values, room, counting=False)
        assert not result.findings, result.findings
        for name in names.keys() - read:
            host[name][:] = room.read(values[name])
        self._launches.append((problem, numbers))

    def _sizes(self, told):
        """How many elements an array has from its first to its last."""
        problem = self.problem
        dim, rows, key_heads = problem.head_dim, problem.rows, told["key_heads"]
        sequences = rows // problem.group // key_heads
        strides = (told[name] for name in ("sequence_stride", "head_stride", "key_stride"))
        counts = sequences, key_heads, told["cols"]
        cache = sum((n - 1) * stride for n, stride in zip(counts, strides, strict=True)) + dim
        sizes = {"query": rows * dim, "output": rows * dim, "key": cache, "value": cache}
        return {**sizes, "rows": rows, "lengths": sequences}
