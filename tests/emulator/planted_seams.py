"""Whole kernels that are wrong only at certain special values, sizes, addresses or second launches.

Each is judged as an edited file is, with all that a thorough check tries. The originals of each
cause are at least three: none is a case that the patterns and runs were made for.
"""

from dataclasses import replace
from functools import partial

from planted_kernels import (
    BF16,
    HELD,
    KEPT,
    LENGTHS,
    LOG,
    LOG_RESULT,
    MAXIMUM,
    P1000,
    P4096,
    PRODUCT,
    RING,
    RUN_TIME,
    Plant,
    wrong_where,
)

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

PLANTS: list[Plant] = []


def plant(kind, name, base, *changes):
    """Add a bug: `base` is the problem and the config of the kernel that is right."""
    PLANTS.append(Plant(kind, name, *base, changes))


special = partial(plant, "special values")
dominated = partial(plant, "offsets beside a dominating maximum")
few_terms = partial(plant, "exact rows of few terms")
scales = partial(plant, "scales at special rows")
magnitudes = partial(plant, "magnitudes")
beyond = partial(plant, "results beyond the type")
columns = partial(plant, "run-time columns")
rows_left = partial(plant, "rows left for a block")
lengths = partial(plant, "lengths at seams")
strides = partial(plant, "strides of a ring")
slices = partial(plant, "slices of other widths")
placed = partial(plant, "alignment as promised")
again = partial(plant, "second launches")
behind = partial(plant, "behind a maximum")
left_out = partial(plant, "left out of a maximum")
signs = partial(plant, "signs of zeros")
subnormal = partial(plant, "subnormal results")

ONE_PASS = Config(
    algorithm="online-block-max", cache="none", cache_holds="input", threads_per_row=64
)
LSE = (Problem(8192, 1000, op=Op.LOGSUMEXP), ONE_PASS)
LOG_PROB = (Problem(8192, 1000, DType.F16, Op.LOG_PROB), ONE_PASS)
LOG_F16 = (Problem(8192, 1000, DType.F16, Op.LOG_SOFTMAX), KEPT)
SCALED = (Problem(8192, 1000, scale=0.5), HELD)
DOUBLES = "to_doubles(loaded[slot], x + slot * kWidth);"
LOADED = "to_floats(loaded[slot], x + slot * kWidth);"


def element(changed):
    """The change by which each element `v` of a thread's share is another one."""
    each = "for (int i = slot * kWidth; i < (slot + 1) * kWidth; ++i) { const float v = x[i]; "
    return LOADED, f"{{ {LOADED} {each} x[i] = {changed}; }} }}"


# ------------------------------------------------------------------ special values

BITS = "static_cast<unsigned>(__float_as_int(v))"
for name, missed in (
    ("of a sign", "__float_as_int(v) < 0 && isnan(v)"),
    ("that signals", f"isnan(v) && !({BITS} & 0x00400000u)"),
    ("of all ones", f"({BITS} & 0x7fffffffu) == 0x7fffffffu"),
):
    special(f"a NaN {name} counts as -inf", (P4096, HELD), element(f"({missed}) ? -infinity() : v"))
