"""Planted bugs: what the templates emit, changed in one place, and what must be found then.

Each bug is a substitution in the emitted source, whose pattern must still occur as often as it did
when the bug was written, or a deletion in the PTX. A race does not show in numbers, as threads run
in step here: where one is planted, a race must be reported.

Out of reach are offsets that overflow 32 bits, which need matrices of 2^31 elements, and code that
only loses accuracy within the tolerance.
"""

import re
from dataclasses import dataclass
from functools import partial

from corpus_run import WRONG_NUMBERS

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem

SHARED_RACE = "shared-race"
GLOBAL_RACE = "global-race"
UNINITIALISED = "uninitialised-shared"
NOTHING_THERE = "uninitialised-global"
OUT_OF_BOUNDS = "out-of-bounds"
READ_ONLY = "read-only"
MISALIGNED = "misaligned"
BARRIER = "barrier"
WARP_MASK = "warp-mask"
NEVER_WRITTEN = "never-written"
WRITTEN_TWICE = "written-twice"
DEADLOCK = "deadlock"


def _base(rows, cols, dtype, **config):
    return Problem(rows, cols, DType(dtype)), Config(**config)


INPUT = {"cache_holds": "input"}
SHARED = {"cache": "shared"}
RUN_TIME = {"static_cols": False}
NONE = {"cache": "none", **INPUT, "unroll": 2}
ONE_ROW = {"threads": 64, "threads_per_row": 64}
TWO_ROWS = {"threads": 128, "threads_per_row": 64}
TWO_OF_96 = {"threads": 192, "threads_per_row": 96}
FOUR_WARPS = {"threads": 128, "threads_per_row": 32}
PARTS_OF_A_WARP = {"threads": 64, "threads_per_row": 8}
TREE = {"reduction": "shared-tree"}
SERIAL = {"reduction": "shared-serial"}

BASES = {
    "shuffle": _base(17, 1000, "f32", **ONE_ROW),
    "shuffle, two rows": _base(17, 1000, "f32", **TWO_ROWS),
    "shuffle of three warps": _base(17, 500, "f32", **TWO_OF_96, vector_bytes=4),
    "shuffle in a warp": _base(17, 500, "f16", **FOUR_WARPS, **INPUT, vector_bytes=8),
    "shuffle in part of a warp": _base(17, 100, "f32", **PARTS_OF_A_WARP, normalise="divide"),
    # 23 rows: the last one has a pattern that shows its first element, which is loaded apart there.
    "ragged": _base(23, 1001, "bf16", **ONE_ROW),
    "ragged f32": _base(17, 333, "f32", **TWO_ROWS, **INPUT, vector_bytes=8),
    "tree": _base(17, 512, "f32", **TWO_ROWS, **TREE, exp="expf"),
    "tree of 96": _base(17, 500, "f32", **TWO_OF_96, **TREE, vector_bytes=8),
    "tree in a warp": _base(17, 200, "f16", **PARTS_OF_A_WARP, **TREE, vector_bytes=8),
    "serial": _base(17, 256, "f32", **TWO_ROWS, **SERIAL, vector_bytes=8),
    "serial in a warp": _base(17, 200, "f32", threads=64, threads_per_row=16, **SERIAL, **INPUT),
    "one thread": _base(33, 37, "f16", threads=32, threads_per_row=1, vector_bytes=2),
    "cache of exp": _base(17, 1000, "f32", **TWO_ROWS, **SHARED, **TREE),
    "cache of exp, run-time": _base(17, 1000, "f16", **TWO_ROWS, **SHARED, **RUN_TIME, unroll=2),
    "cache of input": _base(17, 1000, "bf16", **ONE_ROW, **SHARED, **INPUT, **SERIAL),
    "cache in a warp": _base(17, 500, "f32", **FOUR_WARPS, **SHARED, **INPUT),
    "cache, ragged": _base(17, 1003, "f32", **TWO_ROWS, **SHARED, **INPUT, exp="__expf"),
    "cache, ragged, run-time": _base(17, 1001, "f16", **TWO_ROWS, **SHARED, **RUN_TIME),
    "no cache": _base(17, 1000, "f32", **TWO_ROWS, **NONE, **RUN_TIME),
    "no cache, ragged": _base(17, 1001, "bf16", **FOUR_WARPS, **NONE, **RUN_TIME),
    "online": _base(17, 1000, "f32", **TWO_ROWS, **NONE, algorithm="online"),
    "online in registers": _base(17, 500, "f16", **ONE_ROW, **INPUT, algorithm="online"),
    "online tree": _base(17, 512, "f32", **TWO_ROWS, **NONE, **TREE, algorithm="online"),
    "online in cache": _base(
        17, 500, "f32", **TWO_ROWS, **SHARED, **INPUT, **SERIAL, algorithm="online", exp="__expf"
    ),
    "branchy": _base(17, 1001, "f32", **FOUR_WARPS, **NONE, **RUN_TIME, algorithm="online-branchy"),
    "branchy in cache": _base(
        17,
        1000,
        "f16",
        **TWO_OF_96,
        **SHARED,
        **INPUT,
        **RUN_TIME,
        unroll=2,
        algorithm="online-branchy",
    ),
    "block-max": _base(17, 1000, "f32", **TWO_ROWS, algorithm="online-block-max", exp="ex2.approx"),
    "block-max of input": _base(23, 1001, "bf16", **ONE_ROW, **INPUT, algorithm="online-block-max"),
    "block-max in cache": _base(
        17, 1000, "f16", **TWO_ROWS, **SHARED, **INPUT, **SERIAL, algorithm="online-block-max"
    ),
    "block-max, no cache": _base(
        17, 777, "f32", **TWO_OF_96, **NONE, **RUN_TIME, **TREE, algorithm="online-block-max"
    ),
}
"""Correct variants of every family: what the bugs are planted in."""


