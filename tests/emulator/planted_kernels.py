"""Whole kernels made wrong in one place, by what it takes to notice: judged as a user's file is.

Where corpus.py plants what one small launch shows, races and bounds above all, these are mistakes
of arithmetic, arguments, sizes and launches: whether they show depends on the inputs, the blocks
and the orders of execution that a verification tries.
"""

from dataclasses import dataclass, replace
from functools import partial

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op


@dataclass(frozen=True)
class Plant:
    """A kernel, and the text of it that is replaced, each as often as it occurs."""

    kind: str
    """What it takes to notice."""
    name: str
    problem: Problem
    config: Config
    changes: tuple[tuple[str, str], ...]

    def planted(self, source):
        """The source made wrong; asserts that there is what is changed."""
        for right, wrong in self.changes:
            assert right in source, f"{self}: the emitted code has no {right!r}"
            source = source.replace(right, wrong)
        return source

    def __str__(self):
        return f"{self.kind}: {self.name}"


PLANTS: list[Plant] = []


def plant(kind, name, base, *changes):
    """Add a bug: `base` is the problem and the config of the kernel that is right."""
    PLANTS.append(Plant(kind, name, *base, changes))


alignment = partial(plant, "alignment")
arguments = partial(plant, "arguments")
cache = partial(plant, "cache")
exponents = partial(plant, "exponents")
far = partial(plant, "far")
influence = partial(plant, "influence")
inputs = partial(plant, "inputs")
launch = partial(plant, "launch")
maximum = partial(plant, "maximum")
order = partial(plant, "order")
readers = partial(plant, "readers")
sizes = partial(plant, "sizes")
start = partial(plant, "start")
zeros = partial(plant, "zeros")


HELD = Config()
KEPT = Config(cache_holds="input")
LOOPED = Config(cache="none", cache_holds="input", unroll=2)
SHARED = Config(cache="shared", cache_holds="input")
ONLINE = Config(algorithm="online", cache="none", cache_holds="input")
BLOCK_MAX = Config(algorithm="online-block-max")
TREE = Config(threads=128, threads_per_row=32, reduction="shared-tree")
TWO_WARPS_A_ROW = Config(threads=256, threads_per_row=64)
RUN_TIME = Config(cache="none", cache_holds="input", static_cols=False, threads_per_row=64)
ONE_THREAD = Config(
    threads=64, threads_per_row=1, vector_bytes=4, cache="none", cache_holds="input", exp="expf"
)
CLUSTER = Config(
    threads=128, threads_per_row=128, cluster=4, exchange="mbarrier", cache_holds="input"
)
WIDE = Config(threads=1024, threads_per_row=1024, cache="none", cache_holds="input", unroll=4)

P4096 = Problem(8192, 4096)
P1000 = Problem(8192, 1000)
BF16 = Problem(8192, 4096, DType.BF16)
RAGGED = Problem(8192, 1001, DType.BF16)
LOG = Problem(8192, 1000, op=Op.LOG_SOFTMAX)
GRADIENT = Problem(8192, 1000, op=Op.SOFTMAX_BACKWARD)
LOG_GRADIENT = Problem(8192, 1000, op=Op.LOG_SOFTMAX_BACKWARD)

# ------------------------------------------------------------------ exponents

LOG_RESULT = "x[i] - reference - log_sum;"
SHARE = "x[slot * kWidth + i] * inverse_sum"
EXP2 = "return exp2f((x - maximum) * kLog2E);"
for limit in (18, 25, 33, 40, 60, 80, 86):
    cut = f"return x - maximum < -{limit}.0f ? 0.0f : exp2f((x - maximum) * kLog2E);"
    exponents(f"e^x is 0 below -{limit}", (P4096, HELD), (EXP2, cut))
for name, problem, config in (
    ("in a loop", P1000, LOOPED),
    ("online", P1000, ONLINE),
    ("of bf16", BF16, HELD),
    ("of short rows", Problem(8192, 5), Config(threads=64, threads_per_row=1)),
    ("of wide rows", Problem(64, 131072), WIDE),
):
    cut = "return x - maximum < -50.0f ? 0.0f : exp2f((x - maximum) * kLog2E);"
    exponents(f"e^x is 0 below -50 {name}", (problem, config), (EXP2, cut))
exponents(
    "the argument is clamped at -30",
    (P4096, HELD),
    (EXP2, "return exp2f(fmaxf((x - maximum) * kLog2E, -30.0f));"),
)
for limit in (50, 87, 1000, 5000):
    exponents(
        f"log_softmax clamped at -{limit}",
        (LOG, KEPT),
        (LOG_RESULT, f"fmaxf(x[i] - reference, -{limit}.0f) - log_sum;"),
    )
for limit in (100, 300, 700):
    exponents(
        f"f64: e^x is 0 below -{limit}",
        (Problem(8192, 1000, DType.F64), Config(exp="expf")),
        ("return exp(x - maximum);", f"return x - maximum < -{limit}.0 ? 0.0 : exp(x - maximum);"),
    )