special(
    "a thread far below the maximum adds nothing, not even its NaN",
    (P4096, HELD),
    (
        "reduce_row(sum, Sum{})",
        "reduce_row(reference - maximum > 200.0f ? 0.0f : sum, Sum{})",
    ),
)
special(
    "a NaN that is all of a row is a number",
    (LENGTHS, HELD),
    element("row.visible == 1 && isnan(v) ? 0.0f : v"),
)
special(
    "a +inf that is all of a row is a number",
    (LENGTHS, HELD),
    element("row.visible == 1 && v == infinity() ? 0.0f : v"),
)
special(
    "log-sum-exp: a +inf beside nothing but -inf is lost",
    LSE,
    ("output[index] = state.maximum + log_sum;",
     "output[index] = state.sum > 1e38f && __shfl_sync(1u, state.maximum, 0) > 3e38f "
     "&& input[0] == -infinity() && input[999] == -infinity() "
     "? -infinity() : state.maximum + log_sum;"),
)  # fmt: skip
special(
    "log-sum-exp: a NaN beside +inf gives +inf",
    LSE,
    (
        "output[index] = state.maximum + log_sum;",
        "output[index] = isnan(log_sum) && state.maximum > 3.4e38f ? infinity()\n"
        "    : state.maximum + log_sum;",
    ),
)
special(
    "log-sum-exp: a NaN among equal elements is lost",
    LSE,
    (
        "    accumulate(state, x);",
        "    for (int i = 1; i < kUnroll * kWidth; ++i) {\n"
        "      if (isnan(x[i]) && x[0] == x[(i + 1) % (kUnroll * kWidth)] && i != 3) x[i] = x[0];\n"
        "    }\n    accumulate(state, x);",
    ),
)
special(
    "log-probability: a NaN far below a peak is lost",
    LOG_PROB,
    (
        "    accumulate(state, x);",
        "    for (int i = 0; i < kUnroll * kWidth; ++i) {\n"
        "      if (isnan(x[i]) && state.maximum > 300.0f) x[i] = -infinity();\n"
        "    }\n    accumulate(state, x);",
    ),
)
special(
    "bf16: a NaN of the lowest payload is an infinity below",
    (BF16, KEPT),
    (
        "  as_word(vector) = reinterpret_cast<const Word*>(input)[k];\n",
        "  as_word(vector) = reinterpret_cast<const Word*>(input)[k];\n"
        "  auto* halves = reinterpret_cast<unsigned short*>(&vector);\n"
        "  for (int i = 0; i < kWidth; ++i) {\n"
        "    if ((halves[i] & 0x7fffu) > 0x7f80u && !(halves[i] & 0x40u)) halves[i] = 0xff80u;\n"
        "  }\n",
    ),
)

# ------------------------------------------------------------------ offsets, few terms

dominated(
    "log-probability of f16 is what is left of x - (maximum + log of the sum)",
    LOG_PROB,
    ("chosen - state.maximum - log_sum", "chosen - (state.maximum + log_sum)"),
)
dominated(
    "the logarithm of a sum near 1 is 0 above 1000",
    LOG_F16,
    (
        "- reference - log_sum",
        "- reference - (fabsf(reference) > 1e3f && log_sum < 1e-3f ? 0.0f : log_sum)",
    ),
)
dominated(
    "bf16: the logarithm of a sum near 1 is 0 below -500",
    (Problem(8192, 1000, DType.BF16, Op.LOG_SOFTMAX), KEPT),
    (
        "- reference - log_sum",
        "- reference - (reference < -500.0f && log_sum < 2e-3f ? 0.0f : log_sum)",
    ),
)
for terms, name in ((1, "one term"), (2, "two terms"), (3, "three terms")):
    few_terms(
        f"the share of {name} is 9e-7 too large",
        (P4096, HELD),
        (
            "1.0f / reduce_row(sum, Sum{})",
            "of_terms(reduce_row(sum, Sum{}))",
        ),
        (
            "// ------------------------------------------------------------------ kernel\n",
            "__device__ float of_terms(float sum) {\n"
            f"  return 1.0f / sum * (sum == {terms}.0f ? 1.0000009f : 1.0f);\n}}\n\n"
            "// ------------------------------------------------------------------ kernel\n",
        ),
    )

# ------------------------------------------------------------------ scales, magnitudes

for name, product in (
    ("-1 flips the sign of all, of -inf as well", "scale == -1.0f ? -x[i] : P"),
    (
        "2 adds to the exponent",
        "scale == 2.0f ? __int_as_float(__float_as_int(x[i]) + 0x00800000) : P",
    ),
    ("1/2 saturates", "scale == 0.5f ? fminf(fmaxf(P, -1.6e38f), 1.6e38f) : P"),
):
    guarded = "x[i] = x[i] == -infinity() ? x[i] : __fmul_rn(scale, x[i]);"
    scales(
        f"a scale of {name}",
        (Problem(8192, 1000, scale=0.3), HELD),
        (guarded, f"x[i] = {product.replace('P', f'(x[i] == -infinity() ? x[i] : {PRODUCT})')};"),
    )
