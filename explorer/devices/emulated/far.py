"""Blocks far from block 0: rows beyond 2^32 elements, emulated on sparse memory.

A kernel that computes an index in 32 bits, or stores a block's number in 16, is right on every
small problem. Here it runs on a problem of billions of elements, of which only the rows of a few
blocks are in memory: the first block, those around block 2^16, those with elements 2^31 and 2^32,
and the last one, which is partial. An access anywhere else is a finding.

    for far in far_problems(problem, block_rows, rows_together):
        kernel = replace(kernel, launches=launches(far), scratch_bytes=scratch_bytes(far))
        run = emulate_far(kernel, far, block_rows)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.device import (
    STEP_LIMIT,
    EmulatedKernel,
    LaunchRefused,
    NotEmulated,
    Truths,
    emulated_grid,
    judged,
    launched,
    with_store,
)
from explorer.devices.emulated.placement import numbers_of
from explorer.devices.host_check import MOST_SURPLUS
from explorer.devices.verdict import Emulation
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import (
    MAX_INNER,
    MAX_ROWS,
    Layout,
    Mask,
    Operand,
    Problem,
    inputs,
    results,
    scalars,
)
from explorer.ops import Extent
from explorer.ptx_emulator import (
    MAX_GRID,
    MOST_BYTES,
    Allocation,
    Argument,
    Finding,
    GlobalMemory,
    Kind,
    check_output,
    poisoned,
)
from explorer.reference.check import Check
from explorer.reference.inputs import Held, verification_inputs
from explorer.reference.layout import Array, first_elements
from explorer.reference.truth import truths_of

Numbers = NDArray[np.int64]

FAR_ELEMENTS = 2**32
"""The matrix has more elements than this: no unsigned 32-bit index reaches the last rows."""

FAR_BLOCKS = 2**16
"""The grid has more blocks than this: no 16-bit number of a block reaches the last ones."""

FARTHEST_BLOCKS = 2**24
"""The grid has more blocks than this if memory holds their rows: neither 24 bits nor an fp32 number
distinguish the last ones."""

FAR_ROWS = 2**32
"""The matrix has more rows than this if memory holds them and a grid has blocks for them: no
unsigned 32-bit number of a row reaches the last ones."""

MOST_FAR_ELEMENTS = 2**37
"""Most elements of so many blocks or rows: a matrix of 256 GiB in 16 bits."""

FAR_GAPS = (2**24 + 64, 2**32 + 64)
"""Elements of additional gaps between far rows, in whole vectors: more than 24 bits hold, with many
rows, and more than 32 bits hold, with few."""

FAR_KEYS = 67
"""Keys of a sequence of far keys."""

KEPT_KEYS = 1031
"""Keys of a sequence whose scores are far in scratch memory."""

FEWEST_FAR_KEYS = 3
"""Keys of a sequence whose queries are far."""

ELEMENTS_OF_A_BLOCK = 64
"""Elements that take as long as a block of far keys, most of which have none."""

MOST_ELEMENTS = 2**17
"""Most elements of the rows that are computed, which take some 0.1 s on one core."""

RANDOM_TILES = 4
"""Number of tiles drawn uniformly, and of tiles drawn uniformly by their logarithms."""

MANY_RANDOM_TILES = 16
"""The same of a thorough check."""

LEAST_TILES = 2
"""Fewest blocks, or clusters, that run, however many elements they have."""

NEIGHBOUR_BYTES = 32
"""Bytes on each side of a row that a kernel may load, by the widest access."""

# ------------------------------------------------------------------ problems


def far_problems(
    problem: Problem,
    block_rows: int,
    rows_together: int = 1,
    *,
    rounds: int = 1,
    blocks: int = 1,
    keeps_scores: bool = False,
) -> tuple[Problem, ...]:
    """Return the problem with so many rows that its last ones lie beyond 2^32 elements.

    Where a row has one result, these are elements of the input. The grid has more than 2^24 blocks,
    or fewer if memory cannot hold their rows, but at least 2^16; the last block is partial. Rows of
    up to 32 columns are more than 2^32 as well, if a grid has blocks for them. `block_rows` is the
    number of rows that a block, or `blocks` blocks together, work on; one access over a middle axis
    reads `rows_together` of them. For such an axis there is a second problem, with slices of more
    than 2^32 elements. For an additive mask there is one with a mask of all rows as well; for
    rows with gaps there are two with the gaps `FAR_GAPS`. If a block makes several `rounds` over
    the rows, each of them goes beyond 2^32 elements. Attention has problems of its own, in which
    keys are so far; and so are scores, if the kernel `keeps_scores` in scratch memory.
    """
    if problem.attends:
        of_keys = (*_of_keys(problem, blocks), *(_of_scores(problem) if keeps_scores else ()))
        return tuple(filter(is_addressable, of_keys))
    if problem.inner == 1:
        own = _of_rows(problem, block_rows, rounds, blocks)
        far = [own]
        if not problem.is_dense:
            far += [_far_apart(problem, block_rows, gap) for gap in FAR_GAPS]
        if problem.mask is Mask.ADDITIVE and own.mask_rows < own.rows:
            whole = replace(problem, mask_rows=problem.rows)
            far.append(_of_rows(whole, block_rows, rounds, blocks))
        return tuple(filter(is_addressable, far))
    short = 5 * rows_together
    words = 2 * FAR_ELEMENTS // max(1, problem.cols - 1)  # of `rows_together` elements each
    beyond = words * rows_together
    long = min(beyond, MAX_INNER // 2) // rows_together * rows_together
    inners = dict.fromkeys((short, max(long, rows_together)))
    far = [_of_inner(problem, inner, block_rows) for inner in inners]
    return tuple(filter(is_addressable, far))


def is_addressable(problem: Problem) -> bool:
    """Return whether the emulator has addresses for a problem's arrays."""
    operands = (*inputs(problem), *results(problem))
    return all(operand.bytes <= MOST_BYTES for operand in operands)