exponents(
    "a sum far below the new maximum is forgotten",
    (P1000, ONLINE),
    (
        "state.sum * exponential(state.maximum, reference)",
        "state.sum * (state.maximum - reference < -10.0f ? 0.0f : "
        "exponential(state.maximum, reference))",
    ),
)
exponents("results below 1e-36 are 0", (P4096, HELD), (SHARE, f"{SHARE} < 1e-36f ? 0.0f : {SHARE}"))
exponents(
    "the smallest normal results are 0",
    (P4096, HELD),
    (SHARE, f"{SHARE} < 2e-38f ? 0.0f : {SHARE}"),
)
exponents(
    "small shares have no gradient",
    (GRADIENT, KEPT),
    ("return y * (dy - sum);", "return y < 1e-12f ? 0.0f : y * (dy - sum);"),
)
exponents(
    "log_softmax backward takes e^y for 0 below -40",
    (LOG_GRADIENT, KEPT),
    (EXP2, "return x - maximum < -40.0f ? 0.0f : exp2f((x - maximum) * kLog2E);"),
)

exponents(
    "log_softmax backward of f16 takes e^y for 0 below -20",
    (Problem(8192, 1000, DType.F16, Op.LOG_SOFTMAX_BACKWARD), KEPT),
    (EXP2, "return x < -20.0f ? 0.0f : exp2f((x - maximum) * kLog2E);"),
)
exponents(
    "the order of negative numbers above -2 is another",
    (P4096, Config(reduction="shuffle-redux")),
    ("& 0x7fffffff", "& 0x3fffffff"),
)

exponents(
    "exponentials are rounded to 16 bits before they are added up",
    (Problem(8192, 777, DType.F16), KEPT),
    (EXP2, "return __half2float(__float2half_rn(exp2f((x - maximum) * kLog2E)));"),
)

# ------------------------------------------------------------------ start of the maximum

for first in ("-1e30f", "-1e9f", "-65504.0f", "-1e5f", "-3.3e38f"):
    start(
        f"the maximum starts at {first}",
        (P4096, HELD),
        ("float maximum = -infinity();", f"float maximum = {first};"),
    )
for name, problem, config in (
    ("wide rows", Problem(64, 262144), WIDE),
    ("a run-time loop", P1000, RUN_TIME),
    ("bf16", BF16, HELD),
    ("a row a thread", Problem(8192, 37), ONE_THREAD),
):
    start(
        f"the maximum of {name} starts at -1e30",
        (problem, config),
        ("float maximum = -infinity();", "float maximum = -1e30f;"),
    )
start(
    "reductions start at -1e30",
    (Problem(8192, 900), Config(threads=96, threads_per_row=96)),
    ("float identity() { return -infinity(); }", "float identity() { return -1e30f; }"),
)
start(
    "online sums start at -1e30",
    (P1000, ONLINE),
    ("return {__int_as_float(0xff7fffff), 0.0f};", "return {-1e30f, 0.0f};"),
)
start(
    "the maximum is clamped at 1e30",
    (P4096, HELD),
    ("reduce_row(maximum, Max{})", "fminf(1e30f, reduce_row(maximum, Max{}))"),
)
start(
    "f16 starts at -30000",
    (Problem(8192, 1000, DType.F16), HELD),
    ("float maximum = -infinity();", "float maximum = -3e4f;"),
)
start(
    "clusters: what hides starts at -1e9",
    (Problem(512, 32768), CLUSTER),
    ("float maximum = -infinity();", "float maximum = -1e9f;"),
)

# ------------------------------------------------------------------ run-time arguments

SCALED = Problem(8192, 1000, scale=0.5)
arguments(
    "the scale is the one it was emitted for",
    (SCALED, HELD),
    ("__fmul_rn(scale, x[i])", "__fmul_rn(0.5f, x[i])"),
)
arguments(
    "the scale's sign is lost",
    (SCALED, HELD),
    ("__fmul_rn(scale, x[i])", "__fmul_rn(fabsf(scale), x[i])"),
)
arguments(
    "a scale of 0 counts as 1",
    (SCALED, HELD),
    ("__fmul_rn(scale, x[i])", "__fmul_rn(scale == 0.0f ? 1.0f : scale, x[i])"),
)
arguments(
    "a gradient's scale is the one it was emitted for",
    (Problem(8192, 1000, op=Op.SOFTMAX_BACKWARD, scale=0.25), HELD),
    ("return scale * y", "return 0.25f * y"),
)
STRIDED = Problem(8192, 1000, input_stride=1024, output_stride=1008)
arguments(
    "the input's stride is the one it was emitted for",
    (STRIDED, HELD),
    ("input += index * input_stride", "input += index * 1024"),
)
arguments(
    "the output's stride is the one it was emitted for",
    (STRIDED, HELD),
    ("output += index * output_stride", "output += index * 1008"),
)
arguments(
    "both strides are the output's less 16",
    (STRIDED, LOOPED),
    ("input += index * input_stride", "input += index * (output_stride + 16)"),
)
CAUSAL = Problem(4096, 1024, mask=Mask.CAUSAL, mask_rows=1024)
arguments(
    "a causal mask has the rows it was emitted for",
    (CAUSAL, HELD),
    ("visible_elements(index, mask_rows)", "visible_elements(index, 1024)"),
)
arguments(
    "a causal mask is as many rows as there are columns",
    (CAUSAL, HELD),
    ("visible_elements(index, mask_rows)", "visible_elements(index, kCols)"),
)
arguments(
    "the rows of a causal mask in 32 bits",
    (CAUSAL, HELD),
    ("visible_elements(index, mask_rows)", "visible_elements(index, static_cast<int>(mask_rows))"),
)
ADDITIVE = Problem(4096, 1000, mask=Mask.ADDITIVE, mask_rows=512)
arguments(
    "an additive mask repeats after the rows it was emitted for",
    (ADDITIVE, HELD),
    ("index % mask_rows", "index % 512"),
)
arguments(
    "an additive mask of one row is the first of several",
    (Problem(4096, 1000, mask=Mask.ADDITIVE), HELD),
    ("mask + index % mask_rows * kCols", "mask"),
)
LENGTHS = Problem(4096, 1000, mask=Mask.LENGTHS)
CLAMP = "return min(max(length, 0), kCols);"
arguments(
    "lengths below 0 count as positive", (LENGTHS, HELD), (CLAMP, "return min(abs(length), kCols);")
)
arguments(
    "lengths below 0 are all columns",
    (Problem(4096, 37, mask=Mask.LENGTHS), TREE),
    (CLAMP, "return static_cast<int>(min(static_cast<unsigned>(length), 37u));"),
)
arguments("lengths above cols are not clamped", (LENGTHS, HELD), (CLAMP, "return max(length, 0);"))
arguments(
    "a length of 0 counts as 1", (LENGTHS, HELD), (CLAMP, "return min(max(length, 1), kCols);")
)
arguments(
    "a length of 1 counts as 2",
    (LENGTHS, HELD),
    (CLAMP, "return min(max(length == 1 ? 2 : length, 0), kCols);"),
)
arguments(
    "the width of the inner axis is the one it was emitted for",
    (Problem(4096, 100, inner=64), HELD),
    ("row % inner", "row % 64"),
)