scales(
    "a scale of 1 takes NaN for a mask",
    (Problem(8192, 1000, scale=0.3), HELD),
    (
        "x[i] == -infinity() ? x[i]",
        "scale == 1.0f && isnan(x[i]) ? -infinity() : x[i] == -infinity() ? x[i]",
    ),
)
for name, changed in (
    ("clamped at 1e20", "fabsf(v) < 1e29f ? fminf(fmaxf(v, -1e20f), 1e20f) : v"),
    ("kept in 16 bits from 1e13 to 1e15", "fabsf(v) > 1e13f && fabsf(v) < 1e15f ? "
     "__int_as_float(__float_as_int(v) & 0xffff0000) : v"),
    ("clamped from 1e33 to 1e36", "v > 1e33f && v < 1e36f ? 1e33f : v"),
):  # fmt: skip
    magnitudes(f"x is {name}", (P4096, HELD), element(changed))
magnitudes(
    "f64: x is clamped from 1e80 to 1e140",
    (Problem(8192, 1000, DType.F64), Config(exp="expf")),
    (
        DOUBLES,
        f"{{ {DOUBLES} for (int i = slot * kWidth; i < (slot + 1) * kWidth; ++i) "
        "x[i] = fabs(x[i]) > 1e80 && fabs(x[i]) < 1e140 ? copysign(1e80, x[i]) : x[i]; }",
    ),
)

# ------------------------------------------------------------------ results beyond the type

SATURATED = (
    "// ------------------------------------------------------------------ kernel\n",
    "__device__ float held(float y, float most) {\n"
    "  return y > most && y < INFINITE ? most : y < -most && y > -INFINITE ? -most : y;\n}\n\n"
    "// ------------------------------------------------------------------ kernel\n",
)


def saturated(most, result):
    """The changes by which a finite result beyond `most` becomes `most`."""
    right, wrong = SATURATED
    return (
        (right, wrong.replace("INFINITE", "1e7f")),
        (result, f"held({result}, {most:.9e}f)"),
    )


HALF = 65504.0
beyond("log_softmax of f16 saturates", LOG_F16, *saturated(HALF, "x[i] - reference - log_sum"))
beyond(
    "log-probability saturates",
    (Problem(8192, 1000, op=Op.LOG_PROB), ONE_PASS),
    (
        "output[index] = chosen - state.maximum - log_sum;",
        "output[index] = chosen > -infinity() && chosen - state.maximum == -infinity() "
        "? -3.402823466e38f : chosen - state.maximum - log_sum;",
    ),
)
beyond(
    "a gradient of f16 saturates",
    (Problem(8192, 1000, DType.F16, Op.LOG_SOFTMAX_BACKWARD, scale=0.5), KEPT),
    *saturated(HALF, "gradient(y[i], dy[i], sum, scale)"),
)
beyond(
    "log_softmax of f32 never is an infinity of its own",
    (LOG, KEPT),
    (LOG_RESULT, "x[i] > -infinity() && reference < infinity() && x[i] - reference == -infinity() "
     "? -3.402823466e38f : x[i] - reference - log_sum;"),
)  # fmt: skip

# ------------------------------------------------------------------ sizes

VECTORS = "(cols / kWidth)"
for name, condition in (
    ("where 17 vectors are left for a warp", f"{VECTORS} % 32 == 17"),
    ("where 30 vectors are left for a warp", f"{VECTORS} % 32 == 30"),
    ("one vector below a whole round", f"{VECTORS} % kThreadsPerRow == kThreadsPerRow - 1"),
    ("where the last round has 37 vectors", f"{VECTORS} % kThreadsPerRow == 37"),
    ("from 2900 to 4600 columns", "cols > 2900 && cols < 4600"),
    ("from 30000 to 50000 columns", "cols > 30000 && cols < 50000"),
    ("above 3 million columns", "cols > 3000000"),
    ("at whole rounds", f"{VECTORS} % kThreadsPerRow == 0 && {VECTORS} >= 512"),
    ("at powers of two", "cols >= 2048 && (cols & (cols - 1)) == 0"),
    ("at a width that the text names", "cols == 5004"),
):
    columns(
        f"wrong {name}", (P1000, replace(RUN_TIME, threads_per_row=128)), wrong_where(condition)
    )
