"""The ladder: the ideas of the published series, from a thread a row to the fastest, in order."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rung:
    """A published kernel that adds an idea to the one before it, and what the idea does."""

    preset: str
    idea: str
    why: str
    """Why it gains or loses where rows have a few thousand columns, on a GPU such as an H200."""


LADDER = (
    Rung(
        "one-thread-block",
        "A thread computes a row, alone in its block.",
        "31 of the 32 lanes of each warp are idle, and a load of 4 bytes moves a sector of 32.",
    ),
    Rung(
        "unfused",
        "A warp of threads, each with a row of its own. Each pass is a launch (the naive kernels).",
        "All lanes work. But neighbouring threads read elements that are a row apart, so that no "
        "access is coalesced, and exponentials go through a scratch matrix.",
    ),
    Rung(
        "thread-per-row",
        "The three launches are fused into one.",
        "No scratch matrix is written and read: fewer bytes move.",
    ),
    Rung(
        "thread-per-row-online",
        "Online: the maximum and the sum are found in one pass.",
        "The row is read twice instead of three times, for one more exponential an element.",
    ),
    Rung(
        "shared-serial",
        "A block of threads shares a row. They leave their partial results in shared memory, where "
        "one thread reduces them.",
        "Neighbouring threads read neighbouring elements, so that each access uses every byte of "
        "its sectors (coalescing), though each of three passes reads the row. And 256 times as "
        "many threads have loads in flight: a thread a row leaves most of the GPU idle.",
    ),
    Rung(
        "shared-tree",
        "The threads reduce their results by a tree in shared memory.",
        "A few steps replace a loop over all threads. It gains little: the row takes most of the "
        "time.",
    ),
    Rung(
        "shared-tree-float4",
        "Accesses of 16 bytes (float4). Exponentials are stored to the output and divided there.",
        "It executes fewer instructions, and loses. At 4096 columns the compiler gives a thread so "
        "many registers that an SM holds one block of 512 threads. While it waits at a barrier or "
        "for memory, nothing else runs. The exponentials also go to the output and back. On a GPU "
        "or at a width where more blocks are resident it can gain, as was published.",
    ),
    Rung(
        "warp-reduce-float4",
        "Warps reduce by shuffles, without barriers; the first warp reduces their results.",
        "Two barriers replace one for each step of a tree. Registers still let an SM hold one "
        "block.",
    ),
    Rung(
        "online-warp-state",
        "Online again, for a block: pairs of a maximum and a sum are merged by shuffles.",
        "The row is read twice, nothing is stored in between, and all warps of an SM are resident.",
    ),
    Rung(
        "register-float4",
        "The row is read once, by 16 bytes, and stays in registers.",
        "One read and one write: no kernel can move less.",
    ),
    Rung(
        "tile",
        "A block works on two rows at once.",
        "A thread has more loads in flight, and two rows share each barrier.",
    ),
)