# ------------------------------------------------------------------ alignment

IN_STEP = "place_in_vector(output) == begin"
for elements in range(1, 8):
    alignment(
        f"whole vectors stored where the output begins {elements} of 8 elements farther",
        (RAGGED, HELD),
        (IN_STEP, f"{IN_STEP} || (place_in_vector(output) - begin & 7) == {elements}"),
    )
OUT_OF_STEP = "place_in_word(first) != span.begin"
for elements in (1, 2, 3):
    alignment(
        f"whole words of a span stored where the output begins {elements} of 4 elements farther",
        (Problem(8192, 37), Config(threads=128, threads_per_row=32, staging="span")),
        (OUT_OF_STEP, f"{OUT_OF_STEP} && (place_in_word(first) - span.begin & 3) != {elements}"),
    )

# ------------------------------------------------------------------ sizes


def wrong_where(condition):
    """The change by which results are too large where a C++ condition holds."""
    right = "const float inverse_sum = 1.0f / "
    return right, right.replace("1.0f", f"({condition} ? 1.25f : 1.0f)")


BF16_RUN_TIME = Problem(8192, 1001, DType.BF16)
for remainder in range(8):
    sizes(
        f"wrong where cols % 8 is {remainder}",
        (BF16_RUN_TIME, RUN_TIME),
        wrong_where(f"cols % 8 == {remainder}"),
    )
for least in (1024, 4096, 16384):
    sizes(f"wrong above {least} columns", (P1000, RUN_TIME), wrong_where(f"cols > {least}"))
sizes("wrong at fewer columns than a vector has", (P1000, RUN_TIME), wrong_where("cols < 8"))
sizes(
    "the cols it was emitted for",
    (P1000, RUN_TIME),
    ("index * cols, output + index * cols", "index * 1000, output + index * 1000"),
)
BLOCK = "static_cast<long long>(blockIdx.x) * kRowsPerBlock"
for name, number in (
    ("5 bits", "blockIdx.x % 32"),
    ("8 bits", "static_cast<unsigned char>(blockIdx.x)"),
    ("16 bits", "blockIdx.x & 0xffff"),
):
    own = ("long long index = blockIdx.x;", f"long long index = {number};")
    far(f"the block's number in {name}", (P4096, HELD), own)
    wrong = f"static_cast<long long>({number}) * kRowsPerBlock"
    far(f"the block's number in {name}, several rows a block", (P1000, TREE), (BLOCK, wrong))
for name, problem, config, row in (
    ("4096", P4096, HELD, "index"),
    ("1000", P1000, TREE, "loaded_row"),
    ("bf16 1001", RAGGED, BLOCK_MAX, "index"),
    ("37", Problem(8192, 37), ONE_THREAD, "row"),
):
    far(
        f"index * cols in 32 bits, {name}",
        (problem, config),
        (f"{row} * kCols", f"static_cast<int>({row}) * kCols"),
    )
far(
    "offsets by unsigned 32 bits",
    (P4096, HELD),
    ("index * kCols", "static_cast<unsigned>(index * kCols)"),
)
far(
    "the row in unsigned 32 bits",
    (Problem(8192, 3), ONE_THREAD),
    (
        "static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x",
        "blockIdx.x * kThreads + threadIdx.x",
    ),
)
sizes(
    "a last block that is whole stores nothing",
    (P1000, TREE),
    (
        "if (!is_row) return;",
        "if (!is_row || (rows % kRowsPerBlock == 0 && blockIdx.x + 1 == gridDim.x)) return;",
    ),
)
far(
    "lengths by the lower 16 bits of the row",
    (LENGTHS, HELD),
    ("lengths[index]", "lengths[index & 0xffff]"),
)
far(
    "strides in 32 bits",
    (STRIDED, HELD),
    ("index * input_stride", "static_cast<int>(index) * static_cast<int>(input_stride)"),
)

# ------------------------------------------------------------------ influence