def _of_rows(problem: Problem, block_rows: int, rounds: int, blocks: int) -> Problem:
    """Return the problem with far rows, one after the other; a mask repeats in them."""
    strides = [problem.input_stride, *([problem.output_stride] if problem.fills_rows else [])]
    least, most = min(strides), max(strides)
    unit = _mask_rows(problem)
    tiles = _far_tiles(block_rows * most * rounds, blocks)
    each = max(FAR_ELEMENTS // least, tiles * block_rows)
    if FAR_ROWS * most <= MOST_FAR_ELEMENTS:
        each = max(each, FAR_ROWS)
    wanted = rounds * each + 2 * block_rows + 2 * unit
    most_rows = _most_rows(block_rows, blocks)
    rows = min(wanted // block_rows * block_rows + (block_rows + 1) // 2, most_rows)
    if unit > 1:
        rows = min(-(-rows // unit), most_rows // unit) * unit
        if rows % block_rows == 0 and block_rows > 1:
            rows -= unit
    return replace(
        problem, rows=rows, mask_rows=unit or (rows if problem.mask is Mask.ADDITIVE else 0)
    )


def _most_rows(block_rows: int, blocks: int) -> int:
    """Return the most rows for which a grid has blocks, if `blocks` of them share `block_rows`."""
    return min(MAX_ROWS, MAX_GRID[0] // blocks * block_rows)


def _far_tiles(tile_elements: int, blocks: int) -> int:
    """Return the fewest tiles before the last ones; `blocks` blocks share a tile.

    A tile of several rounds has the elements of all of them.
    """
    return max(FAR_BLOCKS, min(FARTHEST_BLOCKS // blocks, MOST_FAR_ELEMENTS // tile_elements))


def _of_keys(problem: Problem, blocks: int) -> Iterator[Problem]:
    """Yield problems of few keys, the last of which lie beyond 2^32 elements.

    First there are many sequences, then two sequences of many key heads, in each layout: there the
    neighbours of a key, or of a key head, are far apart. In the last, of the fewest keys, the
    queries and results lie beyond 2^32 elements, or as far as a grid of `blocks` blocks for each
    key head allows and memory holds what they leave.
    """
    few, dim, group = problem.resized(problem.heads, FAR_KEYS), problem.of_head, problem.of_group
    own = problem.key_heads or 1
    heads = FAR_ELEMENTS // ((FAR_KEYS - 1) * dim) + 5
    yield few.resized((heads // own + 2) * few.heads)
    for layout in Layout:
        yield replace(few, layout=layout, key_heads=heads, rows=2 * heads * group)
    most = min(MAX_GRID[0] // blocks, MOST_BYTES // (blocks * group * (dim + 2) * 4))
    sequences = min(FAR_ELEMENTS // (group * dim) + 5 * own, most) // own
    yield few.resized(sequences * few.heads, FEWEST_FAR_KEYS)


def _of_scores(problem: Problem) -> Iterator[Problem]:
    """Yield a problem whose last rows' scores lie beyond 2^32 elements."""
    sequences = FAR_ELEMENTS // (KEPT_KEYS * problem.heads) + 5
    yield problem.resized(sequences * problem.heads, KEPT_KEYS)


def _far_apart(problem: Problem, block_rows: int, gap: int) -> Problem:
    """Return the problem with such gaps, and so many rows that the last is beyond 2^32 elements."""
    tiles = max(1, FAR_ELEMENTS // gap // block_rows + 1)
    few = problem.resized(max(4, tiles * block_rows + (block_rows + 1) // 2))
    return replace(
        few,
        input_stride=few.input_stride + gap,
        output_stride=few.output_stride + gap * (1 if problem.in_place else 2),
        ids_stride=few.ids_stride + gap * bool(few.ids_stride),
    )


def _mask_rows(problem: Problem) -> int:
    """Return the rows after which the mask of far rows repeats; 0 for no mask or an additive one.

    A causal mask of all rows would hide everything but the last of them.
    """
    own = problem.mask_rows
    if problem.mask is Mask.CAUSAL:
        return problem.cols + (5 if own == problem.rows else FAR_BLOCKS + 5)
    return own if own == 1 or own < problem.rows else 0


def _of_inner(problem: Problem, inner: int, block_rows: int) -> Problem:
    """Return the problem with far rows over a middle axis, in slices of `inner` rows."""
    tiles = _far_tiles(block_rows * problem.cols, 1)
    wanted = max(FAR_ELEMENTS // problem.cols, tiles * block_rows) + 2 * block_rows
    slices = max(2, min(-(-wanted // inner), _most_rows(block_rows, 1) // inner))
    if slices * inner % block_rows == 0 and slices > 2:
        slices -= 1
    return replace(problem, rows=slices * inner, inner=inner)


@dataclass(frozen=True, slots=True)
class FarTiles:
    """The tiles that are drawn, beside those that are always run."""

    seed: int = 0
    count: int = RANDOM_TILES
    """Number of tiles drawn uniformly, and of tiles drawn uniformly by their logarithms."""

    @classmethod
    def of(cls, seed: int, *, thorough: bool) -> "FarTiles":
        """Return those of a check."""
        return cls(seed, MANY_RANDOM_TILES if thorough else RANDOM_TILES)

    def of_many(self, last: int) -> list[int]:
        """Return random tiles up to number `last`; another seed draws others."""
        rng = np.random.default_rng([last, self.seed])
        logarithms = rng.uniform(0, np.log(last + 1), self.count)
        by_logarithm = [int(tile) - 1 for tile in np.exp(logarithms)]
        return [*map(int, rng.integers(0, last + 1, self.count)), *by_logarithm]


class Order(Enum):
    """The order in which the blocks of a launch work on the rows."""

    ASCENDING = "block b works on the rows from b * block_rows on"
    DESCENDING = "the last block works on the first rows"
    OTHER = "another"


def order_of(run: Emulation, kernel: EmulatedKernel, block_rows: int) -> Order:
    """Return the order in which rows were distributed to the blocks of a run.

    `run` is of `kernel` on a small problem. Far rows are chosen by the order. A kernel with another
    order can be right, but `emulate_far` would report accesses to rows that it does not expect.
    """
    step = kernel.launches[-1]
    tiles = -(-run.problem.rows // block_rows)
    each, rest = divmod(step.grid, tiles)
    if each == 0 or rest > MOST_SURPLUS or len(run.row_blocks) != run.problem.rows:
        return Order.OTHER
    blocks = np.array(run.row_blocks)
    written = blocks >= 0  # nobody writes a row that may stay as it is
    tile = (np.arange(run.problem.rows) // block_rows)[written]
    worker = blocks[written] // each
    launched_tiles = emulated_grid(step) // each
    if (worker == tile % launched_tiles).all():
        return Order.ASCENDING
    return Order.DESCENDING if (worker == tiles - 1 - tile).all() else Order.OTHER


# ------------------------------------------------------------------ the run


def emulate_far(
    kernel: EmulatedKernel,
    problem: Problem,
    block_rows: int,
    *,
    order: Order = Order.ASCENDING,
    rounds: int = 1,
    drawn: FarTiles = FarTiles(),
    rounding: float = 0.0,
    step_limit: int = STEP_LIMIT,
    accuracy: Accuracy = Accuracy.DEFAULT,
    most_elements: int = MOST_ELEMENTS,
    only: Held | None = None,
) -> Emulation:
    """Run a few far blocks of a kernel on a problem of `far_problems`, and check all they do.

    `block_rows` is the number of rows that a block, or a cluster, works on. The kernel's launches
    and scratch are those for the far problem; blocks that stride over the rows are launched as on a
    GPU on which each has `rounds` tiles. Rows hold the verification's patterns, or `only` some of
    them, and the truth is computed for exactly these rows. They have at most `most_elements`, but
    at least two blocks or clusters run.

    Raises LaunchRefused if the grid is not a whole number of blocks for each `block_rows` rows, and
    a few more, which find no rows.
    """
    each, surplus = _blocks_a_tile(kernel, problem, block_rows)
    last = -(-problem.rows // block_rows) - 1
    workers = last // rounds + 1
    chosen = _chosen_tiles(problem, block_rows, each, most_elements // rounds, drawn)
    tiles = np.unique(chosen % workers + workers * np.arange(rounds)[:, None])
    tiles = tiles[tiles <= last]
    rows = _members(tiles, block_rows)
    kind = _FarHeads if problem.attends else _FarRows
    leads = first_elements(problem, 0, kernel.promise)
    far = kind.of(problem, rows[rows < problem.rows], leads, only)
    memory = _FarMemory.of(far, kernel)
    at_work = np.sort(last - tiles) if order is Order.DESCENDING else tiles[tiles < workers]
    at_work, idle = _members(at_work, each), workers * each + np.arange(surplus)
    result = Emulation(
        problem,
        rounding=rounding,
        accuracy=accuracy,
        elements=len(far.rows) * problem.result_cols,
    )
    try:
        ran = launched(
            kernel,
            memory.values,
            memory.memory,
            step_limit=step_limit,
            counting=False,
            grid=workers * each + surplus,
            blocks=np.concatenate([at_work, idle]),
        )
    except NotEmulated as error:
        return replace(result, unsupported=error.opcodes)
    result = replace(result, findings=ran.findings, steps=ran.steps, work=ran.work)
    if not ran.complete:
        return result
    findings = (*ran.findings, *with_store(list(memory.findings()), kernel))
    result = judged(replace(result, findings=findings), memory.results(), far.truths)
    return replace(result, checks=tuple(map(far.named, result.checks)))


def _members(groups: Numbers, size: int) -> Numbers:
    """Return the numbers of all members of some groups, each of which has `size` neighbours."""
    return (groups[:, None] * size + np.arange(size)).reshape(-1)


def _blocks_a_tile(kernel: EmulatedKernel, problem: Problem, block_rows: int) -> tuple[int, int]:
    """Return how many blocks of each launch share `block_rows` rows, and how many are left.

    Raises LaunchRefused if the launches differ in that number, or if many blocks are left.
    """
    grid = kernel.launches[0].grid
    each, rest = divmod(grid, -(-problem.rows // block_rows))
    if rest > MOST_SURPLUS or any(step.grid != grid for step in kernel.launches):
        raise LaunchRefused(f"{grid} blocks do not share {problem.rows} rows by {block_rows}")
    return each, rest


def _chosen_tiles(
    problem: Problem, block_rows: int, each: int, most_elements: int, drawn: FarTiles
) -> Numbers:
    """Return the numbers of the most revealing tiles of `block_rows` rows, within limits.

    `each` blocks share a tile.
    """
    last = -(-problem.rows // block_rows) - 1
    tile = max(problem.input_stride, problem.output_stride) * block_rows
    computed = block_rows * problem.cols
    if problem.attends:
        tile = problem.cols * problem.of_head
        computed = max(tile, each * ELEMENTS_OF_A_BLOCK)
    slice_end = problem.inner // block_rows if problem.inner > 1 else last
    revealing = (
        last,
        FAR_ELEMENTS // tile,
        FAR_BLOCKS // each,
        FARTHEST_BLOCKS // each + 1,
        2**31 // tile,
        0,
        FAR_BLOCKS // each - 1,
        slice_end,
        *_half_visible_tiles(problem, block_rows),
        *drawn.of_many(last),
    )
    allowed = max(LEAST_TILES, most_elements // computed)
    chosen = list(dict.fromkeys(tile for tile in revealing if 0 <= tile <= last))
    return np.array(sorted(chosen[:allowed]), np.int64)


def _half_visible_tiles(problem: Problem, block_rows: int) -> list[int]:
    """Return tiles whose rows see half of their columns, in three repeats of a causal mask.

    Most rows of a mask with many more rows than columns see none.
    """
    if problem.mask is not Mask.CAUSAL:
        return []
    ends = (problem.mask_rows * repeat - 1 for repeat in (1, 2, 3))
    return [(end - problem.cols // 2) // block_rows for end in ends]


@dataclass(frozen=True, slots=True)
class _FarRows:
    """The rows of a far problem that are computed, with their elements and their truths."""

    problem: Problem
    rows: Numbers
    few: Problem
    """The same rows as a small problem of their own, with lengths in place of a causal mask."""
    arrays: dict[str, Array]
    """The arrays of the small problem."""
    mask_numbers: Numbers
    """The row of an additive mask that belongs to each row."""
    leads: dict[str, int]
    """Elements of its memory before each array."""

    @classmethod
    def of(
        cls, problem: Problem, rows: Numbers, leads: dict[str, int], only: Held | None
    ) -> "_FarRows":
        few = replace(
            problem,
            rows=len(rows),
            inner=1,
            input_stride=problem.cols,
            output_stride=problem.result_cols,
            ids_stride=problem.ids_per_row,
            in_place=False,
            mask=Mask.LENGTHS if problem.mask is Mask.CAUSAL else problem.mask,
            mask_rows=len(rows) if problem.mask is Mask.ADDITIVE else 0,
        )
        arrays = verification_inputs(few, only=only)
        masked = rows % max(1, problem.mask_rows)
        if problem.mask is Mask.CAUSAL:
            visible = masked + 1 + problem.cols - problem.mask_rows
            arrays["lengths"] = np.clip(visible, 0, problem.cols).astype(np.int32)
        if problem.mask is Mask.ADDITIVE:
            _, first, again = np.unique(masked, return_index=True, return_inverse=True)
            arrays["mask"] = arrays["mask"][first[again]]
        return cls(problem, rows, few, arrays, masked, leads)

    @property
    def truths(self) -> Truths:
        return truths_of(self.few, self.arrays)

    def named(self, check: Check) -> Check:
        """Return a check of the small problem's result, with the number of the far row."""
        if check.first is None:
            return check
        row, col = check.first
        return replace(check, first=(int(self.rows[row]), col))

    def lead(self, operand: Operand) -> int:
        """Return how many elements of its memory lie before an array."""
        shares = self.problem.in_place and operand.name == "output"
        return self.leads.get("input" if shares else operand.name, 0)

    def elements(self, operand: Operand) -> Numbers:
        """Return the number of each element of the rows in memory, shape (rows, cols)."""
        problem, cols, lead = self.problem, operand.cols, self.lead(operand)
        numbers = np.arange(cols, dtype=np.int64)
        if problem.inner == 1:
            return lead + self.rows[:, None] * operand.stride + numbers
        slices, places = np.divmod(self.rows, problem.inner)
        first = slices * cols * problem.inner + places
        return lead + first[:, None] + numbers * problem.inner

    def ranges(self, operand: Operand) -> Numbers:
        """Return the ranges of elements that the rows of an array consist of, shape (ranges, 2)."""
        problem, cols, lead = self.problem, operand.cols, self.lead(operand)
        if problem.inner == 1:
            first = self.rows * operand.stride + lead
            return np.stack([first, first + cols], axis=1)
        slices, places = np.divmod(self.rows, problem.inner)
        begins = np.concatenate([[True], (np.diff(self.rows) != 1) | (np.diff(slices) != 0)])
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(self.rows)) - 1
        first = (lead + slices * cols * problem.inner + places)[starts, None]
        first = (first + np.arange(cols, dtype=np.int64) * problem.inner).reshape(-1)
        width = np.repeat(places[ends] - places[starts] + 1, cols)
        order = np.argsort(first)
        return np.stack([first[order], (first + width)[order]], axis=1)


class _FarHeads(_FarRows):
    """The query heads of a far problem of attention that are computed: whole groups."""

    @classmethod
    def of(
        cls, problem: Problem, rows: Numbers, leads: dict[str, int], only: Held | None
    ) -> "_FarHeads":
        few = replace(problem, rows=len(rows), key_heads=1, layout=Layout.HND)
        arrays = verification_inputs(replace(few, mask=Mask.NONE), only=only)
        if problem.mask is Mask.LENGTHS:  # one of each sequence, whose heads share it
            sequences = rows[:: few.heads] // problem.heads
            short = sequences % (problem.cols + 1)
            lengths = np.where(sequences % 4 == 2, short, problem.cols)
            arrays["lengths"] = lengths.astype(np.int32)
        return cls(problem, rows, few, arrays, rows[:0], leads)

    def elements(self, operand: Operand) -> Numbers:
        return self._first(operand)[:, None] + np.arange(operand.cols, dtype=np.int64)

    def ranges(self, operand: Operand) -> Numbers:
        first = self._first(operand)
        return np.stack([first, first + operand.cols], axis=1)

    def _first(self, operand: Operand) -> Numbers:
        """Return the number of the first element of each row of an array."""
        problem, lead = self.problem, self.lead(operand)
        groups = self.rows[:: problem.of_group] // problem.of_group
        sequences, heads = np.divmod(groups, problem.key_heads or 1)
        if operand.name == "lengths":
            return lead + sequences
        if problem.operator.operands.get(operand.name) is not Extent.CACHE:
            return lead + self.rows * operand.stride
        strides = {name: int(number.value) for name, number in scalars(problem).items()}
        first = sequences * strides["sequence_stride"] + heads * strides["head_stride"]
        keys = np.arange(problem.cols, dtype=np.int64) * strides["key_stride"]
        return np.asarray(lead + (first[:, None] + keys).reshape(-1))


@dataclass(slots=True)
class _FarMemory:
    """Sparse memory with the far rows, and a value for each argument of a launch."""

    far: _FarRows
    memory: GlobalMemory
    targets: tuple[Allocation, ...]
    """The memory of each result."""
    values: dict[str, Argument]

    @classmethod
    def of(cls, far: _FarRows, kernel: EmulatedKernel) -> "_FarMemory":
        problem, memory = far.problem, GlobalMemory()
        values: dict[str, Argument] = dict(numbers_of(problem))
        placed = {o.name: _input(far, o, memory, kernel) for o in inputs(problem)}
        for result in results(problem):
            placed[result.name] = (
                placed["input"]
                if problem.in_place and result.name == "output"
                else _result(far, result, memory, kernel)
            )
        values.update(placed)
        if kernel.scratch_bytes:
            values["scratch"] = _scratch(far, memory, kernel)
        return cls(far, memory, tuple(placed[r.name] for r in results(problem)), values)

    def results(self) -> tuple[Array, ...]:
        """Return each result as rows."""
        return tuple(self.memory.get(target, due) for target, due in self._due())

    def findings(self) -> Iterator[Finding]:
        """Yield findings of unwritten elements of the rows, and of writes outside of the rows."""
        for target, due in self._due():
            yield from check_output(self.memory, target, due, may_stay=self.far.problem.may_stay)
            assert target.windows is not None
            size = target.dtype.itemsize
            numbers, places = target.windows.elements(size)
            written = target.written.view(f"u{size}") != 0
            written[GlobalMemory.places(target, due)] = False
            strays = numbers[written[places]]
            if len(strays):
                message = (
                    f"element {strays[0]} of {target.name} is written, which belongs to no block "
                    "that runs: a wrong index?"
                )
                yield Finding(Kind.OUT_OF_BOUNDS, message, count=len(strays))

    def _due(self) -> Iterator[tuple[Allocation, Numbers]]:
        """Yield the memory of each result, and the numbers of the elements that are due in it."""
        for result, target in zip(results(self.far.problem), self.targets, strict=True):
            yield target, self.far.elements(result)


def _input(
    far: _FarRows, operand: Operand, memory: GlobalMemory, kernel: EmulatedKernel
) -> Allocation:
    """Place the rows of an input, with random numbers beside them where a kernel may load it."""
    problem = far.problem
    values = far.arrays[operand.name]
    if operand.name == "mask":
        lead = far.lead(operand)
        elements = lead + far.mask_numbers[:, None] * problem.cols + np.arange(problem.cols)
        first = lead + np.unique(far.mask_numbers) * problem.cols
        ranges = np.stack([first, first + problem.cols], axis=1)
    else:
        elements, ranges = far.elements(operand), far.ranges(operand)
    is_dense = problem.inner == 1 and problem.input_stride == problem.cols
    if not problem.attends and is_dense and isinstance(operand.dtype, DType):
        slack = NEIGHBOUR_BYTES // operand.dtype.itemsize
        lead = far.lead(operand)
        ranges = np.clip(ranges + np.array([-slack, slack]), lead, lead + operand.count)
    ranges, count = _united(ranges)
    random = np.random.default_rng(count).standard_normal(count).astype(values.dtype)
    written = problem.in_place and operand.name == "input"
    placed = memory.allocate_sparse(
        far.lead(operand) + operand.count,
        ranges,
        random,
        name=operand.name,
        writable=written,
        written_once=written and not kernel.rewrites,
    )
    placed.lead = far.lead(operand) * values.dtype.itemsize
    memory.put(placed, elements, values.reshape(elements.shape))
    return placed


def _result(
    far: _FarRows, result: Operand, memory: GlobalMemory, kernel: EmulatedKernel
) -> Allocation:
    ranges, count = _united(far.ranges(result))
    placed = memory.allocate_sparse(
        far.lead(result) + result.count,
        ranges,
        poisoned((count,), result.dtype.numpy),
        name=result.name,
        initialised=False,
        written_once=result.name != "output" or not kernel.rewrites,
    )
    placed.lead = far.lead(result) * result.dtype.itemsize
    return placed


def _scratch(far: _FarRows, memory: GlobalMemory, kernel: EmulatedKernel) -> Allocation:
    """Place the scratch of the rows: some partial results a row, or for three launches whole rows.

    Three launches store the exponentials of all rows, then a number for each row. The exponentials
    of a row take as many elements as it has columns, or more if rows are unaligned. Of attention
    they store its scores; of two launches the sums of all parts of the keys come first, then a
    maximum and a sum of each.
    """
    problem, rows = far.problem, far.rows
    size = problem.dtype.arithmetic.itemsize
    each = kernel.scratch_bytes // size // problem.rows
    of_whole_rows = len(kernel.launches) == 3
    if problem.attends and not of_whole_rows:
        parts = each // (problem.of_head + 2)
        ranges = np.concatenate(
            [
                problem.rows * before * parts + np.stack([rows, rows + 1], axis=1) * width * parts
                for before, width in ((0, problem.of_head), (problem.of_head, 2))
            ]
        )
    elif problem.attends or not of_whole_rows:
        ranges = np.stack([rows * each, (rows + 1) * each], axis=1)
    else:
        ranges = np.concatenate(
            [
                np.stack([first, first + width], axis=1)
                for pitch in {problem.cols, each - 1}
                for first, width in ((rows * pitch, pitch), (problem.rows * pitch + rows, 1))
            ]
        )
    ranges, count = _united(ranges)
    return memory.allocate_sparse(
        kernel.scratch_bytes // size,
        ranges,
        poisoned((count,), np.dtype(f"f{size}")),
        name="scratch",
        initialised=False,
    )


def _united(ranges: Numbers) -> tuple[Numbers, int]:
    """Return the ranges in ascending order, those that touch united, and their elements."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    begins = np.concatenate([[True], ranges[1:, 0] > ends[:-1]])
    last = np.append(np.flatnonzero(begins)[1:], len(ranges)) - 1
    united = np.stack([ranges[begins, 0], ends[last]], axis=1)
    return united, int(np.diff(united, axis=1).sum())
