"""Losses of capped logits made wrong in one place: tanh is not exact enough, or the cap is met
where the logit is not yet there."""

from functools import partial

from planted_kernels import Plant

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import Op

PLANTS: list[Plant] = []


def plant(kind, name, base, *changes):
    """Add a bug: `base` is the problem and the config of the kernel that is right."""
    PLANTS.append(Plant(kind, name, *base, changes))


caps = partial(plant, "caps of logits")

FORWARD = Config(algorithm="online-block-max", threads=128, threads_per_row=64, cache_holds="input")
BACKWARD = Config(threads=128, threads_per_row=64, cache="none", cache_holds="input", unroll=4)
OPS = {Op.CROSS_ENTROPY: FORWARD, Op.CROSS_ENTROPY_BACKWARD: BACKWARD}


def capped(op, cap, dtype=DType.F32):
    """A problem of capped logits, and a config for it."""
    return Problem(512, 1000, dtype, op, softcap=cap), OPS[op]


# ------------------------------------------------------------------ the tanh of the hardware

EXPONENTIAL = "  const float e = expf(-2.0f * fabsf(u));"
APPROXIMATE = (
    'float t; asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u)); '
    "return {kSoftcap * t, 1.0f - t * t};"
)
for op in OPS:
    for dtype in (DType.BF16, DType.F32):
        caps(
            f"tanh is that of the hardware, in {op.value} of {dtype.value}",
            capped(op, 30.0, dtype),
            (EXPONENTIAL, f"  {APPROXIMATE}\n{EXPONENTIAL}"),
        )

# ------------------------------------------------------------------ the cap is met too early

NUMBER = "return {kSoftcap * tanh_u,"


def at_the_cap(u):
    """The change by which numbers beyond `u` caps are the cap."""
    return NUMBER, f"return {{fabsf(u) > {u}f ? copysignf(kSoftcap, u) : kSoftcap * tanh_u,"


for op, cap, u in (
    (Op.CROSS_ENTROPY, 30.0, 6.0),
    (Op.CROSS_ENTROPY, 50.0, 6.0),
    (Op.CROSS_ENTROPY, 1000.0, 6.0),
    (Op.CROSS_ENTROPY, 1e5, 4.0),
    (Op.CROSS_ENTROPY, 1e5, 6.0),
    (Op.CROSS_ENTROPY_BACKWARD, 1000.0, 6.0),
    (Op.CROSS_ENTROPY_BACKWARD, 1e5, 4.0),
    (Op.CROSS_ENTROPY_BACKWARD, 1e5, 6.0),
):
    caps(f"{u:g} caps are the cap, {cap:g}, in {op.value}", capped(op, cap), at_the_cap(u))