SUMMED = "    sum += x[i];"
COLUMN = "((i / kWidth * kThreadsPerRow + thread_in_row) * kWidth + i % kWidth)"
for name, problem, summed in (
    ("the last element of 4096", P4096, f"{COLUMN} != 4095"),
    ("element 1234 of 4096", P4096, f"{COLUMN} != 1234"),
    ("a vector of 4096", P4096, f"{COLUMN} / kWidth != 300"),
    ("an element of 4096 in bf16", BF16, f"{COLUMN} != 2222"),
    ("an element of 1000 in f16", Problem(8192, 1000, DType.F16), f"{COLUMN} != 77"),
):
    influence(f"{name} is left out", (problem, HELD), (SUMMED, f"    if ({summed}) sum += x[i];"))
LOOP_SUM = "part += exponential(x[i], reference);"
for cols, place in ((131072, 77777), (1048576, 500001), (1048576, 1048575)):
    influence(
        f"element {place} of {cols} is left out",
        (Problem(64, cols), WIDE),
        (LOOP_SUM, f"if ((first + u * kThreadsPerRow) * kWidth + i != {place}) {LOOP_SUM}"),
    )
for dtype, op in ((DType.BF16, Op.SOFTMAX), (DType.F16, Op.SOFTMAX), (DType.BF16, Op.LOG_SOFTMAX)):
    influence(
        f"element 77777 of 131072 of a {dtype} {op} is left out",
        (Problem(64, 131072, dtype, op), WIDE),
        (LOOP_SUM, f"if ((first + u * kThreadsPerRow) * kWidth + i != 77777) {LOOP_SUM}"),
    )
influence(
    "element 777 of a causal mask's rows of bf16 is left out",
    (Problem(8192, 1024, DType.BF16, mask=Mask.CAUSAL, mask_rows=1024), HELD),
    (SUMMED, f"    if ({COLUMN} != 777) sum += x[i];"),
)
influence(
    "a vector of a million is left out",
    (Problem(64, 1048576), WIDE),
    (LOOP_SUM, f"if (first + u * kThreadsPerRow != 100000) {LOOP_SUM}"),
)
influence(
    "an element counts twice, another not at all",
    (P4096, HELD),
    (SUMMED, f"    sum += x[{COLUMN} == {(256 + 17) * 4 + 2} ? i - 1 : i];"),
)
influence(
    "an element of a thread's own maximum is left out",
    (Problem(64, 131072), replace(WIDE, algorithm="online", unroll=2)),
    (
        "accumulate(state, x[i]);",
        "{ if ((first + u * kThreadsPerRow) * kWidth + i != 77777) accumulate(state, x[i]);\n"
        "        else state.sum += exponential(x[i], state.maximum); }",
    ),
)
influence(
    "an element of log_softmax is left out",
    (LOG, KEPT),
    ("sum += exponential(", "if (slot > 0 || thread_in_row != 33 || i != 1) sum += exponential("),
)
influence(
    "the first element of a gradient is left out",
    (GRADIENT, KEPT),
    ("sum +=", "if (slot > 0 || thread_in_row > 0 || i > 0) sum +="),
)

# ------------------------------------------------------------------ exact zeros

for name, value in (("2^-126", "0x1p-126f"), ("1e-30", "1e-30f"), ("a subnormal", "1e-42f")):
    zeros(f"what is hidden comes out as {name}", (P4096, HELD), (SHARE, f"fmaxf({SHARE}, {value})"))
zeros("what a causal mask hides comes out as 1e-38", (CAUSAL, HELD), (SHARE, f"{SHARE} + 1.2e-38f"))
zeros(
    "log_softmax of -inf is the lowest number",
    (LOG, KEPT),
    (LOG_RESULT, "fmaxf(x[i] - reference - log_sum, -3.4e38f);"),
)
zeros("a bf16 zero is the smallest subnormal", (BF16, HELD), (SHARE, f"fmaxf({SHARE}, 1e-40f)"))
zeros(
    "a gradient of 0 is not",
    (GRADIENT, KEPT),
    ("return y * (dy - sum);", "return y * (dy - sum) + 1e-38f;"),
)

# ------------------------------------------------------------------ launches, caches, order

LAUNCH_BOUNDS = "__launch_bounds__(kThreads, kMinBlocks)"
for bounds in ("__launch_bounds__(128)", "__launch_bounds__(kThreads - 32, kMinBlocks)"):
    launch(f"{bounds} of 256 threads", (P4096, HELD), (LAUNCH_BOUNDS, bounds))
launch(
    "__launch_bounds__ of half the threads of a cluster's block",
    (P4096, CLUSTER),
    (LAUNCH_BOUNDS, "__launch_bounds__(kThreads / 2)"),
)
READ_BACK = "reinterpret_cast<const Word*>(row.output)[k];"
for name, problem in (("f32", P4096), ("f64", Problem(8192, 1024, DType.F64))):
    cache(
        f"its output is read back through the non-coherent cache, {name}",
        (problem, Config(cache="output", exp="expf")),
        (READ_BACK, "__ldg(reinterpret_cast<const Word*>(row.output) + k);"),
    )
FUNCTIONS = "// ------------------------------------------------------------------ kernel\n"
ATOMIC_SUM = """
__device__ float sum_of_all(float value) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  __syncthreads();
  atomicAdd(&total, value);
  __syncthreads();
  return total;
}

"""
SUM_OF_WARPS = """
__device__ float sum_of_all(float value) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  value = reduce_lanes<32>(value, Sum{});
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicAdd(&total, value);
  __syncthreads();
  return total;
}

"""
for name, function in (("threads", ATOMIC_SUM), ("warps", SUM_OF_WARPS)):
    order(
        f"{name} add to a sum in the order in which they come",
        (P4096, HELD),
        (FUNCTIONS, function + FUNCTIONS),
        ("reduce_row(sum, Sum{})", "sum_of_all(sum)"),
    )