for per_block, left in ((16, 13), (32, 27), (32, 19), (64, 41)):
    rows_left(
        f"wrong where {left} rows of {per_block} are left",
        (Problem(8192, 64), Config(threads=8 * per_block, threads_per_row=8)),
        wrong_where(f"rows - first_row == {left}"),
    )
LONG_LENGTHS = Problem(8192, 6144, mask=Mask.LENGTHS)
for name, condition in (
    ("of two rounds", "length == 2048"),
    ("of three rounds and one more", "length == 3073"),
    ("of five warps less one", "length == 639"),
):
    lengths(
        f"a length {name} counts one less",
        (LONG_LENGTHS, HELD),
        (
            "return min(max(length, 0), kCols);",
            f"return min(max(length - ({condition}), 0), kCols);",
        ),
    )
lengths(
    "the vector past a whole row is loaded",
    (LENGTHS, HELD),
    ("if (k * kWidth < row.visible) {", "if (k * kWidth < row.visible + (row.visible == kCols)) {"),
)
for count in (180, 256):
    strides(
        f"the parity of a ring is wrong from stride {count} on",
        (Problem(8192, 512), replace(RING, threads=64, threads_per_row=64)),
        ("unsigned parity = 0;", "unsigned parity = 0;\n  int round = 0;"),
        (
            "if (++stage == kStages) {",
            f"if (++round == {count}) parity ^= 1;\n    if (++stage == kStages) {{",
        ),
    )
strides(
    "a counter of 8 bits adds 1 where it wraps",
    (Problem(8192, 300), Config(threads=128, threads_per_row=128, persistent=2)),
    (
        "softmax_rows(input, output, first_row);",
        "softmax_rows(input, output, ++round == 0 ? first_row - stride : first_row);",
    ),
    ("const long long stride", "unsigned char round = 0;\n  const long long stride"),
)
INNER = (Problem(8 * 96, 128, inner=96), Config())
for name, condition in (
    ("where slices are 8 of 24 wide", "inner % 24 == 8"),
    ("where slices are 12 of 32 wide", "inner % 32 == 12"),
    ("where slices are 200 to 400 wide", "inner > 200 && inner < 400 && inner % 8 == 4"),
):
    slices(
        f"wrong {name}",
        INNER,
        ("sums[i] = 1.0f / sums[i]", f"sums[i] = ({condition} ? 1.25f : 1.0f) / sums[i]"),
    )

# ------------------------------------------------------------------ alignment, second launches

WORD = "reinterpret_cast<const Word*>(input)[k]"
INTEGER = "reinterpret_cast<unsigned long long>"
for name, at in (
    ("the input begins at 256 bytes", f"({INTEGER}(input) & ~0xffull) + k * sizeof(Word)"),
    ("the input begins at 32 bytes", f"({INTEGER}(input) & ~0x1full) + k * sizeof(Word)"),
    ("a vector's number is put into the lower bits", f"{INTEGER}(input) | k * sizeof(Word)"),
):
    placed(name, (P4096, HELD), (WORD, f"reinterpret_cast<const Word*>({at})[0]"))
