"""How many threads published kernels give a row."""

from explorer.gpu_spec import GpuSpec
from explorer.occupancy import occupancy
from explorer.outcome import Resources
from explorer.power_of_two import power_of_two

WARP = 32
MOST_THREADS = 1024


def warps_for(vectors: int, each: int = 1) -> int:
    """Threads of whole warps, a power of two, for about `each` of a row's vectors a thread."""
    return min(MOST_THREADS, max(WARP, power_of_two(-(-vectors // each))))


def lanes_for(vectors: int) -> int:
    """Lanes of one warp, a power of two, as many as have a vector of the row to work on."""
    return min(WARP, power_of_two(vectors))


def largest_as_resident(shared_bytes: int, gpu: GpuSpec) -> int:
    """The largest block of which an SM holds as many as of blocks of 128 threads.

    The rule of OneFlow and AITemplate for rows kept in shared memory: where memory, not threads,
    limits what is resident, threads come free.
    """

    def held(threads: int) -> int:
        resources = Resources(registers=WARP, dynamic_shared_bytes=shared_bytes)
        return occupancy(resources, threads, 1, gpu).blocks_per_sm

    return next(n for n in (1024, 512, 256, 128) if n == 128 or held(n) == held(128))
