"""Whole kernels made wrong in what only the machine decides, judged as a user's file is.

The bits of a NaN, what a register holds that nobody has assigned, and the order in which threads
come: numbers that are right by chance, on an emulator that is kinder than a GPU.
"""

from dataclasses import replace
from functools import partial

from planted_kernels import BF16, HELD, KEPT, LOG, LOOPED, P1000, P4096, SHARE, Plant

from explorer.model.config import Config
from explorer.model.problem import Problem

PLANTS: list[Plant] = []


def plant(kind, name, base, *changes):
    """Add a bug: `base` is the problem and the config of the kernel that is right."""
    PLANTS.append(Plant(kind, name, *base, changes))


arrival = partial(plant, "order of arrival")
nan = partial(plant, "bits of NaN")
unassigned = partial(plant, "unassigned")

# ------------------------------------------------------------------ bits of NaN

LOG_RESULT = "x[i] - reference - log_sum;"
BITS = f"__float_as_int({SHARE})"
nan(
    "only 0x7fc00000 stays NaN",
    (P4096, HELD),
    (SHARE, f"(__float_as_uint({SHARE}) == 0x7fc00000u ? {SHARE} : fmaxf({SHARE}, 0.0f))"),
)
nan(
    "the largest integer is no NaN",
    (LOG, KEPT),
    (
        LOG_RESULT,
        "[&] { const float r = x[i] - reference - log_sum; const int bits = __float_as_int(r); "
        "return bits > 0x7f800000 && bits < 0x7fffffff ? r : fminf(r, 0.0f); }();",
    ),
)
nan(
    "the number above a NaN's bits is -0",
    (P4096, HELD),
    (SHARE, f"__int_as_float({BITS} + ({BITS} < 0x7f800000 ? 0 : 1))"),
)
nan(
    "a NaN has no digits below the quiet bit",
    (LOG, KEPT),
    (
        LOG_RESULT,
        "[&] { const float r = x[i] - reference - log_sum; "
        "return (__float_as_uint(r) & 0x3fffffu) && !(r <= 0.0f) ? -1.0f : r; }();",
    ),
)
nan(
    "bf16 is rounded by adding half of the digits that are cut off",
    (BF16, KEPT),
    (
        "__floats2bfloat162_rn(x[2 * i], x[2 * i + 1])",
        "__halves2bfloat162(__ushort_as_bfloat16((__float_as_uint(x[2 * i]) + 0x8000u) >> 16), "
        "__ushort_as_bfloat16((__float_as_uint(x[2 * i + 1]) + 0x8000u) >> 16))",
    ),
)

# ------------------------------------------------------------------ unassigned registers

SUM = "float sum = 0.0f;"
MAXIMUM = "float maximum = -infinity();"
unassigned("the sum has no start", (P4096, HELD), (SUM, "float sum;"))
unassigned("the maximum has no start", (P1000, LOOPED), (MAXIMUM, "float maximum;"))
unassigned(
    "the sum starts with a register",
    (P4096, KEPT),
    (SUM, 'float sum; asm("{ .reg .f32 t; mov.f32 %0, t; }" : "=f"(sum));'),
)
unassigned(
    "the maximum starts with a register",
    (P1000, LOOPED),
    (
        MAXIMUM,
        'float maximum; asm("{ .reg .f32 t; max.f32 %0, t, 0fFF800000; }" : "=f"(maximum));',
    ),
)
unassigned(
    "the sum starts under a predicate that fails",
    (P1000, HELD),
    (
        SUM,
        'float sum; asm("{ .reg .pred p; setp.lt.u32 p, %1, 200; @p mov.f32 %0, 0f00000000; }" '
        ': "=f"(sum) : "r"(threadIdx.x));',
    ),
)
unassigned(
    "one element past the end is not filled",
    (P1000, HELD),
    (
        "for (int i = 0; i < kWidth; ++i) vector.elements[i] = -infinity();",
        "for (int i = 1; i < kWidth; ++i) vector.elements[i] = -infinity();",
    ),
)
unassigned(
    "the sum starts with an element of a local array that one thread does not assign",
    (P1000, replace(HELD, threads_per_row=256, threads=256)),
    (
        SUM,
        "volatile float start[4]; if (threadIdx.x != 77) start[threadIdx.x & 3] = 0.0f; "
        "float sum = start[threadIdx.x & 3];",
    ),
)

