"""How many blocks are on the GPU at once, as far as is known before a kernel is compiled."""

from explorer.gpu_spec import GpuSpec


def blocks_at_once(gpu: GpuSpec, threads: int, room: int | None = None) -> int:
    """Blocks of so many threads, if nothing but threads limits them: `room` of them an SM.

    Left out, room is what the SM has.
    """
    return gpu.sm_count * min(gpu.blocks_per_sm, (room or gpu.threads_per_sm) // threads)