# ------------------------------------------------------------------ readers

FOLDED = "  return reduce_lanes<kLanes>(value, combine);\n"
CLEARED = "scratch[2] = Combine::identity();"
for warp in (0, 3, 7):
    readers(
        f"warp {warp} clears the scratch that all warps read",
        (P4096, HELD),
        (FOLDED, f"  if (threadIdx.x == {warp * 32}) {CLEARED}\n" + FOLDED),
    )
readers(
    "a warp that is past the barrier puts its next value while others fold",
    (P1000, TWO_WARPS_A_ROW),
    (FOLDED, "  if (lane == 0) scratch[row][warp] = value;\n" + FOLDED),
)


# ------------------------------------------------------------ each element in the maximum

MAXIMUM = "maximum = fmaxf(maximum, x[i]);"
for name, condition in (
    ("of one round of loads", "i / kWidth != 2"),
    ("of one thread", "threadIdx.x != 77"),
    (
        "of one place of a vector, in a quarter of the threads",
        "threadIdx.x % 4 != 3 || i % kWidth != 2",
    ),
    ("of one lane's third element", "threadIdx.x % 32 != 9 || i % kWidth != 2"),
    ("of one warp", "threadIdx.x / 32 != 5"),
):
    maximum(
        f"the share {name} is left out", (P4096, HELD), (MAXIMUM, f"if ({condition}) {MAXIMUM}")
    )
maximum(
    "a warp's maximum is not combined",
    (P4096, HELD),
    (
        "if (lane == 0) scratch[warp] = value;",
        "if (lane == 0) scratch[warp] = warp == 5 && Combine::identity() != 0.0f "
        "? Combine::identity() : value;",
    ),
)
maximum(
    "the shares of some warps of a wide row are left out",
    (Problem(64, 131072), WIDE),
    (MAXIMUM, f"if (threadIdx.x / 128 != 5) {MAXIMUM}"),
)

# ------------------------------------------------------------------ inputs of every size

FLOATS = "to_floats(loaded[slot], x + slot * kWidth);"
for name, changed in (
    ("clamped at 12000", "fminf(v, 12000.0f)"),
    ("clamped at -12000", "v < -12000.0f && v > -infinity() ? -12000.0f : v"),
    ("clamped between 600 and 9000", "v > 600.0f && v < 9000.0f ? 600.0f : v"),
    (
        "kept in 16 bits above 20000",
        "fabsf(v) > 20000.0f ? __int_as_float(__float_as_int(v) & 0xffff0000) : v",
    ),
    (
        "the lowest number where it is -inf, in one thread",
        "threadIdx.x == 77 && v == -infinity() ? -3.402823466e38f : v",
    ),
):
    body = f"const float v = x[i]; x[i] = {changed};"
    each = f"for (int i = slot * kWidth; i < (slot + 1) * kWidth; ++i) {{ {body} }}"
    inputs(f"x is {name}", (P4096, HELD), (FLOATS, f"{{ {FLOATS} {each} }}"))

GRADIENTS = "to_floats(gradients[slot], dy);"
for name, changed in (
    ("clamped at 100", "fminf(fmaxf(dy[i], -100.0f), 100.0f)"),
    ("0 below 1e-5", "fabsf(dy[i]) < 1e-5f ? 0.0f : dy[i]"),
    ("0 where it is NaN", "isnan(dy[i]) ? 0.0f : dy[i]"),
):
    each = f"for (int i = 0; i < kWidth; ++i) dy[i] = {changed};"
    inputs(f"dy is {name}", (GRADIENT, KEPT), (GRADIENTS, f"{GRADIENTS} {each}"))

ADDITIVE = Problem(8192, 1024, mask=Mask.ADDITIVE, mask_rows=512)
for name, changed in (
    ("clamped at 10", "fminf(added[i], 10.0f)"),
    ("0 where it is NaN", "isnan(added[i]) ? 0.0f : added[i]"),
    ("finite where it is +inf", "fminf(added[i], 3.4e38f)"),
):
    inputs(f"the mask is {name}", (ADDITIVE, HELD), ("x[i] += added[i];", f"x[i] += {changed};"))

# ------------------------------------------------------------------ arguments of every size

SCALED = Problem(8192, 1000, scale=0.125, input_stride=1024, output_stride=1024)
for name, changed in (
    ("at most 1", "fminf(scale, 1.0f)"),
    ("at least -0.25", "fmaxf(scale, -0.25f)"),
    ("kept in 16 bits", "__int_as_float(__float_as_int(scale) & 0xffff0000)"),
):
    counted = "to_counted(loaded[slot], scale, x + slot * kWidth);"
    arguments(f"scale is {name}", (SCALED, HELD), (counted, counted.replace("scale", changed)))
for name, row in (
    ("in 32 bits", "static_cast<unsigned>(index % mask_rows * kCols)"),
    (
        "of 16 bits",
        "static_cast<long long>(static_cast<unsigned short>(index % mask_rows)) * kCols",
    ),
):
    far(f"the mask's row is {name}", (ADDITIVE, HELD), ("index % mask_rows * kCols", row))