@dataclass(frozen=True)
class Bug:
    """`times` occurrences of `old` become `new`; all kinds in `shows` must be reported."""

    name: str
    base: str
    old: str
    new: str
    shows: frozenset[str]
    times: int = 1
    only: int | None = None
    """Which of the occurrences alone is changed, from 0."""
    lead: int = 0
    """Elements before the output, which is out of step with the input then."""

    def plant(self, source):
        """The source with the bug; fails where the pattern is not there as it was."""
        count = source.count(self.old)
        assert count == self.times, f"{self.old!r} occurs {count} times, not {self.times}"
        if self.only is None:
            return source.replace(self.old, self.new)
        pieces = source.split(self.old)
        head, tail = pieces[: self.only + 1], pieces[self.only + 1 :]
        return self.old.join(head) + self.new + self.old.join(tail)


BUGS: list[Bug] = []


def bug(shows, name, base, old, new, **more):
    """Add a bug that shows as one finding or as each of several."""
    shows = frozenset([shows] if isinstance(shows, str) else shows)
    BUGS.append(Bug(name, base, old, new, shows, **more))


barrier = partial(bug, BARRIER)
global_race = partial(bug, GLOBAL_RACE)
deadlock = partial(bug, DEADLOCK)
misaligned = partial(bug, MISALIGNED)
never_written = partial(bug, NEVER_WRITTEN)
nothing_there = partial(bug, NOTHING_THERE)
out_of_bounds = partial(bug, OUT_OF_BOUNDS)
read_only = partial(bug, READ_ONLY)
shared_race = partial(bug, SHARED_RACE)
uninitialised = partial(bug, UNINITIALISED)
warp_mask = partial(bug, WARP_MASK)
written_twice = partial(bug, WRITTEN_TWICE)
wrong_numbers = partial(bug, WRONG_NUMBERS)


# ---------------------------------------------------------------- barriers

BLOCK = "  __syncthreads();\n"
for each in ("shuffle", "shuffle, two rows", "online", "block-max", "cache of exp, run-time"):
    shared_race(f"no block barrier: {each}", each, BLOCK, "")
    shared_race(f"a warp barrier for a block's: {each}", each, BLOCK, "  __syncwarp();\n")
for each in ("tree", "serial", "cache of exp", "online tree", "block-max in cache", "tree of 96"):
    shared_race(
        f"the row's barrier is a warp's: {each}",
        each,
        "synchronise_row() { __syncthreads(); }",
        "synchronise_row() { __syncwarp(); }",
    )


def in_scratch(base, text):
    """A text that names a row's scratch, as it stands where a block has one row."""
    _, config = BASES[base]
    return text if config.rows_per_block > 1 else text.replace("[row]", "")


PUT_OWN = "scratch[row][thread_in_row] = value;"
AFTER_PUT = PUT_OWN + "\n  synchronise_row();"
FOLD = "\n    }\n    synchronise_row();"
for each in ("tree", "tree in a warp", "online tree", "block-max, no cache"):
    shared_race(f"no barrier before the tree: {each}", each, AFTER_PUT, PUT_OWN)
    shared_race(f"no barrier in the tree: {each}", each, FOLD, "\n    }")
FOLDED = "    scratch[row][0] = value;\n  }\n  synchronise_row();"
for each in ("serial", "serial in a warp", "online in cache", "cache of input"):
    put, folded = in_scratch(each, AFTER_PUT), in_scratch(each, FOLDED)
    own = in_scratch(each, PUT_OWN)
    shared_race(f"no barrier before the fold: {each}", each, put, own)
    shared_race(f"no barrier after the fold: {each}", each, folded, folded[:-20])
barrier(
    "a barrier for half of the block",
    "shuffle",
    BLOCK,
    "  if (threadIdx.x < 32) __syncthreads();\n",
)
barrier(
    "a barrier in a branch within a warp", "shuffle", BLOCK, "  if (lane < 16) __syncthreads();\n"
)
barrier(
    "different barriers of two branches",
    "tree",
    AFTER_PUT,
    "scratch[row][thread_in_row] = value;\n"
    '  if (thread_in_row < 32) asm volatile("bar.sync 0;" ::: "memory"); else synchronise_row();',
)
shared_race(
    "a warp barrier of half its lanes",
    "tree in a warp",
    "synchronise_row() { __syncwarp(); }",
    "synchronise_row() { if (threadIdx.x % 2 == 0) __syncwarp(); }",
)
IS_ROW = "  const bool is_row = index < rows;\n"
for each in ("shuffle, two rows", "tree", "cache of exp", "block-max", "no cache"):
    barrier(
        f"return before the barriers: {each}", each, IS_ROW, IS_ROW + "  if (!is_row) return;\n"
    )

