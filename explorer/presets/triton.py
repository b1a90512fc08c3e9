"""The fused softmax of Triton's tutorial, which later publications compare themselves with."""

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Op, Problem, power_of_two
from explorer.model.work_split import WorkSplit
from explorer.presets.preset import VECTOR_BYTES, Preset, Source, holds, vectors

THREADS = 256
MOST_BLOCKS = 8
WORKING_REGISTERS = 24
"""Of a thread, beside its share of the row."""


def _persistent(problem: Problem, gpu: GpuSpec) -> Config:
    """As many blocks an SM as its registers hold, a power of two.

    Triton divides a row, rounded up to a power of two, evenly: of a short one each thread has less
    than 16 bytes, which it loads at once.
    """
    share = power_of_two(problem.cols) // THREADS * problem.dtype.itemsize

    def having(blocks: int) -> Config:
        return vectors(
            problem,
            THREADS,
            vector_bytes=max(problem.dtype.itemsize, min(VECTOR_BYTES, share)),
            cache="registers",
            cache_holds=holds(problem),
            static_cols=True,
            persistent=blocks,
        )

    registers = WorkSplit(problem, having(1)).cached_registers + WORKING_REGISTERS
    held = occupancy(Resources(registers=registers), THREADS, 1, gpu).blocks_per_sm
    return having(1 << max(0, min(MOST_BLOCKS, held).bit_length() - 1))


PRESETS = (
    Preset(
        "triton-tutorial",
        "Blocks of eight warps, as many as the SMs hold, stride over the rows, each of which is "
        "read once and kept in registers: 1 read and 1 write.",
        Source("Triton", "tutorial 02-fused-softmax, num_warps=8", "2024"),
        _persistent,
        ops=(Op.SOFTMAX,),
    ),
)