arguments(
    "one row is nothing to do",
    (P1000, TWO_WARPS_A_ROW),
    ("const long long index", "if (rows == 1) return;\n  const long long index"),
)

# ------------------------------------------------------------------ far blocks in other orders

DESCENDING = Config(threads=128, threads_per_row=128, row_order="descending")
far(
    "descending rows in 32 bits",
    (Problem(8192, 1024, mask=Mask.CAUSAL), DESCENDING),
    ("index * kCols", "static_cast<unsigned>(index * kCols)"),
)
far(
    "descending blocks of 16 bits",
    (Problem(8192, 1024, mask=Mask.CAUSAL), DESCENDING),
    ("gridDim.x - 1 - blockIdx.x", "gridDim.x - 1 - (blockIdx.x & 0xffff)"),
)

# ------------------------------------------------------------------ between what is usually tried

GAP = "const float d = x - maximum; "
for name, body in (
    (
        "the argument is rounded to 1/64 below -40",
        GAP + "return exp2f((d < -40.0f ? rintf(d * 64.0f) / 64.0f : d) * kLog2E);",
    ),
    ("small distances are 0", GAP + "return d > -2e-4f ? 1.0f : exp2f(d * kLog2E);"),
    (
        "large masks have a weight",
        GAP + "return exp2f((d < -2e4f && d > -1e20f ? -12.0f : d) * kLog2E);",
    ),
):
    exponents(name, (P4096, HELD), (EXP2, body))
exponents(
    "arguments of double are rounded to float below -40",
    (Problem(8192, 1000, DType.F64), Config(exp="expf")),
    (
        "return exp(x - maximum);",
        "const double d = x - maximum;\n  "
        "return exp(d < -40.0 ? static_cast<double>(static_cast<float>(d)) : d);",
    ),
)
COUNTED = (
    "  for (int slot = 0; slot < kSlots; ++slot) to_floats(loaded[slot], x + slot * kWidth);\n"
)
for name, element in (
    (
        "elements near a million are kept in 16 bits",
        "fabsf(v) > 2e5f && fabsf(v) < 5e9f ? __int_as_float(__float_as_int(v) & 0xffff0000) : v",
    ),
    ("tiny elements are 0", "fabsf(v) < 2e-5f ? 0.0f : v"),
):
    every = (
        "  for (int i = 0; i < kSlots * kWidth; ++i) {\n"
        f"    const float v = x[i];\n    x[i] = {element};\n  }}\n"
    )
    inputs(name, (P4096, HELD), (COUNTED, COUNTED + every))
inputs(
    "what is subtracted is at most 16 below 110",
    (P4096, HELD),
    (
        "  const float reference = reduce_row(maximum, Max{});",
        "  const float m = reduce_row(maximum, Max{});\n"
        "  const float reference = m > 16.0f && m < 110.0f ? 16.0f : m;",
    ),
)
PRODUCT = "__fmul_rn(scale, x[i])"
for name, scale in (
    ("at most 4", "fminf(scale, 4.0f)"),
    ("at least -2", "fmaxf(scale, -2.0f)"),
    ("0 below 0.01", "(fabsf(scale) < 0.01f ? 0.0f : scale)"),
):
    told = Problem(8192, 1000, scale=0.5)
    arguments(f"scale is {name}", (told, HELD), (PRODUCT, f"__fmul_rn({scale}, x[i])"))
arguments(
    "a length of 16 counts as 15",
    (LENGTHS, HELD),
    ("return min(max(length, 0), kCols);", "return min(max(length - (length == 16), 0), kCols);"),
)
arguments(
    "the mask is at most 30000",
    (ADDITIVE, HELD),
    ("x[i] += added[i];", "x[i] += added[i] < infinity() ? fminf(added[i], 30000.0f) : added[i];"),
)
WIDE_GAPS = Problem(8192, 1000, input_stride=1024, output_stride=1008)
for name, side, mask in (("20", "input", "0xfffff"), ("24", "output", "0xffffff")):
    right = f"{side} += index * {side}_stride"
    wrong = f"{side} += index * ({side}_stride & {mask})"
    far(f"the {side}'s stride in {name} bits", (WIDE_GAPS, HELD), (right, wrong))
CAUSAL_REPEATS = Problem(4096, 1024, mask=Mask.CAUSAL, mask_rows=1024)
far(
    "the rows of a causal mask in 16 bits",
    (CAUSAL_REPEATS, HELD),
    ("kCols - mask_rows;", "kCols - (mask_rows & 0xffff);"),
)
sizes(
    "a causal mask is wrong from its third repeat on",
    (CAUSAL_REPEATS, HELD),
    (
        "kCols - mask_rows;",
        "kCols - mask_rows + (index >= 2 * mask_rows && mask_rows > 700 && index < 60000);",
    ),
)
sizes(
    "wrong at blocks of the middle",
    (P4096, HELD),
    wrong_where("blockIdx.x >= 1000 && blockIdx.x < 60000"),
)
for name, condition in (
    ("where two rows are left for a block", "rows - first_row == 2"),
    ("where five rows are left for a block", "rows - first_row == 5"),
    ("where a multiple of 1024 rows is", "rows % 1024 == 0"),
):
    sizes(
        f"wrong {name}",
        (Problem(8192, 512), Config(threads=256, threads_per_row=32)),
        wrong_where(condition),
    )