barrier(
    "one more barrier for one warp",
    "shuffle",
    "  // Normalise and store.\n",
    "  if (thread_in_row < 32) __syncthreads();\n",
)
shared_race(
    "a named barrier of too few threads",
    "shuffle",
    BLOCK,
    '  asm volatile("bar.sync 1, 32;" ::: "memory");\n',
)
shared_race(
    "a named barrier for each warp",
    "tree",
    "synchronise_row() { __syncthreads(); }",
    "synchronise_row() {\n"
    '  asm volatile("bar.sync %0, 32;" ::"r"(threadIdx.x / 32 + 1) : "memory");\n}',
)
warp_mask(
    "a warp barrier without the caller",
    "tree in a warp",
    "__syncwarp();",
    "__syncwarp(0xfffffffeu);",
)
shared_race(
    "warp barriers of a row's first lanes",
    "serial in a warp",
    "__syncwarp();",
    "if (threadIdx.x % 16 < 8) __syncwarp(0x00ff00ffu);",
)
for each, size in (("tree in a warp", "tree"), ("serial in a warp", "fold")):
    shared_race(
        f"volatile for a warp barrier: {size}",
        each,
        "synchronise_row() { __syncwarp(); }",
        'synchronise_row() { asm volatile("" ::: "memory"); }',
    )
barrier(
    "a barrier in a loop of unequal length",
    "cache of exp",
    "    sum += part;\n",
    "    sum += part;\n    __syncthreads();\n",
)
barrier(
    "a barrier passed by early",
    "online tree",
    "    synchronise_row();\n  }\n",
    "    if (thread_in_row >= 32 && half < 16) continue;\n    synchronise_row();\n  }\n",
)
shared_race(
    "the barrier comes before the value",
    "shuffle",
    "  if (lane == 0) scratch[warp] = value;\n" + BLOCK,
    BLOCK + "  if (lane == 0) scratch[warp] = value;\n",
)
ALONE = "  const float inverse_sum = 1.0f / sum;"
SCALE = "  const float inverse_sum = 1.0f / reduce_row(sum, Sum{});"
shared_race(
    "a thread's value for all, without a barrier",
    "one thread",
    ALONE,
    "  __shared__ float common;\n  if (threadIdx.x == 3) common = sum;\n"
    "  const float inverse_sum = 1.0f / (sum + 0.0f * common);",
)
shared_race(
    "a shuffle for a barrier",
    "shuffle in a warp",
    SCALE,
    "  __shared__ volatile float common[4];\n"
    "  if (thread_in_row == 0) common[threadIdx.x / 32] = sum;\n"
    "  const float total = reduce_row(sum, Sum{});\n"
    "  const float inverse_sum = 1.0f / (total + 0.0f * common[threadIdx.x / 32]);",
)

# ---------------------------------------------------------------- scratch

TEMPLATE = "template <typename Combine>\n__device__ __forceinline__ ValueOf<Combine> reduce_row("
HEAD = "ValueOf<Combine> value, Combine combine) {\n  __shared__ ValueOf<Combine> scratch"
ONE_SCRATCH = "ValueOf<Combine> value, Combine combine) {\n  auto& scratch = common_scratch; //"
for each, size in (
    ("shuffle", "kWarpsPerRow"),
    ("shuffle of three warps", "kWarpsPerRow"),
    ("tree", "kThreadsPerRow"),
    ("serial", "kThreadsPerRow"),
    ("tree in a warp", "kThreadsPerRow"),
    ("cache of input", "kThreadsPerRow"),
):
    of_rows = "[kRowsPerBlock]" if BASES[each][1].rows_per_block > 1 else ""
    shared_race(
        f"both reductions in one scratch: {each}",
        each,
        TEMPLATE + HEAD,
        f"__shared__ float common_scratch{of_rows}[{size}];\n" + TEMPLATE + ONE_SCRATCH,
    )
