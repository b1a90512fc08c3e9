"""The parameters of a config: their known values, those of the space, and their meanings."""

from explorer.model.dtype import DType

Value = str | int | bool

CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm": ("three-pass", "online", "online-branchy", "online-block-max"),
    "reduction": (
        "shuffle",
        "shared-tree",
        "shared-serial",
        "shuffle-first-warp",
        "shuffle-redux",
        "shuffle-redux-first-warp",
    ),
    "cache": ("registers", "shared", "none", "output"),
    "cache_holds": ("exp", "input"),
    "exp": ("expf", "__expf", "exp2f", "ex2.approx", "exp2f-folded", "ex2.approx-folded"),
    "normalise": ("divide", "reciprocal"),
    "load_hint": ("default", "nc", "cs", "no-allocate"),
    "store_hint": ("default", "cs", "cg"),
    "launches": ("one", "three", "two", "two-overlapped"),
    "staging": ("direct", "span", "async", "bulk"),
    "sum": ("plain", "compensated"),
    "exchange": ("barrier", "mbarrier"),
    "row_order": ("ascending", "descending"),
    "arrangement": ("striped", "blocked", "replicated"),
}
"""The values of each parameter that is a word. The templates know these and no others."""

COHERENT_HINTS = ("default", "cs")
"""Values of load_hint whose loads see the writes of others while the kernel runs."""

RANGES: dict[str, tuple[int, int]] = {
    "threads": (1, 1024),
    "threads_per_row": (1, 1024),
    "vector_bytes": (2, 16),
    "unroll": (1, 64),
    "min_blocks": (1, 32),
    "rows_per_thread": (1, 32),
    "persistent": (0, 32),
    "cluster": (1, 16),
    "stages": (1, 16),
}
"""The least and the greatest value of each parameter that is a number. The space has fewer."""

POWERS_OF_TWO = ("vector_bytes", "cluster")
"""Numbers that must be powers of two."""

WARPS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640, 768, 1024)
"""Threads of a block, in whole warps: up to four sizes from each power of two to the next.

With fewer sizes, the best one would leave many threads idle at the last access to a row.
"""

ROW_THREADS = (1, 2, 4, 8, 16, *WARPS)
"""Threads that may share a row."""

MEANING = {
    "algorithm": "three-pass has one pass for the maximum, one for the sum and one that "
    "normalises; online finds maximum and sum in one pass",
    "threads": "threads a block",
    "threads_per_row": "threads that share a row; a block works on threads / "
    "threads_per_row * rows_per_thread rows",
    "vector_bytes": "bytes of one global access; the element's own size is scalar",
    "reduction": "how the threads of a row combine: warp shuffles (then every warp folds what the "
    "warps found, or the first alone does; redux: their maxima in one instruction), or a "
    "shared-memory tree or fold",
    "cache": "where a thread keeps its share of the row between passes: none reads it again; "
    "in the output its exponentials wait to be normalised",
    "cache_holds": "what is kept: the exponentials (in fp32 or fp64) or the input as it came",
    "exp": "the exponential: accurate, fast, of base 2, or the bare instruction; folded: x and the "
    "maximum are scaled by log2(e) in one multiply-add",
    "normalise": "an IEEE division an element, or one reciprocal a row and a multiplication",
    "unroll": "vectors a thread loads before it uses the first, where it loops",
    "load_hint": "cache hint of global loads",
    "store_hint": "cache hint of global stores",
    "min_blocks": "blocks an SM that __launch_bounds__ asks for",
    "static_cols": "cols known at compile time, or a run-time argument",
    "rows_per_thread": "rows that the same threads work on at once, all their loads in flight",
    "launches": "one kernel; or two, of which the first combines parts of rows, and the second all "
    "parts, begun before the first has ended where they overlap; or three, for maxima, "
    "exponentials, and sums and quotients, with a scratch matrix of fp32 or fp64",
    "persistent": "blocks an SM that are launched and stride over the rows; 0: a block for every "
    "tile of them",
    "staging": "rows straight to their threads; or the span of all a block's rows by way of shared "
    "memory, so that accesses are of full width wherever rows start; or async copies of a row, all "
    "in flight at once, into the shared memory that keeps it; or one bulk copy of it, which an "
    "mbarrier counts",
    "sum": "how a thread adds: plain, rounded at each step; or compensated, which keeps beside the "
    "sum what rounding took",
    "cluster": "blocks of a thread-block cluster that share rows, each a part of their elements",
    "exchange": "how a cluster's blocks know that what they found has come: by a barrier of all, "
    "or by an mbarrier in each that counts the bytes of asynchronous stores",
    "row_order": "the rows that the first blocks to run work on: the first, or the last",
    "stages": "rows of a block that strides over them which are in shared memory at once: one is "
    "worked on while bulk copies bring the others",
    "arrangement": "which vectors of a row that nothing keeps are a thread's: striped, one in "
    "threads_per_row; blocked, vectors side by side; replicated, all of them, for every thread",
}
"""A sentence for each parameter of Config, in the order of its fields."""


REFUTED: dict[str, tuple[Value, ...]] = {
    "launches": ("three",),
    "persistent": (1, 2, 4, 8),
    "staging": ("bulk",),
    "stages": (2, 3, 4),
    "arrangement": ("blocked", "replicated"),
}
"""Values that a config or a preset may name and a search does not propose: they were never best.

At 256 MiB on an H200 no block that strides over rows came to more than 93.1 % of copy, with bulk
copies or without, beside 97 to 98 % for blocks of one row (studies/DECISIONS.md); three launches
took 1.47 times as long as one (studies/results/journey.md). The arrangements other than
striped read far apart, or the whole row in each thread. A config with such a value is still
emitted, verified and timed like any other.
"""


def searched(dtype: DType) -> dict[str, tuple[Value, ...]]:
    """Return the values of each parameter that a search proposes for matrices of `dtype`."""
    return {
        name: tuple(value for value in values if value not in REFUTED.get(name, ()))
        for name, values in parameters(dtype).items()
    }


def parameters(dtype: DType) -> dict[str, tuple[Value, ...]]:
    """Return the values of each parameter for matrices of `dtype`, in Config's order."""
    return {
        "algorithm": CHOICES["algorithm"],
        "threads": (1, *WARPS),
        "threads_per_row": ROW_THREADS,
        "vector_bytes": tuple(b for b in (2, 4, 8, 16) if b >= dtype.itemsize),
        "reduction": CHOICES["reduction"],
        "cache": CHOICES["cache"],
        "cache_holds": CHOICES["cache_holds"],
        "exp": CHOICES["exp"],
        "normalise": CHOICES["normalise"],
        "unroll": (1, 2, 4, 8),
        "load_hint": CHOICES["load_hint"],
        "store_hint": CHOICES["store_hint"],
        "min_blocks": (1, 2, 3, 4, 6, 8),
        "static_cols": (True, False),
        "rows_per_thread": (1, 2, 4, 8),
        "launches": CHOICES["launches"],
        "persistent": (0, 1, 2, 4, 8),
        "staging": CHOICES["staging"],
        "sum": CHOICES["sum"],
        "cluster": (1, 2, 4, 8, 16),
        "exchange": CHOICES["exchange"],
        "row_order": CHOICES["row_order"],
        "stages": (1, 2, 3, 4),
        "arrangement": CHOICES["arrangement"],
    }