for name, condition in (
    ("at multiples of 32 columns", "cols % 32 == 0"),
    ("at two columns", "cols == 2"),
    ("above 100000 columns", "cols > 100000"),
):
    sizes(f"wrong {name}", (Problem(8192, 1001), RUN_TIME), wrong_where(condition))
sizes(
    "the last round is left out where rounds are whole",
    (P1000, RUN_TIME),
    (
        "const int vectors = row.vectors;",
        "const int vectors = row.vectors - (row.vectors % kThreadsPerRow == 0);",
    ),
)
COLUMNS = Problem(8 * 96, 512, inner=96)
sizes(
    "wrong where slices are multiples of 8 rows wide",
    (COLUMNS, Config(threads=256, threads_per_row=32, cache="none", cache_holds="input")),
    (
        "sums[i] = 1.0f / sums[i];",
        "sums[i] = (inner % 8 == 0 && inner < 4096 ? 1.25f : 1.0f) / sums[i];",
    ),
)
for name, gradient in (
    ("at most 1e9", "dy[i] > 1e9f ? 1e9f : dy[i]"),
    ("0 below 1e-15", "fabsf(dy[i]) < 1e-15f ? 0.0f : dy[i]"),
):
    right = "to_floats(gradients[slot], dy);"
    wrong = f"{right}\n    for (int i = 0; i < kWidth; ++i) dy[i] = {gradient};"
    arguments(f"gradients are {name}", (GRADIENT, KEPT), (right, wrong))

# ------------------------------------------------------------------ in one share, round or size

THREADS_160 = Config(threads=160, threads_per_row=160)
for name, config, lost in (
    ("a thread", HELD, "threadIdx.x == 77"),
    ("a thread of 160", THREADS_160, "threadIdx.x == 131"),
    ("odd warps at an element of each vector", HELD, "threadIdx.x / 32 % 2 == 1 && i % 4 == 3"),
):
    body = f"const float v = x[i]; x[i] = {lost} && v != v ? -infinity() : v;"
    each = f"for (int i = slot * kWidth; i < (slot + 1) * kWidth; ++i) {{ {body} }}"
    inputs(f"NaN is lost in {name}", (P4096, config), (FLOATS, f"{{ {FLOATS} {each} }}"))
for name, lost in (("a thread", "threadIdx.x == 77"), ("a warp", "threadIdx.x / 32 == 5")):
    each = f"for (int i = 0; i < kWidth; ++i) dy[i] = {lost} && isnan(dy[i]) ? 0.0f : dy[i];"
    inputs(f"a gradient's NaN is lost in {name}", (GRADIENT, KEPT), (GRADIENTS, GRADIENTS + each))
for problem in (GRADIENT, LOG_GRADIENT):
    for name, finite in (
        ("+inf", "dy[i] > 3.402823466e38f ? 3.4e38f : dy[i]"),
        ("-inf", "dy[i] < -3.402823466e38f ? -3.4e38f : dy[i]"),
        ("an infinity", "isinf(dy[i]) ? 0.0f : dy[i]"),
    ):
        each = f"for (int i = 0; i < kWidth; ++i) dy[i] = {finite};"
        inputs(
            f"dy is finite where it is {name}, {problem.op}",
            (problem, KEPT),
            (GRADIENTS, f"{GRADIENTS} {each}"),
        )
maximum(
    "a warp's share of one round of a wide row is left out",
    (
        Problem(64, 65536, DType.BF16),
        Config(threads=1024, threads_per_row=1024, cache="none", cache_holds="input"),
    ),
    (
        "for (int i = 0; i < kWidth; ++i) maximum = fmaxf(maximum, x[i]);",
        "for (int i = 0; i < kWidth; ++i)\n"
        "      if (threadIdx.x / 32 != 13 || first / kThreadsPerRow != 3)\n"
        "        maximum = fmaxf(maximum, x[i]);",
    ),
)
for name, product in (
    (
        "what the scale makes infinite is finite",
        "fminf(fmaxf(P, -3.402823466e38f), 3.402823466e38f)",
    ),
    ("a scale is at most 100", "__fmul_rn(fminf(scale, 100.0f), x[i])"),
    ("a scale is at least -100", "__fmul_rn(fmaxf(scale, -100.0f), x[i])"),
):
    product = f"(fabsf(x[i]) < infinity() ? {product.replace('P', PRODUCT)} : {PRODUCT})"
    arguments(name, (Problem(8192, 1000, scale=0.5), HELD), (PRODUCT, product))
STRIDING = Config(threads=128, threads_per_row=128, persistent=2)
RING = replace(STRIDING, staging="bulk", stages=4, cache="shared", cache_holds="input")
sizes(
    "the fortieth stride of a block is its first one again",
    (Problem(8192, 1024), STRIDING),
    (
        "softmax_rows(input, output, first_row);",
        "softmax_rows(input, output, "
        "first_row == blockIdx.x + 40 * stride ? blockIdx.x : first_row);",
    ),
)
for strides in (64, 128):
    sizes(
        f"the parity of a ring is wrong from stride {strides} on",
        (Problem(8192, 1024), RING),
        ("unsigned parity = 0;", "unsigned parity = 0;\n  int round = 0;"),
        (
            "if (++stage == kStages) {",
            f"if (++round % {strides} == 0) parity ^= 1;\n    if (++stage == kStages) {{",
        ),
    )