bug(
    (SHARED_RACE, WRONG_NUMBERS),
    "scratch without the row",
    "shuffle, two rows",
    "scratch[row]",
    "scratch[0]",
    times=2,
)
shared_race("scratch without the row: tree", "tree", "scratch[row]", "scratch[0]", times=5)
shared_race("scratch without the row: serial", "serial", "[row]", "[0]", times=4)
shared_race("scratch without the row: online in cache", "online in cache", "[row]", "[0]", times=4)
PUT = "if (lane == 0) scratch[row][warp] = value;"
PUT_ALONE = in_scratch("shuffle", PUT)
uninitialised(
    "one warp only leaves its value", "shuffle", PUT_ALONE, PUT_ALONE.replace("lane", "threadIdx.x")
)
uninitialised("no warp leaves its value", "block-max", PUT, "")
shared_race("all warps use one slot", "online", PUT, PUT.replace("[warp]", "[0]"))
out_of_bounds("the next slot", "shuffle", PUT_ALONE, PUT_ALONE.replace("[warp]", "[warp + 1]"))
shared_race("the slot of a lane", "shuffle of three warps", PUT, PUT.replace("[warp]", "[lane]"))
wrong_numbers(
    "every lane its own sum: the wrong one writes",
    "shuffle",
    "value = reduce_lanes<32>(value, combine);\n  if (lane == 0)",
    "const auto own = reduce_lanes<32>(value, combine);\n  if (lane == 0)",
)
SOURCE = "source < kWarpsPerRow ? scratch[row][source] : Combine::identity()"
out_of_bounds(
    "reads a slot that no warp has", "shuffle of three warps", SOURCE, "scratch[row][source]"
)
uninitialised(
    "folds before the barrier",
    "tree",
    "scratch[row][thread_in_row] = value;\n  synchronise_row();",
    "scratch[row][thread_in_row] = combine(value, scratch[row][thread_in_row ^ 32]);\n"
    "  synchronise_row();",
)
shared_race(
    "tree folds around",
    "tree",
    "    if (thread_in_row + half < count) {\n"
    "      scratch[row][thread_in_row] =\n"
    "          combine(scratch[row][thread_in_row], scratch[row][thread_in_row + half]);",
    "    {\n      const int other = (thread_in_row + half) % kThreadsPerRow;\n"
    "      value = combine(scratch[row][thread_in_row], scratch[row][other]);\n"
    "      scratch[row][thread_in_row] = value;",
)
wrong_numbers(
    "another row's result", "shuffle, two rows", "? scratch[row][source]", "? scratch[0][source]"
)
shared_race(
    "tree folds past its end",
    "tree",
    "thread_in_row + half < count",
    "thread_in_row + half <= count",
)
shared_race("tree folds everywhere", "tree of 96", "if (thread_in_row + half < count) ", "")
wrong_numbers("tree drops the odd one", "tree of 96", "(count + 1) / 2", "count / 2", times=2)
wrong_numbers("tree stops early", "tree", "count > 1;", "count > 2;")
FOLD_LOOP = "for (int i = 1; i < kThreadsPerRow; ++i)"
wrong_numbers("fold skips one", "serial", FOLD_LOOP, FOLD_LOOP.replace("= 1", "= 2"))
out_of_bounds("fold goes one too far", "cache of input", FOLD_LOOP, FOLD_LOOP.replace("<", "<="))
shared_race("fold goes into the next row", "serial", FOLD_LOOP, FOLD_LOOP.replace("<", "<="))
shared_race(
    "fold by two threads", "serial", "if (thread_in_row == 0) {", "if (thread_in_row < 2) {"
)
wrong_numbers("fold is not shared", "serial", "return scratch[row][0];", "return value;")

shared_race(
    "every warp folds and writes the same",
    "serial",
    "if (thread_in_row == 0) {",
    "if (thread_in_row % 32 == 0) {\n    value = scratch[row][0];",
)
shared_race(
    "every warp stores the same sum",
    "shuffle",
    "  return reduce_lanes<kLanes>(value, combine);",
    "  value = reduce_lanes<kLanes>(value, combine);\n"
    "  if (lane == 0) scratch[0] = value;\n  return value;",
)

# ---------------------------------------------------------------- shuffles

WHOLE = "kWholeWarp = 0xffffffffu"
warp_mask("mask of half a warp", "shuffle", WHOLE, WHOLE.replace("ffffffff", "0000ffff"))
warp_mask("mask without lane 0", "shuffle in a warp", WHOLE, WHOLE.replace("ffu", "feu"))
warp_mask(
    "mask of the row's first lanes",
    "shuffle in part of a warp",
    WHOLE,
    WHOLE.replace("ffffffff", "ff"),
)
SHUFFLE = "__shfl_xor_sync(kWholeWarp, value, lanes)"
warp_mask(
    "shuffle in a branch",
    "shuffle",
    f"return {SHUFFLE};",
    f"if (threadIdx.x % 32 < 16) return {SHUFFLE};\n  return value;",
)
wrong_numbers("shuffle down for xor", "shuffle", "__shfl_xor_sync", "__shfl_down_sync")
wrong_numbers(
    "shuffle up for xor", "online in registers", "__shfl_xor_sync", "__shfl_up_sync", times=2
)
warp_mask(
    "vote in a branch",
    "branchy",
    "    state.sum *= exponential(state.maximum, x);",
    "    if (__any_sync(0xffffffffu, true)) state.sum *= exponential(state.maximum, x);",
)
wrong_numbers("lane of the distance", "shuffle in a warp", "__shfl_xor_sync", "__shfl_sync")
wrong_numbers(
    "shuffle within half a warp", "shuffle", SHUFFLE, SHUFFLE.replace("lanes)", "lanes, 16)")
)
LANES = "for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)"
for each, new in (
    ("shuffle", LANES.replace("kLanes / 2", "kLanes / 4")),
    ("shuffle in a warp", LANES.replace("> 0", "> 1")),
    ("online", LANES.replace("/= 2", "/= 4")),
    ("block-max", LANES.replace("kLanes / 2", "kLanes")),
    ("shuffle in part of a warp", LANES.replace("kLanes / 2", "kLanes")),
):
    wrong_numbers(f"xor distances {new[5:-1]}: {each}", each, LANES, new)
