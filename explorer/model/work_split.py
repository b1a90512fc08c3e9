"""How a config splits a row over threads: the arithmetic that rules, launches and templates share.

The emitted constants repeat it in C++; a test compares the two.
"""

from dataclasses import dataclass

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem

LINE_BYTES = 128
"""Bytes of a line of memory: a warp's access that starts at one touches the fewest lines."""

WIDEST_STORE = 16
"""Bytes of the widest store of one thread."""

STAGED_BYTES = 4
"""Bytes that a thread reads at a time of a row in shared memory: a bank, or two 16-bit elements."""


@dataclass(frozen=True, slots=True)
class WorkSplit:
    """The shares of a row that threads and blocks get, and the shared memory they need."""

    problem: Problem
    config: Config

    @property
    def width(self) -> int:
        """Elements of a row that a thread loads by one vector access."""
        if not self.across_rows and self.config.staging == "span":
            return max(1, STAGED_BYTES // self.problem.dtype.itemsize)
        return self.config.vector_bytes // self.problem.dtype.itemsize

    @property
    def output_word_bytes(self) -> int:
        """Bytes of one store: the results of one vector, at most the widest store."""
        return min(WIDEST_STORE, self.width * self.problem.output_dtype.itemsize)

    @property
    def across_rows(self) -> bool:
        """Whether a vector holds an element of each of several rows, which lie side by side."""
        return self.problem.inner > 1

    @property
    def rows_together(self) -> int:
        """Neighbouring rows of which one access loads an element each."""
        return self.width if self.across_rows else 1

    @property
    def row_groups(self) -> int:
        """Groups of `rows_together` rows that a block works on, if vectors lie across rows."""
        return self.config.threads // self.config.threads_per_row

    @property
    def row_width(self) -> int:
        """Elements of one row that one access moves."""
        return 1 if self.across_rows else self.width

    @property
    def block_rows(self) -> int:
        """Rows of the problem that a block works on at a time."""
        return self.row_groups * self.width if self.across_rows else self.config.rows_per_block

    @property
    def aligned(self) -> bool:
        """Whether all rows are whole, aligned vectors, provided that the matrices are aligned.

        With an inner axis, whether that is whole vectors: they run along it. Rows in a staged tile
        may start at any element of it.
        """
        problem = self.problem
        if self.across_rows:
            return problem.inner % self.width == 0
        if self.config.staging == "span":
            return self.width == 1
        return (
            problem.cols % self.width == 0
            and problem.input_stride % self.width == 0
            and (not problem.fills_rows or self._output_aligned)
        )

    @property
    def _output_aligned(self) -> bool:
        problem = self.problem
        return problem.output_stride * problem.output_dtype.itemsize % self.output_word_bytes == 0

    @property
    def only_whole_vectors(self) -> bool:
        """Whether no element is accessed alone, so that matrices must be aligned to vectors."""
        return self.width > 1 and (self.aligned or self.across_rows)

    @property
    def row_vectors(self) -> int:
        """Vectors that cover a row, or one block's part of it if a cluster shares the row.

        If rows are misaligned, it is the most vectors for any start of a row. With an inner axis
        each of these vectors holds one element of the row.
        """
        if self.across_rows or self.aligned:
            return self.block_vectors(self.problem.cols // self.row_width)
        return self.block_vectors((self.problem.cols + 2 * (self.width - 1)) // self.width)

    def block_vectors(self, row_vectors: int) -> int:
        """Return the most vectors of a row for one block of a cluster, in whole lines of memory.

        With an inner axis each vector lies in a line of its own.
        """
        blocks = self.config.cluster
        if blocks == 1 or self.across_rows:
            return -(-row_vectors // blocks)
        line = LINE_BYTES // self.config.vector_bytes
        return -(-row_vectors // (blocks * line)) * line

    @property
    def parts(self) -> int:
        """Blocks that share a row in two successive launches; 1 if a block has whole rows."""
        if not self.config.splits_launches:
            return 1
        return -(-self.row_vectors // (self.config.threads * self.config.unroll))

    @property
    def equal_parts(self) -> bool:
        """Whether the blocks that share a row have equally many whole vectors of it."""
        if self.config.splits_launches:
            return self.row_vectors % (self.config.threads * self.config.unroll) == 0
        return self.row_vectors * self.config.cluster * self.row_width == self.problem.cols

    @property
    def slots(self) -> int:
        """Most vectors of a row that one thread works on."""
        return -(-self.row_vectors // self.config.threads_per_row)

    @property
    def keeps_numbers(self) -> bool:
        """Whether the cache holds the arithmetic's type: exponentials, or masked elements."""
        return self.config.cache_holds == "exp" or self.problem.mask is Mask.ADDITIVE

    @property
    def cached_registers(self) -> int:
        """32-bit registers that hold a thread's share, if the cache is registers."""
        vectors = self.slots * self.config.rows_per_thread
        # No register holds elements of two loads.
        vector_bytes = max(4, self.width * self.problem.dtype.itemsize)
        loaded = self.cached_matrices * -(-vectors * vector_bytes // 4)
        if not self.keeps_numbers:
            return loaded
        numbers = vectors * self.width * self.cached_element_bytes // 4
        return max(numbers, 2 * loaded) if self.problem.mask is Mask.ADDITIVE else numbers

    @property
    def cached_matrices(self) -> int:
        """Matrices in the cache: for a gradient, the forward's output and its gradient."""
        return 2 if self.problem.operator.is_gradient else 1

    @property
    def cached_element_bytes(self) -> int:
        """Bytes of one cached element: of the arithmetic's type, or of the input's."""
        dtype = self.problem.dtype
        return (dtype.arithmetic if self.keeps_numbers else dtype).itemsize

    @property
    def rows_in_shared(self) -> int:
        """Rows of a block in shared memory: those being reduced, and those being copied."""
        return self.config.rows_per_block * self.config.stages

    @property
    def cache_bytes(self) -> int:
        """Dynamic shared memory of a block: its rows, if the cache is shared memory."""
        if self.config.cache != "shared":
            return 0
        row = self.row_vectors * self.width * self.cached_element_bytes
        return self.cached_matrices * self.rows_in_shared * row

    @property
    def scratch_bytes(self) -> int:
        """Most static shared memory of a block's reductions."""
        if not self.problem.operator.reduces:
            return 0
        if self.across_rows:
            return self._scratch_across_rows
        if self.config.arrangement == "replicated":
            slots = 0
        elif self.config.cluster > 1:
            slots = self._cluster_shares
        elif self.config.reduction.startswith("shuffle"):
            slots = self.config.threads // WARP if self.config.threads_per_row > WARP else 0
        else:
            slots = self.config.threads if self.config.threads_per_row > 1 else 0
        slots *= self.config.rows_per_thread
        numbers = slots * self._reduced_numbers
        return numbers * self.problem.dtype.arithmetic.itemsize + self._mbarrier_bytes

    @property
    def _reduced_numbers(self) -> int:
        """Numbers that a row's threads combine: a gradient's sum, else a maximum and a sum.

        An online (maximum, sum) pair is two, as well; a compensated sum is two numbers by itself.
        """
        if self.problem.operator.is_gradient:
            return 1
        too = len(self.combined_too)
        padding = 0 if self.across_rows else too % 2
        return (2 if self.config.sum == "plain" else 3) + too + padding

    @property
    def combined_too(self) -> tuple[str, ...]:
        """What a row's threads combine beside maximum and sum: for results on request, of capped
        rows how many elements are numbers, since -inf counts as one, too, and across rows the
        target's number, which one of them comes upon."""
        problem = self.problem
        target = self.across_rows and problem.has_target and problem.operator.reduces
        named = tuple(name for result in problem.results for name in result.combines)
        if problem.softcap and problem.operator.reduces and "numbers" not in named:
            named = (*named, "numbers")
        return (*named, "target") if target else named

    @property
    def _cluster_shares(self) -> int:
        """Partial results in a block: of a cluster's warps, or of its own and the blocks."""
        warps = self.config.threads // WARP
        if self.config.first_warp_folds:
            return warps + self.config.cluster
        return warps * self.config.cluster

    @property
    def row_shares(self) -> int:
        """Warps that share a row across which vectors lie; threads if no warp has two of them."""
        return -(-self.config.threads_per_row // max(1, WARP // max(1, self.row_groups)))

    @property
    def _scratch_across_rows(self) -> int:
        """`scratch_bytes` if vectors lie across rows: partial results of all rows, and totals."""
        shuffles = self.config.reduction == "shuffle"
        partial = self.row_shares if shuffles else self.config.threads_per_row
        if self.config.cluster > 1:
            values = partial + self.config.cluster + 1
        else:
            values = partial + shuffles if partial > 1 else 0
        numbers = values * self.block_rows * self._reduced_numbers
        size = numbers * self.problem.dtype.arithmetic.itemsize + self._mbarrier_bytes
        if self.config.cache != "shared":
            return size
        return -(-size // 16) * 16  # where dynamic shared memory may begin

    @property
    def _mbarrier_bytes(self) -> int:
        """Most bytes of the mbarriers of a cluster's exchanges, alignment included."""
        return 32 if self.config.cluster > 1 else 0

    @property
    def span_bytes(self) -> int:
        """Static shared memory of a block's staged tile of rows, or of both tiles of a gradient."""
        if self.config.staging != "span":
            return 0
        size = self.config.vector_bytes
        ends = 2 * (size - self.problem.dtype.itemsize)  # the worst start
        span = (self.config.rows_per_block * self.problem.row_bytes + ends) // size * size
        return self.cached_matrices * span

    @property
    def static_bytes(self) -> int:
        """Static shared memory of a block, with an mbarrier for each stage of bulk copies."""
        mbarriers = 8 * self.config.stages if self.config.staging == "bulk" else 0
        return self.scratch_bytes + self.span_bytes + mbarriers

    @property
    def shared_bytes(self) -> int:
        """All shared memory of one block."""
        return self.cache_bytes + self.static_bytes


# ------------------------------------------------------------------ 16-bit elements


def keeps_packed(problem: Problem, config: Config) -> bool:
    """Return whether registers hold 16-bit elements in pairs, which each pass converts."""
    cached = config.cache == "registers" and config.cache_holds == "input"
    plain = config.staging == "direct" and config.sum == "plain" and config.rows_per_thread == 1
    one_matrix = not problem.operator.is_gradient and problem.mask is not Mask.ADDITIVE
    return _has_pairs(problem, config) and cached and plain and one_matrix


def borrows_ends(problem: Problem, config: Config) -> bool:
    """Return whether a row's first and last vectors are loaded whole, with elements of other rows.

    Elements that are loaded one by one must be packed, and a warp would wait for them before its
    next load. Only a dense matrix that is not written in place has such neighbours.
    """
    split = WorkSplit(problem, config)
    if not _has_pairs(problem, config) or split.across_rows or split.aligned:
        return False
    dense = problem.is_dense and not problem.in_place and problem.mask is Mask.NONE
    in_registers = config.cache == "registers" and config.rows_per_thread == 1
    once = config.staging == "direct" and config.persistent == 0
    return dense and in_registers and once and config.static_cols and problem.cols >= split.width


def masks_ends(problem: Problem, config: Config) -> bool:
    """Return whether shifted masks hide what a row's end vectors hold of other rows.

    They serve operators that store few results: no thread overwrites what others read, in a tile in
    shared memory either.
    """
    if problem.fills_rows:
        return False
    staged = config.staging == "span" and config.cache == "registers"
    words = WorkSplit(problem, config).width * problem.dtype.itemsize == STAGED_BYTES
    in_pairs = staged and words and _has_pairs(problem, config)
    return borrows_ends(problem, config) or (in_pairs and config.rows_per_thread == 1)


def _has_pairs(problem: Problem, config: Config) -> bool:
    return problem.dtype.cuda.pairs is not None and config.vector_bytes > 2
