"""How a config divides the keys of attention: what rules, launches and templates share.

The emitted constants repeat it in C++; a test compares the two.
"""

from dataclasses import dataclass

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Problem

WORD_BYTES = 16
"""Bytes of an access to queries, keys and values."""

TILE_KEYS = 16
"""Keys of a tile of the tensor cores."""

SCORE_BYTES = 4
"""Bytes of a score that is kept."""

PADDING = 2
"""Elements between the vectors of heads in shared memory, which then begin in other banks."""


@dataclass(frozen=True, slots=True)
class KeySplit:
    """The shares of the keys that warps and blocks get, and the memory that they meet in."""

    problem: Problem
    config: Config

    @property
    def tensor_cores(self) -> bool:
        """Whether the tensor cores multiply."""
        return self.config.core == "mma"

    @property
    def keeps_scores(self) -> bool:
        """Whether all scores of a block's keys are kept until their softmax is known."""
        return self.config.cache == "shared" or self.config.launches == "three"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.config.threads // WARP

    @property
    def head_words(self) -> int:
        """Accesses to the vector of a head."""
        return self.problem.of_head * self.problem.dtype.itemsize // WORD_BYTES

    @property
    def step_keys(self) -> int:
        """Keys of a warp in a step of its loop."""
        keys = TILE_KEYS if self.tensor_cores else WARP // self.config.lanes_per_key
        return keys * self.config.unroll

    @property
    def block_keys(self) -> int:
        """Keys of a block in a step."""
        return self.warps * self.step_keys

    @property
    def parts(self) -> int:
        """Most parts of a sequence's keys."""
        return self.config.splits

    @property
    def least_part_keys(self) -> int:
        """Keys of a part at least, but for the last one: whole steps of a block."""
        return -(-self.config.part_keys // self.block_keys) * self.block_keys

    @property
    def most_part_keys(self) -> int:
        """Keys of the longest part."""
        even = -(-self.problem.cols // self.parts)
        steps = -(-max(even, self.config.part_keys) // self.block_keys)
        return min(steps * self.block_keys, self.problem.cols)

    @property
    def head_parts(self) -> int:
        """Blocks that read the same keys, each for some of a group's heads."""
        return -(-self.problem.of_group // self.config.heads_per_thread)

    @property
    def group_blocks(self) -> int:
        """Blocks for the query heads that share a key head."""
        return self.head_parts * self.parts

    @property
    def blocks(self) -> int:
        """Blocks of a launch."""
        return self.problem.rows // self.problem.of_group * self.group_blocks

    @property
    def registers(self) -> int:
        """Registers of a thread for queries, keys and values on their way, and sums.

        Where scores are kept, the sums alone take many: queries are read again for each key.
        """
        dim, unroll = self.problem.of_head, self.config.unroll
        if self.keeps_scores:
            return dim // self.config.lanes_per_key
        if self.tensor_cores:
            return dim // 8 + unroll * dim // 2 + dim // 4
        share = dim // self.config.lanes_per_key
        on_their_way = 2 * unroll * share * self.problem.dtype.itemsize // 4
        return 2 * self.config.heads_per_thread * share + on_their_way

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: what each warp has found for each head.

        Where scores are kept, their maximum and sum are also combined there, if by a kernel of its
        own: that of all kernels of a file is counted, as the compiler's is.
        """
        heads = self.config.heads_per_thread
        a_warp = heads * (self.problem.of_head + PADDING + 2) * 4
        if self.keeps_scores:
            a_warp += 8
        return self.warps * a_warp + (heads * 8 if self.config.cluster > 1 else 0)

    @property
    def dynamic_bytes(self) -> int:
        """Dynamic shared memory of a block, of the first launch."""
        return self.staged_bytes + self.score_bytes

    @property
    def staged_bytes(self) -> int:
        """What of it keys and values take that are on their way, of its warps' steps."""
        if self.config.staging == "direct":
            return 0
        return self.config.stages * self.block_keys * 2 * self.head_words * WORD_BYTES

    @property
    def score_bytes(self) -> int:
        """What of it the scores of the block's keys take, if it keeps them there."""
        return self.most_part_keys * SCORE_BYTES if self.config.cache == "shared" else 0

    @property
    def scratch_bytes(self) -> int:
        """Memory in which parts wait for each other: a vector, a maximum and a sum each.

        Of three launches it is the matrix of scores.
        """
        if self.config.launches == "one":
            return 0
        if self.config.launches == "three":
            return self.problem.rows * self.problem.cols * SCORE_BYTES
        return self.problem.rows * self.parts * (self.problem.of_head + 2) * 4