wrong_numbers(
    "half a warp's lanes",
    "branchy",
    "reduce_lanes<kThreadsPerRow>",
    "reduce_lanes<kThreadsPerRow / 2>",
)
wrong_numbers(
    "a whole warp's lanes for part of one",
    "shuffle in part of a warp",
    "reduce_lanes<kThreadsPerRow>",
    "reduce_lanes<32>",
)
wrong_numbers(
    "half of the warps",
    "shuffle, two rows",
    "return reduce_lanes<kLanes>",
    "return reduce_lanes<kLanes / 2>",
)
wrong_numbers(
    "only the first lanes fold",
    "online",
    "const int source = lane % kLanes;",
    "const int source = lane;",
)

# ---------------------------------------------------------------- ends of rows

LOAD = "if (k < kRowVectors) {\n    as_word"
STORE = "if (k >= kRowVectors) return;"
LOAD_RUN_TIME = LOAD.replace("kRowVectors", "row.vectors")
STORE_RUN_TIME = "if (k < row.vectors) {\n    Vector"
for each, load, store in (
    ("shuffle", LOAD, STORE),
    ("online", LOAD, STORE),
    ("no cache", LOAD_RUN_TIME, STORE_RUN_TIME),
    ("branchy in cache", LOAD_RUN_TIME, STORE_RUN_TIME),
):
    less, more = load.replace(") {", " - 1) {"), load.replace("<", "<=")
    wrong_numbers(f"last vector not loaded: {each}", each, load, less)
    out_of_bounds(f"a vector past the row loaded: {each}", each, load, more)
    less = store.replace(") return", " - 1) return").replace(") {", " - 1) {")
    more = store.replace(">=", ">").replace(" < ", " <= ")
    never_written(f"last vector not stored: {each}", each, store, less)
    if each != "branchy in cache":  # which steps by single vectors there, never past the row
        written_twice(f"a vector past the row stored: {each}", each, store, more)
wrong_numbers("first vector not loaded", "shuffle", LOAD, LOAD.replace("k <", "k && k <"))
never_written("first vector not stored", "block-max", STORE, STORE.replace("k >=", "!k || k >="))
out_of_bounds("loads without an end", "shuffle", LOAD, LOAD.replace("k < kRowVectors", "k >= 0"))
HIDE_OTHERS = ("ragged", "block-max of input")
IN_ROW = "in_row = place >= row.begin && place < row.end;"
PUT_IN_ROW = "if (place >= row.begin && place < row.end) row.output"
for each in ("ragged", "cache, ragged", "no cache, ragged", "branchy", "block-max of input"):
    for old, what, fewer in (
        (IN_ROW, "loaded", WRONG_NUMBERS),
        (PUT_IN_ROW, "stored", NEVER_WRITTEN),
    ):
        beyond = OUT_OF_BOUNDS if what == "loaded" else WRITTEN_TWICE
        for place, change, to, shows in (
            ("last element not", "row.end", "row.end - 1", fewer),
            ("element after the row", "< row.end", "<= row.end", beyond),
            ("first element not", ">= row.begin", "> row.begin", fewer),
            (
                "element before the row",
                ">= row.begin",
                ">= row.begin - 1",
                WRONG_NUMBERS if what == "loaded" else WRITTEN_TWICE,
            ),
        ):
            if each in HIDE_OTHERS and place == "element before the row" and what == "loaded":
                continue  # what is loaded of a neighbour is hidden
            bug(shows, f"{place} {what}: {each}", each, old, old.replace(change, to))
LOW = "low = place >= row.begin && place < row.end"
HIGH = "high = place + 1 >= row.begin && place + 1 < row.end"
for each in HIDE_OTHERS:
    for which, old in (("even", LOW), ("odd", HIGH)):
        for place, change, to in (
            ("before", ">= row.begin", ">= row.begin - 1"),
            ("first of", ">= row.begin", "> row.begin"),
            ("last of", "< row.end", "< row.end - 1"),
            ("after", "< row.end", "<= row.end"),
        ):
            name = f"{which} element {place} the row: {each}"
            wrong_numbers(name, each, old, old.replace(change, to))