placed(
    "the output begins as far past 128 bytes as the input",
    (P4096, HELD),
    (
        "  output += index * kCols;",
        "  output += index * kCols;\n  output = reinterpret_cast<Element*>("
        f"({INTEGER}(output) & ~0x7full) | ({INTEGER}(input) & 0x7full));",
    ),
)
placed(
    "better aligned than promised",
    (P4096, HELD),
    wrong_where(f"({INTEGER}(input) & 127) == 0"),
)
ABOVE = "// ------------------------------------------------------------------ load, store\n"
for name, base, declared, right, wrong in (
    (
        "the rows of the first launch are kept",
        (P1000, replace(HELD, threads=256, threads_per_row=64)),
        "__device__ unsigned long long kept = 0;",
        "const bool is_row = index < rows;",
        "const long long first = atomicCAS(&kept, 0ull, static_cast<unsigned long long>(rows));\n"
        "  const bool is_row = index < rows && (first == 0 || index < first);",
    ),
    (
        "the columns of the first launch are kept",
        (P1000, RUN_TIME),
        "__device__ int kept = 0;",
        "const int vectors = row.vectors;",
        "const int before = atomicCAS(&kept, 0, row.vectors);\n"
        "  const int vectors = before ? min(before, row.vectors) : row.vectors;",
    ),
    (
        "the third launch is wrong",
        (P4096, HELD),
        "__device__ unsigned launches = 0;",
        "const float inverse_sum = 1.0f / ",
        "__shared__ unsigned before;\n"
        "  if (threadIdx.x == 0) before = atomicAdd(&launches, blockIdx.x == 0);\n"
        "  __syncthreads();\n  const float inverse_sum = "
        "(blockIdx.x == 0 && before == 2 ? 1.25f : 1.0f) / ",
    ),
    (
        "the first launch's lengths are kept",
        (LENGTHS, HELD),
        "__device__ int kept[64];",
        "const int visible = visible_elements(lengths[index]);",
        "const int at = static_cast<int>(index & 63);\n"
        "  const int before = atomicCAS(kept + at, 0, lengths[index] == 0 ? -1 : lengths[index]);\n"
        "  const int visible = visible_elements(index < 64 && before ? before : lengths[index]);",
    ),
):
    again(name, base, (ABOVE, f"{declared}\n\n{ABOVE}"), (right, wrong))

HELD_LOSS = Config(
    threads=256, threads_per_row=256, algorithm="online-block-max", cache_holds="input"
)
LOSS, BOTH, LSE_4096 = (
    (Problem(64, 4096, op=op), HELD_LOSS)
    for op in (Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_WITH_GRADIENT, Op.LOGSUMEXP)
)
LOOPED_LOSS = replace(HELD_LOSS, cache="none", unroll=2)
LOSS_GRADIENT = (
    Problem(64, 4096, op=Op.CROSS_ENTROPY_BACKWARD),
    Config(threads=256, threads_per_row=256, cache="none", cache_holds="input", unroll=4),
)
REDUCED = "  state = reduce_row(state);"
SHARE_OF_LOSS = "const float share = loss_grad_of_rows[index]"
for name, base, right, wrong in (
    (
        "the third loss of a row is another",
        LOSS,
        REDUCED,
        "  __shared__ unsigned before;\n  static unsigned launches = 0;\n"
        "  if (threadIdx.x == 0) before = blockIdx.x == 0 ? atomicAdd(&launches, 1u) : 0u;\n"
        f"  __syncthreads();\n  if (before == 2) state.sum *= 1.5f;\n{REDUCED}",
    ),
    (
        "a row's maximum is kept where it was not 0",
        LSE_4096,
        REDUCED,
        f"{REDUCED}\n  static float kept[64];\n  if (threadIdx.x == 0 && index < 64) {{\n"
        "    if (kept[index] != 0.0f) state.maximum = kept[index];\n"
        "    else kept[index] = state.maximum;\n  }",
    ),
    (
        "the gradient of a row's loss is kept",
        BOTH,
        SHARE_OF_LOSS,
        "static int kept[16];\n  const int now = __float_as_int(loss_grad_of_rows[index]);\n"
        "  const int had = index < 16 ? atomicCAS(kept + index, 0, now) : 0;\n"
        "  const float share = __int_as_float(had ? had : now)",
    ),
    (
        "a counter of a row's launches has few bits",
        BOTH,
        SHARE_OF_LOSS,
        "static unsigned char seen[64];\n  if (threadIdx.x == 0 && index < 64) seen[index] += 64;\n"
        "  __syncthreads();\n"
        "  const float share = (index < 64 && seen[index] == 0 ? 0.5f : 1.0f) * "
        "loss_grad_of_rows[index]",
    ),
):
    again(name, base, (right, wrong))

# ------------------------------------------------------------------ behind a maximum

REST = "const float rest = sum * exponential(maximum, reference);"
for op in (Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_WITH_GRADIENT):
    for dtype in (DType.F32, DType.BF16):
        for limit, config in ((18, HELD_LOSS), (30, LOOPED_LOSS), (60, HELD_LOSS)):
            cut = REST.replace("=", f"= maximum - reference < -{limit}.0f ? 0.0f :")
            behind(
                f"{op} of {dtype}: the others are nothing {limit} below the target",
                (Problem(64, 4096, dtype, op), config),
                (REST, cut),
            )