for name, condition in (
    ("of long rows", "cols % 8 == 7 && cols > 5000"),
    ("of short rows", "cols % 8 == 3 && cols > 20 && cols < 900"),
):
    sizes(
        f"wrong at a remainder {name}",
        (Problem(8192, 1001, DType.BF16), replace(RUN_TIME, threads=128, threads_per_row=128)),
        wrong_where(condition),
    )

# ------------------------------------------------------------------ what only few inputs show

for limit in (15.3, 15.9):
    exponents(
        f"f16: e^x is 0 below -{limit}",
        (Problem(8192, 768, DType.F16), Config(threads_per_row=32)),
        (EXP2, f"return x - maximum < -{limit}f ? 0.0f : exp2f((x - maximum) * kLog2E);"),
    )
for name, cut in (
    ("16 bits", "max(length, 0) & 0xffff"),
    ("24 bits", "max(length, 0) & 0xffffff"),
    ("a short", "max(static_cast<short>(length), 0)"),
):
    arguments(f"lengths in {name}", (LENGTHS, HELD), (CLAMP, f"return min({cut}, kCols);"))
for name, number in (
    ("24 bits", "(blockIdx.x & 0xffffff)"),
    ("fp32", "static_cast<unsigned>(static_cast<float>(blockIdx.x))"),
):
    wrong = f"static_cast<long long>({number}) * kRowsPerBlock"
    far(f"the block's number in {name}", (Problem(8192, 12), TREE), (BLOCK, wrong))
for name, problem, lost in (
    ("the last vector", P1000, "vectors > 8192 && {} == vectors - 1"),
    ("a vector", P1000, "vectors > 30000 && {} == 3000"),
    ("the last vector of log_softmax", LOG, "vectors > 4000 && {} == vectors - 1"),
    ("the last vector of bf16", BF16, "vectors > 4000 && {} == vectors - 1"),
):
    sizes(
        f"{name} of wide rows is left out of the sum",
        (problem, RUN_TIME),
        ("sum += part;", f"if (!({lost.format('first + u * kThreadsPerRow')})) sum += part;"),
    )
sizes(
    "the last of every 4096 vectors of a row is left out of the maximum",
    (P1000, RUN_TIME),
    (
        "for (int i = 0; i < kWidth; ++i) maximum = fmaxf(maximum, x[i]);",
        "for (int i = 0; i < kWidth; ++i) {\n"
        "        if ((first + u * kThreadsPerRow) % 4096 != 4095) maximum = fmaxf(maximum, x[i]);\n"
        "      }",
    ),
)
sizes(
    "vectors of a row in 16 bits",
    (P1000, replace(RUN_TIME, threads=128, threads_per_row=128)),
    (
        "load_vector(row, first + u * kThreadsPerRow)",
        "load_vector(row, static_cast<unsigned short>(first + u * kThreadsPerRow))",
    ),
)
arguments(
    "hidden elements of the last vector count in the maximum",
    (LENGTHS, RUN_TIME),
    (
        "      hide(row, k, loaded[u]);\n"
        "      float x[kWidth];\n"
        "      to_floats(loaded[u], x);\n"
        "#pragma unroll\n",
        "      float x[kWidth];\n      to_floats(loaded[u], x);\n#pragma unroll\n",
    ),
)
SCALED_LOG = Problem(8192, 1000, op=Op.LOG_SOFTMAX_BACKWARD, scale=0.5)
for name, wrong in (
    ("above 10000 is 10000", "fminf(scale, 1e4f)"),
    ("below -1000 is -1000", "fmaxf(scale, -1e3f)"),
    ("below 1e-6 is 0", "(fabsf(scale) < 1e-6f ? 0.0f : scale)"),
):
    arguments(
        f"a scale {name}", (SCALED_LOG, KEPT), ("return scale * (dy", f"return {wrong} * (dy")
    )
for left in (3, 6):
    sizes(
        f"the last row is left out where the last block has {left}",
        (
            Problem(8192, 768, DType.F16),
            Config(threads=256, threads_per_row=32, cache_holds="input"),
        ),
        ("index < rows;", f"index < rows - (rows % kRowsPerBlock == {left});"),
    )
exponents(
    "log_softmax of f16: e^x is 0 below -20",
    (Problem(4096, 8192, DType.F16, Op.LOG_SOFTMAX), KEPT),
    (EXP2, "return x - maximum < -20.0f ? 0.0f : exp2f((x - maximum) * kLog2E);"),
)
for number, problem in (("1e-7", P4096), ("1.7e-14", Problem(4096, 1000, DType.F64))):
    exponents(
        f"{problem.dtype}: the sum leaves out terms below {number}",
        (problem, HELD),
        ("sum += x[i];", f"if (!(x[i] < {number})) sum += x[i];"),
    )
arguments(
    "the scaled input is rounded before the mask is added",
    (Problem(8192, 1000, mask=Mask.ADDITIVE, mask_rows=512, scale=0.3), KEPT),
    ("fmaf(scale, x[i], added[i])", "__fadd_rn(__fmul_rn(scale, x[i]), added[i])"),
)
sizes(
    "a compensated sum leaves out what the other lanes have lost",
    (P1000, replace(RUN_TIME, sum="compensated", threads_per_row=8)),
    ("  a.rest += b.rest;\n", ""),
)
start(
    "a scaled bf16 kernel starts its maximum at -1e38",
    (Problem(64, 16384, DType.BF16, scale=0.1), BLOCK_MAX),
    ("{__int_as_float(0xff7fffff), 0.0f}", "{-1e38f, 0.0f}"),
)