INSIDE = "return k * kWidth >= row.begin && (k + 1) * kWidth <= row.end;"
bug(
    (WRITTEN_TWICE, WRONG_NUMBERS),
    "first vector taken whole",
    "ragged",
    INSIDE,
    "return (k + 1) * kWidth <= row.end;",
)
bug(
    (OUT_OF_BOUNDS, WRITTEN_TWICE),
    "last vector taken whole",
    "branchy",
    INSIDE,
    "return k * kWidth >= row.begin && k * kWidth <= row.end;",
)
written_twice("slot 0 always inside", "ragged", "slot > 0 && (slot", "(slot")
out_of_bounds(
    "last slot always inside",
    "ragged f32",
    "(slot + 1) * kThreadsPerRow * kWidth <= kCols",
    "slot * kThreadsPerRow * kWidth <= kCols",
)
misaligned(
    "rows taken as aligned",
    "ragged",
    "return {input - begin, output - begin, begin, begin + kCols, in_step, between};",
    "return {input, output, 0, kCols, in_step, between};",
)
misaligned(
    "rows taken as aligned, run-time",
    "no cache, ragged",
    "const int begin = place_in_vector(input);",
    "const int begin = 0;",
)
misaligned("only the input starts in the vector", "ragged f32", "output - begin", "output")
misaligned(
    "output taken to be in step",
    "ragged",
    "in_step = place_in_vector(output) == begin;",
    "in_step = true;",
    lead=1,
)
never_written(
    "one vector too few in a span",
    "cache, ragged, run-time",
    "(end + kWidth - 1) / kWidth}",
    "end / kWidth}",
)
never_written(
    "spans not covered in the worst case",
    "cache, ragged",
    "kRowVectors = (kCols + 2 * (kWidth - 1)) / kWidth",
    "kRowVectors = (kCols + kWidth - 1) / kWidth",
)
misaligned(
    "vectors one element off",
    "shuffle",
    "reinterpret_cast<Word*>(output)[k]",
    "reinterpret_cast<Word*>(output + 1)[k]",
)
out_of_bounds("one vector too many", "no cache", "cols / kWidth}", "cols / kWidth + 1}")
never_written("one vector too few", "no cache", "cols / kWidth}", "cols / kWidth - 1}")

out_of_bounds(
    "the row after loaded ahead",
    "shuffle",
    "  output += index * kCols;\n",
    "  output += index * kCols;\n  float next;\n"
    '  asm volatile("ld.global.f32 %0, [%1];" : "=f"(next) : "l"(input + kCols));\n',
)
written_twice(
    "last element stored again, the same",
    "ragged",
    PUT_IN_ROW + "[place] = vector.elements[i];",
    PUT_IN_ROW + "[place] = vector.elements[i];\n      if (place == row.end - 1)\n"
    '        asm volatile("st.global.u16 [%0], %1;" ::"l"(row.output + place), '
    '"h"(__bfloat16_as_ushort(vector.elements[i])) : "memory");',
)

# ---------------------------------------------------------------- rows and shares

out_of_bounds("rows past the last one", "shuffle, two rows", "index < rows;", "index <= rows;")
never_written("the last row left out", "tree", "index < rows;", "index < rows - 1;")
out_of_bounds("reads past the last row", "cache of exp", "is_row ? index : rows - 1", "index")
GUARD = "  if (!is_row) return;\n"
for each in ("shuffle, two rows", "serial", "branchy", "block-max in cache"):
    written_twice(f"threads of no row store: {each}", each, GUARD, "")
MINE = "first_row + threadIdx.x / kThreadsPerRow;"
written_twice("all rows of a block are the first", "tree", MINE, "first_row;")
written_twice(
    "blocks overlap by rows",
    "shuffle in a warp",
    "(blockIdx.x) * kRowsPerBlock",
    "(blockIdx.x) * (kRowsPerBlock - 1)",
)
OFFSETS = "  input += index * kCols;\n  output += index * kCols;\n"
wrong_numbers(
    "input rows too close",
    "shuffle",
    OFFSETS,
    OFFSETS.replace("input += index * kCols", "input += index * (kCols - kWidth)"),
)
out_of_bounds(
    "input rows too far apart",
    "shuffle",
    OFFSETS,
    OFFSETS.replace("input += index * kCols", "input += index * (kCols + kWidth)"),
)
bug(
    (WRITTEN_TWICE, NEVER_WRITTEN),
    "output rows too close",
    "block-max",
    OFFSETS.replace("index", "loaded_row"),
    "  input += loaded_row * kCols;\n  output += loaded_row * (kCols - kWidth);\n",
)
never_written(
    "lanes numbered in the block",
    "tree",
    "const int thread_in_row = threadIdx.x % kThreadsPerRow;\n  const long long",
    "const int thread_in_row = threadIdx.x;\n  const long long",
)
LOOP = "for (int first = thread_in_row; first < vectors; first += kUnroll * kThreadsPerRow) {"
bug(
    (WRITTEN_TWICE, WRONG_NUMBERS),
    "steps without the unrolling",
    "no cache",
    LOOP,
    LOOP.replace("kUnroll * ", ""),
    times=3,
)
never_written(
    "steps twice as long", "online", LOOP, LOOP.replace("kUnroll", "2 * kUnroll"), times=2
)
wrong_numbers(
    "sum leaves out a share",
    "no cache",
    LOOP,
    LOOP.replace("= thread_in_row", "= thread_in_row + kThreadsPerRow"),
    times=3,
    only=1,
)
deadlock("a pass that never ends", "no cache", LOOP, LOOP.replace("+= kUnroll", "+= 0"), times=3)
bug(
    (WRITTEN_TWICE, NEVER_WRITTEN),
    "every vector stored by two threads",
    "shuffle",
    "store_vector(output, slot * kThreadsPerRow + thread_in_row, y);",
    "store_vector(output, slot * kThreadsPerRow + thread_in_row / 2, y);",
)
written_twice(
    "one vector stored again",
    "no cache",
    "store_vector(row, k, x);\n    }\n  }\n",
    "store_vector(row, k, x);\n    }\n  }\n  float zero[kWidth] = {};\n"
    "  if (thread_in_row == 5) store_vector(row, 0, zero);\n",
)
never_written("no store", "shuffle", "  reinterpret_cast<Word*>(output)[k] = as_word(vector);", "")
read_only(
    "the input is written",
    "shuffle",
    "store_vector(output, slot",
    "store_vector(const_cast<Element*>(input), slot",
)
out_of_bounds(
    "written beside the output",
    "tree",
    "  output += loaded_row",
    "  output[rows * kCols] = 1.0f;\n  output += loaded_row",
)