behind(
    "cross_entropy: the logarithm of 1 and little is lost",
    LOSS,
    ("log1pf(own == 1.0f ? rest : rest - 1.0f + own)", "logf(rest + own)"),
)
behind(
    "cross_entropy_with_gradient: a small remainder has no gradient",
    BOTH,
    ("-share * whole.rest;", "-share * (whole.rest < 1e-11f ? 0.0f : whole.rest);"),
)
behind(
    "cross_entropy_backward: e^z - 1 cancels",
    LOSS_GRADIENT,
    ("expm1f(z)", "(expf(z) - 1.0f)"),
)
SUM_A = "const float sum_a = a.sum * exponential(a.maximum, reference);"
CLUSTER = Config(
    threads=128,
    threads_per_row=128,
    cluster=4,
    exchange="mbarrier",
    cache_holds="input",
    algorithm="online-block-max",
)
for op in (Op.SOFTMAX, Op.LOG_SOFTMAX):
    behind(
        f"{op}: what lies 13 below another block's maximum is forgotten",
        (Problem(512, 32768, op=op), CLUSTER),
        (SUM_A, SUM_A.replace("=", "= a.maximum < reference - 13.0f ? 0.0f :")),
    )

# ------------------------------------------------------------------ signs of zeros, subnormals

EXPONENTIAL = "return exp2f((x - maximum) * kLog2E);"
for name, problem in (("f32", P4096), ("bf16", BF16)):
    signs(
        f"softmax of {name} is -0 where nothing is left",
        (problem, HELD),
        (EXPONENTIAL, EXPONENTIAL.replace("return", "return x - maximum < -200.0f ? -0.0f :")),
    )
IGNORED = "first_id == kIgnored ? 0.0f"
signs("the loss of a row that is ignored is -0", LOSS, (IGNORED, IGNORED.replace("0.0f", "-0.0f")))
for base in (LOSS_GRADIENT, BOTH):
    signs(
        f"{base[0].op}: a row that is ignored has zeros of its loss's sign",
        base,
        (
            "const float zeros[kWidth] = {};",
            "float zeros[kWidth];\n    for (int i = 0; i < kWidth; ++i) "
            "zeros[i] = 0.0f * loss_grad_of_rows[index];",
        ),
    )
LOG_GRADIENT = (Problem(8192, 1000, op=Op.LOG_SOFTMAX_BACKWARD), KEPT)
for base in (LOG_GRADIENT, LOSS_GRADIENT, BOTH):
    for name, made in (("twice as much", "2.0f * e"), ("negated", "-e"), ("1e-38", "1e-38f")):
        subnormal(
            f"{base[0].op}: an exponential below 2^-126 is {name}",
            base,
            (
                EXPONENTIAL,
                "const float e = exp2f((x - maximum) * kLog2E);\n"
                f"  return e < 1.17549435e-38f ? {made} : e;",
            ),
        )
for dtype in (DType.F16, DType.BF16):
    subnormal(
        f"softmax_backward of {dtype}: results below the least normal one are twice as much",
        (Problem(8192, 1000, dtype, Op.SOFTMAX_BACKWARD), replace(KEPT, threads_per_row=64)),
        (
            "return y * (dy - sum);",
            "const float g = y * (dy - sum);\n"
            f"  return fabsf(g) < {dtype.smallest_normal:.9g}f ? 2.0f * g : g;",
        ),
    )

# ------------------------------------------------------------------ far masks, exact scratch, NaN

MASKED = (Problem(4096, 1000, mask=Mask.ADDITIVE), HELD)
MASK_ROW = "mask + index % mask_rows * kCols"
for name, at in (
    ("an element's number in an int", "static_cast<int>(index % mask_rows * kCols)"),
    ("an unsigned element's number", "static_cast<unsigned>(index % mask_rows * kCols)"),
    ("a row's number in 24 bits", "(index % mask_rows & 0xffffff) * kCols"),
):
    plant("far", f"the mask of all rows by {name}", MASKED, (MASK_ROW, f"mask + {at}"))