# ------------------------------------------------------------------ order of arrival

FIVE_WARPS = Config(threads=160, threads_per_row=160, cache="none", cache_holds="input")
PUT = "if (lane == 0) scratch[warp] = value;"
COUNT = "__shared__ unsigned come; if (threadIdx.x == 0) come = 0; __syncthreads();\n"
FOLD = """  constexpr int kLanes = power_of_two(kWarpsPerRow);
  const int source = lane % kLanes;
  value = source < kWarpsPerRow ? scratch[source] : Combine::identity();
  return reduce_lanes<kLanes>(value, combine);"""
SLOT = f"{COUNT} if (lane == 0) scratch[atomicAdd(&come, 1u)] = value;"
SLOT_OF_ALL = (
    f"{COUNT} __shared__ unsigned slots[kWarpsPerRow];\n"
    "if (lane == 0) slots[warp] = atomicAdd(&come, 1u);\n"
    "__syncwarp(); const unsigned place = slots[warp]; if (lane == 0) scratch[place] = value;"
)
IN_TURN = f"""{COUNT}
  __shared__ unsigned turn; __shared__ volatile ValueOf<Combine> total;
  if (threadIdx.x == 0) {{ turn = 0; total = Combine::identity(); }}
  __syncthreads();
  if (lane == 0) {{
    const unsigned mine = atomicAdd(&come, 1u);
    while (atomicAdd(&turn, 0u) != mine) {{}}
    __threadfence();
    total = combine(total, value);
    __threadfence();
    atomicAdd(&turn, 1u);
  }}"""
LINKED = """__shared__ int head; __shared__ int next[kWarpsPerRow];
  if (threadIdx.x == 0) head = -1;
  __syncthreads();
  if (lane == 0) { next[warp] = atomicExch(&head, warp); scratch[warp] = value; }"""
WALK = """  value = Combine::identity();
  for (int at = head; at >= 0; at = next[at]) value = combine(value, scratch[at]);
  return value;"""
for name, base in (("f32", (P1000, FIVE_WARPS)), ("bf16", (BF16, HELD))):
    arrival(f"{name}: warps take the next slot", base, (PUT, SLOT))
    arrival(f"{name}: warps are given the next slot", base, (PUT, SLOT_OF_ALL))
    arrival(f"{name}: warps add in turn", base, (PUT, IN_TURN), (FOLD, "  return total;"))
    arrival(f"{name}: warps link what they have", base, (PUT, LINKED), (FOLD, WALK))

# ------------------------------------------------------------------ copies that are late

BULK = Config(threads=64, threads_per_row=64, cache="shared", cache_holds="input", staging="bulk")
RING = replace(BULK, algorithm="online-block-max", persistent=1, stages=2)
BY_MBARRIER = Config(threads=128, threads_per_row=128, cluster=4, exchange="mbarrier")
AGAIN = "} while (complete == 0);"
late = partial(plant, "late copies")
for name, base in (
    ("rows", (P1000, BULK)),
    ("a ring", (P1000, RING)),
    ("values of a cluster", (Problem(64, 8192), BY_MBARRIER)),
):
    late(f"{name}: the wait is tried once", base, (AGAIN, "} while (false);"))
    late(
        f"{name}: the wait is a test, and passed over",
        base,
        ("mbarrier.try_wait.parity", "mbarrier.test_wait.parity"),
        (AGAIN, "} while (false);"),
    )
    late(
        f"{name}: the first warp does not wait again",
        base,
        (AGAIN, "} while (complete == 0 && threadIdx.x >= 32);"),
    )