global_race(
    "another thread's output read",
    "no cache",
    "store_vector(row, k, x);\n    }\n  }\n",
    "store_vector(row, k, x);\n    }\n  }\n"
    "  if (row.output[cols - 1 - thread_in_row] > 2.0f) row.output[thread_in_row] = 2.0f;\n",
)
bug(
    (NOTHING_THERE, GLOBAL_RACE),
    "output of another block read",
    "shuffle",
    "  // Normalise and store.\n",
    "  if (output[kCols * (gridDim.x - 1)] == 7.0f) return;\n",
)

# ---------------------------------------------------------------- cache in shared memory

CACHED = "if (k < vectors) cache[k] = loaded[u];"
uninitialised("nothing put into the cache", "cache of input", CACHED, "")
uninitialised("nothing put into the cache: online", "online in cache", CACHED, "")
out_of_bounds(
    "cache written past its end",
    "branchy in cache",
    CACHED,
    CACHED.replace("if (k < vectors) ", ""),
)
uninitialised(
    "first vector not cached", "branchy in cache", CACHED, CACHED.replace("k <", "k > 0 && k <")
)
out_of_bounds("cache one off", "cache of input", CACHED, CACHED.replace("[k]", "[k + 1]"))
AGAIN = "to_floats(cache[k], x);"
OTHERS = "to_floats(cache[vectors - 1 - k], x);"
shared_race("another thread's cache", "cache in a warp", AGAIN, OTHERS, times=2)
wrong_numbers("another thread's cache, after a barrier", "online in cache", AGAIN, OTHERS)
for each in ("cache of exp", "online in cache", "cache, ragged"):
    shared_race(f"rows share a cache: {each}", each, "row_in_block * kStride", "0")
shared_race(
    "cache stride too small",
    "cache, ragged, run-time",
    "stride = (cols + 2 * (kWidth - 1)) / kWidth",
    "stride = cols / kWidth",
)
shared_race(
    "cache stride too small: aligned",
    "cache of exp",
    "kStride = kRowVectors",
    "kStride = kRowVectors - 1",
)
out_of_bounds(
    "cache stride too large", "cache of exp", "kStride = kRowVectors", "kStride = kRowVectors + 1"
)
out_of_bounds(
    "cache begins a row late",
    "cache, ragged",
    "row_in_block * kStride",
    "(row_in_block + 1) * kStride",
)
uninitialised(
    "last of four not cached",
    "cache, ragged",
    CACHED,
    "if (k < vectors) {\n"
    "        for (int i = 0; i < kWidth - 1; ++i) cache[k].elements[i] = loaded[u].elements[i];\n"
    "      }",
)
misaligned("cache off a vector boundary", "cache of input", "*>(shared)", "*>(shared + 4)")
wrong_numbers(
    "exponentials not put back",
    "cache of exp",
    "      part += x[i];\n    }\n#pragma unroll\n"
    "    for (int i = 0; i < kWidth; ++i) cache[k].elements[i] = x[i];\n",
    "      part += x[i];\n    }\n",
)
nothing_there(
    "output read for the cache",
    "cache of input",
    "to_floats(cache[k], x);",
    "to_floats(reinterpret_cast<const Vector*>(output)[k], x);",
    times=2,
    only=0,
)

# ---------------------------------------------------------------- numbers

START = "float maximum = -infinity();"
wrong_numbers("maximum starts at 0", "shuffle", START, "float maximum = 0.0f;")
wrong_numbers(
    "maximum starts at FLT_MIN", "no cache, ragged", START, "float maximum = 1.17549435e-38f;"
)
wrong_numbers(
    "identity of max is 0",
    "shuffle of three warps",
    "identity() { return -infinity(); }",
    "identity() { return 0.0f; }",
)
wrong_numbers("sum starts at 1", "shuffle", "float sum = 0.0f;", "float sum = 1.0f;")
wrong_numbers(
    "identity of sum is 1",
    "shuffle of three warps",
    "identity() { return 0.0f; }",
    "identity() { return 1.0f; }",
)
LOWEST = "{__int_as_float(0xff7fffff), 0.0f}"
for each in ("online", "branchy", "block-max", "block-max of input"):
    wrong_numbers(f"online starts at -inf: {each}", each, LOWEST, "{-infinity(), 0.0f}")