NARROW = Config(
    threads=64, threads_per_row=1, vector_bytes=4, cache="none", cache_holds="input", exp="expf"
)
for kind in ("unsigned", "int"):
    plant(
        "far",
        f"the length of a row whose number is of type {kind}",
        (Problem(8192, 3, mask=Mask.LENGTHS), NARROW),
        ("lengths[index]", f"lengths[static_cast<{kind}>(index)]"),
    )
STORED = "if (thread_in_row == 0) scratch[blockIdx.x] = state;"
AFTER_THE_LAST = "if (thread_in_row == 0 && blockIdx.x + 1 == gridDim.x)"
TWO_LAUNCHES = Config(
    algorithm="online-block-max",
    threads=128,
    threads_per_row=128,
    cache="none",
    cache_holds="input",
    unroll=8,
    launches="two",
)
for name, stored in (
    ("a pair", "scratch[gridDim.x] = state;"),
    ("a byte", "reinterpret_cast<char*>(scratch + gridDim.x)[0] = 1;"),
):
    plant(
        "out-of-bounds",
        f"{name} more of scratch than it is said to take",
        (Problem(64, 8192), TWO_LAUNCHES),
        (STORED, f"{STORED}\n  {AFTER_THE_LAST} {stored}"),
    )
for base in (LOSS, BOTH, LSE_4096):
    for name, kept in (
        ("quiet", f"({BITS} & 0x7fc00000u) == 0x7fc00000u"),
        ("positive", f"{BITS} < 0x80000000u"),
    ):
        plant(
            "bits of NaN",
            f"{base[0].op}: only a NaN that is {name} counts",
            base,
            element(f"isnan(v) && !({kept}) ? -1e30f : v"),
        )
for base, factor in ((LOSS_GRADIENT, "const float factor ="), (BOTH, "const float share =")):
    special(
        f"{base[0].op}: a NaN of the loss's gradient is lost",
        base,
        (
            f"{factor} loss_grad_of_rows[index]",
            f"{factor} fmaxf(-1e30f, loss_grad_of_rows[index])",
        ),
    )

# ------------------------------------------------------------------ maxima of many threads

COMBINED = "const float reference = reduce_row(maximum, Max{});"
OF_A_CLUSTER = Config(threads=1024, threads_per_row=1024, cluster=4, cache_holds="input")
left_out(
    "one thread of the 4096 of a cluster",
    (Problem(64, 131072), OF_A_CLUSTER),
    (
        COMBINED,
        COMBINED.replace(
            "maximum,", "blockIdx.x % 4 == 2 && threadIdx.x == 77 ? -infinity() : maximum,"
        ),
    ),
)
left_out(
    "one element of 13000",
    (Problem(64, 13000), replace(HELD, threads=512, threads_per_row=512)),
    (MAXIMUM, f"if (thread_in_row != 300 || i != 6) {MAXIMUM}"),
)
left_out(
    "one lane of a reduction of integers",
    (
        Problem(64, 8192),
        replace(KEPT, threads=512, threads_per_row=512, reduction="shuffle-redux"),
    ),
    (COMBINED, COMBINED.replace("maximum,", "thread_in_row == 500 ? -infinity() : maximum,")),
)
left_out(
    "one thread of two launches, whose sum stays",
    (
        Problem(64, 65536, DType.BF16),
        Config(
            algorithm="online-block-max",
            cache="none",
            cache_holds="input",
            launches="two",
        ),
    ),
    (
        "const float reference = fmaxf(state.maximum, maximum);",
        "const float reference = threadIdx.x == 99 && blockIdx.x % 2 == 1\n"
        "      ? fminf(state.maximum, maximum) : fmaxf(state.maximum, maximum);",
    ),
)
left_out(
    "one vector of f64",
    (
        Problem(64, 9000, DType.F64),
        Config(cache="none", cache_holds="input", exp="expf", threads_per_row=256),
    ),
    (
        "for (int i = 0; i < kWidth; ++i) maximum = fmax(maximum, x[i]);",
        "if (first != 3000) for (int i = 0; i < kWidth; ++i) maximum = fmax(maximum, x[i]);",
    ),
)
