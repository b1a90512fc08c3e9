"""Ladders: the ideas of the published series, from the simplest kernel to the fastest, in order.

One is for rows of a matrix, from a thread a row on; one for attention, from a launch a step on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import DEFAULT_OP, OPERATORS, Extent, Op


@dataclass(frozen=True, slots=True)
class Rung:
    """A kernel that adds an idea to another one, and what the idea does."""

    preset: str
    idea: str
    why: str
    """Why it gains or loses where rows have a few thousand columns, on a GPU such as an H200; of
    attention what it saves, or what it costs."""
    after: str = ""
    """The preset that it changes; empty if that is the one before it."""
    besides: tuple[str, ...] = ()
    """Parameters that the published kernel also has otherwise, which are no part of the idea."""


LADDER = (
    Rung(
        "one-thread-block",
        "A thread computes a row, alone in its block.",
        "31 of the 32 lanes of each warp are idle, and a load of 4 bytes moves a sector of 32.",
    ),
    Rung(
        "thread-per-row",
        "A warp of threads, each with a row of its own.",
        "All lanes work: an element takes 46 instructions instead of 1472. But neighbouring "
        "threads read elements that are a row apart: no access is coalesced, and as many sectors "
        "move as before. And 8192 rows are now 256 warps instead of 8192, two for an SM instead of "
        "32: too few to hide how long memory takes.",
    ),
    Rung(
        "unfused",
        "Each pass is a launch (the naive kernels).",
        "It loses: exponentials go through a scratch matrix, so that 192 bytes an element move "
        "instead of 128, though the other arithmetic takes fewer instructions. Fusing the launches "
        "gives step 2 again.",
        besides=("exp", "normalise"),
    ),
    Rung(
        "thread-per-row-online",
        "Online: the maximum and the sum are found in one pass.",
        "The row is read twice instead of three times, for one more exponential an element.",
        after="thread-per-row",
    ),
    Rung(
        "shared-serial",
        "A block of threads shares a row. They leave their partial results in shared memory, where "
        "one thread reduces them.",
        "Neighbouring threads read neighbouring elements, so that each access uses every byte of "
        "its sectors (coalescing), though each of three passes reads the row. And 33 times as many "
        "threads have loads in flight at a time: 8192 rows, a thread each, are two warps for each "
        "of 132 SMs, which could hold 64.",
        after="thread-per-row",
    ),
    Rung(
        "shared-tree",
        "The threads reduce their results by a tree in shared memory.",
        "A few steps replace a loop over all threads. It gains little: the row takes most of the "
        "time.",
    ),
    Rung(
        "llm.c-2",
        "Exponentials are stored to the output, and divided there.",
        "A quarter of the instructions is saved. It loses, probably since a quarter more sectors "
        "move: the output is written, read back and written again, and each reading waits for what "
        "was written.",
    ),
    Rung(
        "shared-tree-float4-256",
        "Accesses of 16 bytes (float4).",
        "It loses. Fewer instructions move the same sectors, 28 an element instead of 34. But at "
        "4096 columns the compiler gives a thread 80 registers instead of 32, so that an SM holds "
        "three blocks instead of eight.",
    ),
    Rung(
        "shared-tree-float4",
        "Blocks of 512 threads.",
        "It loses more than any other step. At 4096 columns an SM holds one block instead of three "
        "of 256 threads: while it waits at a barrier or for memory, nothing else runs. Where more "
        "blocks are resident it can gain, as was published.",
    ),
    Rung(
        "warp-reduce-float4",
        "Warps reduce by shuffles, without barriers; the first warp reduces their results.",
        "Two barriers replace one for each step of a tree. An SM still holds one block.",
    ),
    Rung(
        "warp-reduce-float4-uncached",
        "The row is read a third time, instead of exponentials.",
        "It loses. A fifth fewer sectors move, but at a third of copy's speed the memory's "
        "bandwidth is not what limits this kernel. Each exponential is computed twice, so that an "
        "element takes 53 instructions instead of 40. An SM still holds one block.",
    ),
    Rung(
        "pytorch-block-uncached",
        "Blocks of 1024 threads.",
        "Twice as many warps are resident, 32 an SM instead of 16. It gains little, since they are "
        "of one block, and wait together.",
    ),
    Rung(
        "fast-softmax-4",
        "Accesses of 4 bytes again.",
        "Half as many registers let an SM hold two blocks: while one waits, the other one works.",
    ),
    Rung(
        "fast-softmax-4-fast-exp",
        "A cheaper exponential (__expf), which is less accurate.",
        "It gains little, though an element takes 52 instructions instead of 74: as many sectors "
        "move, and the two blocks of an SM wait for them, and at barriers, as before.",
    ),
    Rung(
        "online-warp-state",
        "Online again, for a block: pairs of a maximum and a sum are merged by shuffles.",
        "It loses. The row is read twice instead of three times, but a third reading is cheap: the "
        "rows that all SMs work on have 4 MB, which the L2 still holds. An element takes 58 "
        "instructions instead of 52, and waits for the maximum of those before it.",
    ),
    Rung(
        "register-float4",
        "The row is read once, and stays in registers.",
        "One read and one write: no kernel can move less. The compiler has to know the columns: an "
        "array in registers holds a thread's share of them. It is slower than shared-tree all the "
        "same: the L2 serves most of that kernel's second and third reads, as the guide nsight "
        "shows, and here 1024 threads load once and then wait for each other.",
        after="pytorch-block-uncached",
        besides=("exp",),
    ),
    Rung(
        "register-float4-256",
        "A thread has four vectors of a row, and a block as many fewer threads.",
        "A thread has four loads in flight. At 4096 columns eight warps reduce their results "
        "instead of 32, and an SM holds six blocks instead of two.",
    ),
    Rung(
        "tile",
        "A block works on two rows at once.",
        "It gains nothing. A thread has eight loads in flight instead of four, and two rows share "
        "each barrier. Two rows take 60 registers instead of 36, and the more exact exponential 12 "
        "more: an SM holds three blocks instead of six, and so as many rows as before. An element "
        "takes 27 instructions instead of 13, of which the exponential adds ten. All warps reduce "
        "for themselves, since a first warp does so for one row only.",
        besides=("exp",),
    ),
)

ATTENTION_LADDER = (
    Rung(
        "llm.c-attention-1",
        "Unfused: a launch for the scores of all keys, one for their softmax, one for the values "
        "(the naive kernels).",
        "Each step is a kernel that one can read by itself, and the middle one is the softmax of "
        "the rows of a matrix. But a scratch matrix of scores is written and read several times, "
        "and two launches wait for others. A thread has a whole key: neighbouring threads read "
        "keys that are a row apart, so that no access is coalesced.",
    ),
    Rung(
        "vllm-paged-v1",
        "Fused: a block has a query head, and keeps the scores of all keys in shared memory.",
        "No scores go through global memory, and nothing waits for another launch: this saves 28 "
        "bytes an element in sectors. The published kernel also has two lanes share a key, which "
        "saves 513 of 1067 bytes, since 16 bytes of each fill a sector of 32; half as many "
        "registers let 16 warps reside instead of 8. But values are read only once all keys have "
        "been, with barriers in between. Shared memory limits how many keys there can be, and long "
        "caches leave an SM few resident blocks.",
    ),
    Rung(
        "flash-attention-minimal",
        "Online: the maximum, the sum and the values are taken in one pass, relative to the "
        "greatest score so far.",
        "Nothing grows with the number of keys, and no step waits for a barrier. The price is a "
        "multiplication of all sums at each key. It loses: two lanes share a key, and each keeps "
        "half of a head's query and of its sums, 64 numbers of both. This takes 236 registers a "
        "thread, so that 8 warps an SM are resident instead of 16.",
    ),
    Rung(
        "llama.cpp-vec",
        "A group of lanes shares a key, 16 bytes each.",
        "It gains since a lane keeps a sixteenth of the sums, so that six times as many warps fit "
        "an SM where heads have 128 elements of 16 bits. Neighbouring lanes read neighbouring "
        "bytes (coalescing), but no fewer sectors move: two lanes already filled each. All of a "
        "key's lanes take part in its shuffles and its exponential: an element takes 1734 "
        "instructions instead of 964.",
    ),
    Rung(
        "flashinfer-decode",
        "The query heads of a group share each key that a block loads.",
        "The keys of a group are read once, not once for each of its four heads, and each element "
        "is converted once. It gains little, since a group now has one block: there are 256 of "
        "them for 132 SMs, so that an SM has about two, whose 8 warps wait for each step's loads. "
        "Before, an SM had about 31 of them, and caches served part of the repeated reads.",
    ),
    Rung(
        "flashinfer-pipelined",
        "Pipelined: keys and values are copied ahead to shared memory, asynchronously.",
        "The same 8 warps an SM no longer wait for each step's loads: a step is on its way while "
        "the one before it is computed, and a copy takes no registers while it waits. Neighbouring "
        "lanes copy neighbouring bytes of whole keys.",
    ),
    Rung(
        "vllm-paged-v2",
        "Split keys: parts of a sequence's keys have blocks of their own, whose results a second "
        "launch combines.",
        "A block for each head is too few for a GPU where a batch is small: with parts all SMs "
        "read, and their scores fit. Here 1024 heads are enough blocks, and it loses: each of the "
        "eight parts of a head has barriers of its own and leaves a vector, a maximum and a sum, "
        "for which the second launch waits. An element takes 1375 instructions instead of 990.",
        after="vllm-paged-v1",
    ),
    Rung(
        "flash-decoding",
        "Tensor cores: a tile of 16 keys is multiplied with all heads of a group, from fragments "
        "that come straight from memory to registers.",
        "One instruction does the work of up to 64 multiply-adds of a warp, on numbers of 16 bits "
        "as they come from memory: no key is converted or shuffled. Groups of up to 8 heads take "
        "as many instructions as one head. An element takes 120 instead of 1048. Each group has "
        "two parts, so that there are 512 blocks for the SMs instead of 256.",
        after="flashinfer-decode",
    ),
)
"""The same of attention."""

RUNGS = (*LADDER, *ATTENTION_LADDER)
"""The rungs of all ladders."""


USUAL: Mapping[Extent, Mapping[str, Any]] = {
    Extent.MATRIX: {"cols": 4096},
    Extent.CACHE: {
        "cols": 4096,
        "rows": 1024,
        "group": 4,
        "key_heads": 8,
        "dtype": str(DType.BF16),
    },
}
"""The problem that a ladder is walked on if none is named, whose journey comes with the package:
of attention the next token of 32 sequences of a model whose 32 query heads share 8 key heads."""


def usual_problem(op: str | None) -> Mapping[str, Any]:
    """Return the keywords of the problem that the ladder of an operator is walked on."""
    operator = OPERATORS[DEFAULT_OP if op is None else Op.parse(op)]
    return {**USUAL[operator.over], **({} if op is None else {"op": op})}


def ladder_of(problem: Problem) -> tuple[Rung, ...]:
    """Return the ladder of a problem's operator."""
    return ATTENTION_LADDER if problem.attends else LADDER