wrong_numbers("online starts at 0", "online tree", LOWEST, "{0.0f, 0.0f}")
wrong_numbers("padding of 0", "shuffle", "elements[i] = -infinity()", "elements[i] = 0.0f")
wrong_numbers("ragged padding of 0", "ragged", "kHidden = 0xff80ff80u", "kHidden = 0u")
wrong_numbers("stale maximum", "shuffle", "maximum = fmaxf(maximum, x[i]);", "maximum = x[i];")
wrong_numbers("missing accumulate", "shuffle", "sum += x[i];", "sum = x[i];")
wrong_numbers("missing accumulate of a part", "cache of exp", "sum += part;", "sum = part;")
wrong_numbers(
    "lost rescale: block-max",
    "block-max in cache",
    "state.sum * exponential(state.maximum, reference) + sum",
    "state.sum + sum",
)
wrong_numbers(
    "lost rescale: online",
    "online in registers",
    "state.sum * exponential(state.maximum, reference) +",
    "state.sum +",
)
wrong_numbers(
    "lost rescale: branchy", "branchy", "    state.sum *= exponential(state.maximum, x);\n", ""
)
wrong_numbers("lost rescale: merge", "online", "b.sum * exponential(b.maximum, reference)", "b.sum")
wrong_numbers(
    "lost rescale: exponentials",
    "block-max",
    "x[slot * kWidth + i] * (correction * inverse_sum)",
    "x[slot * kWidth + i] * inverse_sum",
)
wrong_numbers(
    "rescale the wrong way",
    "online",
    "exponential(b.maximum, reference)",
    "exponential(reference, b.maximum)",
)
wrong_numbers(
    "merge keeps one maximum", "branchy in cache", "fmaxf(a.maximum, b.maximum)", "a.maximum"
)
wrong_numbers("maximum does not move", "branchy", "    state.maximum = x;\n", "")
wrong_numbers("not normalised", "cache, ragged", "reference) * inverse_sum;", "reference);")
wrong_numbers("a little off", "tree", "+ i] * inverse_sum;", "+ i] * inverse_sum * 1.00001f;")
wrong_numbers(
    "maximum not subtracted", "online in cache", "return __expf(x - maximum);", "return __expf(x);"
)
wrong_numbers("log2(e) of five digits", "shuffle", "1.44269504f", "1.4427f")
wrong_numbers(
    "sum kept in 16 bits",
    "one thread",
    "sum += x[i];",
    "sum = __half2float(__float2half_rn(sum + x[i]));",
)
wrong_numbers(
    "NaN made zero",
    "shuffle",
    "x[slot * kWidth + i] * inverse_sum;",
    "fmaxf(x[slot * kWidth + i] * inverse_sum, 0.0f);",
)
wrong_numbers(
    "NaN left out of the sum",
    "no cache",
    "exp2f((x - maximum) * kLog2E)",
    "exp2f(fmaxf((x - maximum) * kLog2E, -200.0f))",
)
wrong_numbers(
    "halves of a pair swapped on load",
    "shuffle in a warp",
    "x[2 * i] = pair.x;\n    x[2 * i + 1] = pair.y;",
    "x[2 * i] = pair.y;\n    x[2 * i + 1] = pair.x;",
)
wrong_numbers(
    "halves of a pair swapped on store",
    "ragged",
    "(x[2 * i], x[2 * i + 1])",
    "(x[2 * i + 1], x[2 * i])",
)
wrong_numbers(
    "one half of a pair for both",
    "cache of exp, run-time",
    "x[2 * i + 1] = pair.y;",
    "x[2 * i + 1] = pair.x;",
)
wrong_numbers(
    "bits of the other 16-bit type",
    "one thread",
    "__half2float(vector.elements[0])",
    "__int_as_float(__half_as_ushort(vector.elements[0]) << 16)",
)

# ---------------------------------------------------------------- barriers, each in turn

EACH_BARRIER = (
    "shuffle, two rows",
    "tree",
    "tree in a warp",
    "serial",
    "serial in a warp",
    "online tree",
    "block-max in cache",
)
"""Bases in whose PTX every barrier is deleted, one at a time: each must leave a race."""

_BARRIER = re.compile(r"^\s*(bar\.sync|bar\.warp\.sync|barrier\.sync)\b.*\n", re.MULTILINE)


def without_barrier(ptx, number):
    """The PTX without its barrier `number`; None if it has fewer."""
    found = list(_BARRIER.finditer(ptx))
    if number >= len(found):
        return None
    return ptx[: found[number].start()] + ptx[found[number].end() :]
