# ruff: noqa: E501 - lines of CUDA and PTX
"""Floating-point instructions against an independent computation."""

from fractions import Fraction
from math import erf

import ml_dtypes
import numpy as np
import pytest
from apply_ptx import apply

from explorer.ptx_emulator.arithmetic import fma64

BF16 = ml_dtypes.bfloat16
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2.0**-126, 3.4e38, 0.5, -2.5],
    np.float32,
)


def pairs(values=SPECIAL):
    a, b = np.meshgrid(values, values)
    return a.ravel().astype(values.dtype), b.ravel().astype(values.dtype)


def same(got, want):
    """Bit for bit, but any NaN is any other."""
    kind = np.dtype(f"u{got.dtype.itemsize}")
    both_nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    return np.all(both_nan | (got.view(kind) == want.astype(got.dtype).view(kind)))


def round_exactly(value, mode):
    """A Fraction rounded to float32 by exact comparison, for normal and subnormal results."""
    near = np.float32(float(value))
    if np.isinf(near):
        near = np.float32(np.copysign(3.4028235e38, near))
    ends = np.float32(-np.inf), np.float32(np.inf)
    candidates = [float(near), *(float(np.nextafter(near, end)) for end in ends)]
    finite = [c for c in candidates if np.isfinite(c)]
    below = max((c for c in finite if Fraction(c) <= value), default=None)
    above = min((c for c in finite if Fraction(c) >= value), default=None)
    if mode == "rm" or (mode == "rz" and value > 0):
        return below
    if mode == "rp" or (mode == "rz" and value < 0):
        return above
    if below == above:
        return below
    middle = (Fraction(below) + Fraction(above)) / 2
    if value != middle:
        return below if value < middle else above
    return below if np.float32(below).view(np.uint32) % 2 == 0 else above


def exact_operands(count=300):
    rng = np.random.default_rng(3)
    a = (rng.normal(size=count) * 2.0 ** rng.integers(-60, 20, count)).astype(np.float32)
    b = (rng.normal(size=count) * 2.0 ** rng.integers(-60, 20, count)).astype(np.float32)
    c = (a.astype(np.float64) * b * rng.choice([-1, 2.0**-24, 3 * 2.0**-25, 1.5], count)).astype(
        np.float32
    )
    return a, b, c


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_rounds_once(mode):
    a, b, c = exact_operands()
    got = apply(
        f"fma.{mode}.f32 {{d}}, {{a}}, {{b}}, {{c}}", "f32", ("f32", a), ("f32", b), ("f32", c)
    )
    for x, y, z, value in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact:
            assert float(value) == round_exactly(exact, mode), (x, y, z)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_arithmetic_in_every_rounding_mode(op, mode):
    a, b, _ = exact_operands(200)
    b[b == 0] = 1
    got = apply(f"{op}.{mode}.f32 {{d}}, {{a}}, {{b}}", "f32", ("f32", a), ("f32", b))
    for x, y, value in zip(a, b, got, strict=True):
        p, q = Fraction(float(x)), Fraction(float(y))
        exact = {"add": p + q, "sub": p - q, "mul": p * q, "div": p / q}[op]
        if exact and abs(exact) < Fraction(3e38):
            assert float(value) == round_exactly(exact, mode), (x, y)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("add.f32", np.add),
        ("sub.f32", np.subtract),
        ("mul.f32", np.multiply),
        ("div.rn.f32", np.divide),
    ],
)
def test_special_values(op, function):
    a, b = pairs()
    with np.errstate(all="ignore"):
        want = function(a, b)
    assert same(apply(f"{op} {{d}}, {{a}}, {{b}}", "f32", ("f32", a), ("f32", b)), want)


def test_ftz_flushes_operands_and_results():
    a = np.array([1e-40, -1e-40, 2.0**-126, 2.0**-126, 1.0], np.float32)
    b = np.array([1.0, 1.0, 1.0, 0.5, 1.0], np.float32)
    got = apply("mul.ftz.f32 {d}, {a}, {b}", "f32", ("f32", a), ("f32", b))
    assert same(got, np.array([0.0, -0.0, 2.0**-126, 0.0, 1.0], np.float32))


def test_sat_clamps_and_turns_nan_to_zero():
    a = np.array([-1.0, 0.25, 2.0, np.nan, -0.0, np.inf], np.float32)
    got = apply("add.sat.f32 {d}, {a}, 0f00000000", "f32", ("f32", a))
    assert same(got, np.array([0, 0.25, 1, 0, 0, 1], np.float32))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("nan", [False, True])
def test_min_max_of_nan_and_signed_zeros(op, nan):
    a, b = pairs()
    got = apply(
        f"{op}{'.NaN' if nan else ''}.f32 {{d}}, {{a}}, {{b}}", "f32", ("f32", a), ("f32", b)
    )
    for x, y, value in zip(a, b, got, strict=True):
        if np.isnan(x) or np.isnan(y):
            other = y if np.isnan(x) else x
            assert np.isnan(value) if nan or np.isnan(other) else value == other
        elif x == 0 and y == 0:
            want = (
                (np.signbit(x) or np.signbit(y)) if op == "min" else np.signbit(x) and np.signbit(y)
            )
            assert np.signbit(value) == want
        else:
            assert value == (min(x, y) if op == "min" else max(x, y))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("count", [1, 3, 32])
def test_min_max_pass_over_a_nan_that_signals(op, count):
    """In however few lanes: NumPy's own functions keep it in what is left of whole vectors."""
    signals = np.full(count, 0xFF800001, np.uint32).view(np.float32)
    numbers = np.full(count, -9, np.float32)
    for a, b in ((signals, numbers), (numbers, signals)):
        got = apply(f"{op}.f32 {{d}}, {{a}}, {{b}}", "f32", ("f32", a), ("f32", b))
        assert list(got) == list(numbers)


def test_three_operand_max():
    a = np.array([1, 5, 2], np.float32)
    b = np.array([4, 2, 2], np.float32)
    c = np.array([3, 3, 9], np.float32)
    got = apply("max.f32 {d}, {a}, {b}, {c}", "f32", ("f32", a), ("f32", b), ("f32", c))
    assert list(got) == [4, 5, 9]


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("lg2.approx.f32", np.log2),
        ("rcp.rn.f32", lambda a: 1 / a),
        ("rcp.approx.f32", lambda a: 1 / a),
        ("sqrt.rn.f32", np.sqrt),
        ("rsqrt.approx.f32", lambda a: 1 / np.sqrt(a)),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
    ],
)
def test_functions_are_rounded_once(op, function):
    values = np.concatenate([SPECIAL, np.linspace(-30, 30, 51).astype(np.float32)])
    with np.errstate(all="ignore"):
        want = function(values.astype(np.float64)).astype(np.float32)
    assert same(apply(f"{op} {{d}}, {{a}}", "f32", ("f32", values)), want)


def test_tanh_has_the_largest_relative_error_that_is_allowed():
    of_a_sign = np.linspace(1e-3, 12, 10_000).astype(np.float32)
    values = np.concatenate([of_a_sign, -of_a_sign])
    got = apply("tanh.approx.f32 {d}, {a}", "f32", ("f32", values)).astype(np.float64)
    want = np.tanh(values.astype(np.float64))
    off = np.abs(got / want - 1)
    assert 0.9 * 2.0**-11 < off.max() <= 2.0**-11
    positive, negative = np.split(got, 2)
    assert np.all(positive == -negative)


def test_tanh_is_exact_where_the_manual_says_what_it_is():
    values = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan, 1e-45, -1.1e-39], np.float32)
    got = apply("tanh.approx.f32 {d}, {a}", "f32", ("f32", values))
    assert same(got, np.array([-1, -0.0, 0.0, 1, np.nan, 1e-45, -1.1e-39], np.float32))


def test_ex2_ftz_flushes_a_subnormal_result():
    values = np.array([-126.0, -126.5, -149.0, -150.0], np.float32)
    got = apply("ex2.approx.ftz.f32 {d}, {a}", "f32", ("f32", values))
    assert same(got, np.array([2.0**-126, 0, 0, 0], np.float32))
    kept = apply("ex2.approx.f32 {d}, {a}", "f32", ("f32", values))
    assert kept[2] == np.float32(2.0**-149)


def test_div_approx_of_a_huge_divisor_is_zero():
    a = np.array([1, 2.0**100, np.inf, 3], np.float32)
    b = np.array([2.0**127, 2.0**127, 2.0**127, 2], np.float32)
    got = apply("div.approx.f32 {d}, {a}, {b}", "f32", ("f32", a), ("f32", b))
    assert got[0] == 0 and got[1] == 0 and np.isnan(got[2]) and got[3] == 1.5


@pytest.mark.parametrize("op", ["neg", "abs"])
def test_sign_instructions_in_boxes_of_lanes(op):
    # A box of lanes with a stride: every fourth one.
    values = np.arange(-16, 16, dtype=np.float32)
    lanes = np.arange(32, dtype=np.uint32)
    text = (
        "{{.reg .pred %p; .reg .u32 %m; and.b32 %m, {b}, 3; setp.eq.u32 %p, %m, 1; "
        f"mov.b32 {{d}}, {{a}}; @%p {op}.f32 {{d}}, {{a}};}}}}"
    )
    got = apply(text, "f32", ("f32", values), ("u32", lanes))
    function = np.negative if op == "neg" else np.abs
    assert same(got, np.where(lanes % 4 == 1, function(values), values))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "min", "max"])
def test_half_arithmetic(name, op):
    dtype = np.dtype(np.float16 if name == "f16" else BF16)
    rng = np.random.default_rng(1)
    a = (rng.normal(size=200) * 2.0 ** rng.integers(-10, 10, 200)).astype(dtype)
    b = (rng.normal(size=200) * 2.0 ** rng.integers(-10, 10, 200)).astype(dtype)
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum,
                "max": np.maximum}[op]  # fmt: skip
    want = function(a.astype(np.float64), b.astype(np.float64)).astype(np.float32).astype(dtype)
    assert same(apply(f"{op}.{name} {{d}}, {{a}}, {{b}}", name, (name, a), (name, b)), want)


@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_packed_fma_rounds_once(name):
    dtype = np.dtype(np.float16 if name == "f16x2" else BF16)
    rng = np.random.default_rng(2)
    a, b, c = (rng.normal(size=128).astype(dtype) for _ in range(3))
    words = [x.view(np.uint32) for x in (a, b, c)]
    got = apply(f"fma.rn.{name} {{d}}, {{a}}, {{b}}, {{c}}", name, *[(name, w) for w in words])
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    want = exact.astype(np.float32).astype(dtype) if name == "bf16x2" else exact.astype(dtype)
    assert same(got.view(dtype), want)


def test_copysign_and_testp():
    a = np.array([-1.0, 1.0, -0.0], np.float32)
    b = np.array([3.0, -3.0, 3.0], np.float32)
    got = apply("copysign.f32 {d}, {a}, {b}", "f32", ("f32", a), ("f32", b))
    assert list(got) == [-3.0, 3.0, -3.0]
    values = np.array([1.0, np.inf, np.nan, 1e-40, 0.0], np.float32)
    for test, want in {"finite": [1, 0, 0, 1, 1], "infinite": [0, 1, 0, 0, 0],
                       "notanumber": [0, 0, 1, 0, 0], "subnormal": [0, 0, 0, 1, 0]}.items():  # fmt: skip
        assert list(apply(f"testp.{test}.f32 {{d}}, {{a}}", "pred", ("f32", values))) == want


def test_f64_fma_is_finer_than_separate_rounding():
    a = np.array([1 + 2.0**-30], np.float64)
    c = np.array([-1.0], np.float64)
    got = apply("fma.rn.f64 {d}, {a}, {b}, {c}", "f64", ("f64", a), ("f64", a), ("f64", c))
    assert got[0] == 2.0**-29 + 2.0**-60


def test_packed_ftz_and_sat():
    values = np.array([2.0**-20, -(2.0**-20), 0.25, 3.0], np.float16)
    zero = np.zeros(2, np.uint32)
    words = ("f16x2", values.view(np.uint32)), ("f16x2", zero)
    flushed = apply("add.ftz.f16x2 {d}, {a}, {b}", "f16x2", *words).view(np.float16)
    assert same(flushed, np.array([0, 0, 0.25, 3], np.float16))
    clamped = apply("add.sat.f16x2 {d}, {a}, {b}", "f16x2", *words).view(np.float16)
    assert same(clamped, np.array([2.0**-20, 0, 0.25, 1], np.float16))


@pytest.mark.parametrize("pair", ["__half2", "__nv_bfloat162"])
@pytest.mark.parametrize(
    ("call", "function"),
    [
        ("h2exp2", np.exp2),
        ("h2exp", np.exp),
        ("h2log", np.log),
        ("h2sqrt", np.sqrt),
        ("h2rcp", np.reciprocal),
    ],
)
def test_functions_of_half_pairs(run, out, pair, call, function):
    make = "__float2half2_rn" if pair == "__half2" else "__float2bfloat162_rn"
    source = f"""#include <cuda_fp16.h>
      #include <cuda_bf16.h>
      extern "C" __global__ void k(const float* x, float* y) {{ {pair} v = {make}(x[threadIdx.x]);
      y[threadIdx.x] = __high2float({call}(v)); }}"""
    dtype = np.float16 if pair == "__half2" else BF16
    x = np.linspace(0.2, 5, 32).astype(dtype).astype(np.float32)
    result = run(source, x, out(32))
    assert not result.findings, result.text
    np.testing.assert_allclose(
        result["out0"],
        function(x.astype(np.float64)),
        rtol=1e-3 if dtype is np.float16 else 8e-3,
        atol=1e-3,
    )


def test_pairs_of_f32():
    rng = np.random.default_rng(4)
    a, b, c = (rng.normal(size=64).astype(np.float32) for _ in range(3))
    words = [("f32x2", v.view(np.uint64)) for v in (a, b, c)]
    got = apply("fma.rn.f32x2 {d}, {a}, {b}, {c}", "f32x2", *words).view(np.float32)
    want = (a.astype(np.float64) * b + c).astype(np.float32)
    assert same(got, want)
    got = apply("add.rn.f32x2 {d}, {a}, {b}", "f32x2", *words[:2]).view(np.float32)
    assert same(got, a + b)


def test_float64_multiply_adds_are_rounded_once():
    """Also beside the middle of two numbers, where a sum of three terms decides."""
    rng = np.random.default_rng(7)
    a = rng.standard_normal(3000) * 10.0 ** rng.integers(-20, 20, 3000)
    b = rng.standard_normal(3000)
    c = rng.standard_normal(3000) * 10.0 ** rng.integers(-20, 20, 3000)
    c[::3] = -a[::3] * b[::3]
    a[1], b[1], c[1] = 1e38, 3.0, -0.5
    a[2], b[2], c[2] = -1e38, 3.0, 1.3
    a[4], b[4], c[4] = 2.0**-53 * (1 + 2.0**-52), 1.0, 1.0
    got = fma64(a, b, c)
    for x, y, z, sum_ in zip(a, b, c, got, strict=True):
        assert sum_ == nearest(Fraction(x) * Fraction(y) + Fraction(z))


def nearest(exact):
    """Return the float64 nearest to a fraction; Python raises where IEEE 754 gives infinity."""
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def test_float64_multiply_adds_of_huge_numbers_are_rounded_once():
    """The paper's algorithm splits its operands, which overflows from 2^996 on."""
    rng = np.random.default_rng(8)
    a = (
        rng.choice([-1.0, 1.0], 4000)
        * rng.uniform(1, 2, 4000)
        * 2.0 ** rng.integers(960, 1024, 4000)
    )
    b = rng.standard_normal(4000) * 2.0 ** rng.integers(-60, 3, 4000)
    c = rng.standard_normal(4000) * 2.0 ** rng.integers(-1000, 1021, 4000)
    c[::4] = -np.clip(a[::4] * b[::4], -1.7e308, 1.7e308)
    c[1::4] = 0.0
    greatest = np.finfo(np.float64).max
    # Three times a is exactly the middle between the greatest number and 2^1024.
    a[2:4], b[2:4], c[2:4] = float(Fraction(2**1024 - 2**970, 3)), 3.0, (-0.5, 0.5)
    # A product of 0, whose factor is huge all the same.
    b[4:8], c[4:8] = 0.0, (0.06, -50.0, 0.0, 1e300)
    a[6:10:2], b[6:10:2] = b[6:10:2], a[6:10:2].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        got = fma64(a, b, c)
    for x, y, z, sum_ in zip(a, b, c, got, strict=True):
        assert sum_ == nearest(Fraction(x) * Fraction(y) + Fraction(z))
    assert list(got[2:4]) == [greatest, np.inf]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_float64_multiply_add_of_infinities_is_that_of_the_unrounded_product():
    """A product that a float64 does not hold is finite still, so an infinite addend decides."""
    greatest = np.finfo(np.float64).max
    a = np.array([greatest, greatest, -greatest, np.inf, np.inf, 0.0, np.inf, greatest])
    b = np.array([3.0, 3.0, 3.0, 1.0, 1.0, np.inf, 0.0, 3.0])
    c = np.array([-np.inf, np.inf, np.inf, -1.0, -np.inf, 1.0, 1.0, np.nan])
    want = [-np.inf, np.inf, np.inf, np.inf, np.nan, np.nan, np.nan, np.nan]
    assert same(fma64(a, b, c), np.array(want))


def test_fast_math_of_the_compiler_is_known(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) { int t = threadIdx.x;
      float v = x[t]; y[t] = logf(v) + sqrtf(v) + rsqrtf(v) + powf(v, 1.5f) + tanhf(v) + erff(v)
      + sinf(v) + log1pf(v) + expm1f(v) + cbrtf(v) + fmodf(v, .7f) + rintf(v) + (float)(int)v; }"""
    x = np.linspace(0.1, 9, 32).astype(np.float32)
    result = run(source, x, out(32))
    d = x.astype(np.float64)
    want = np.log(d) + np.sqrt(d) + 1 / np.sqrt(d) + d**1.5 + np.tanh(d) + [erf(v) for v in d]
    want += np.sin(d) + np.log1p(d) + np.expm1(d) + np.cbrt(d) + np.fmod(d, np.float32(0.7))
    want += np.rint(d) + np.trunc(d)
    assert not result.findings, result.text
    np.testing.assert_allclose(result["out0"], want, rtol=2e-6)


@pytest.mark.parametrize(
    "instruction",
    ["add.f32 {d}, {a}, {b}", "sub.rz.f32 {d}, {a}, {b}", "mul.ftz.f32 {d}, {a}, {b}",
     "fma.rn.f32 {d}, {a}, {b}, {a}", "div.full.f32 {d}, {a}, {b}", "max.f32 {d}, {a}, {a}",
     "max.NaN.f32 {d}, {a}, {b}", "min.f32 {d}, {a}, {a}", "ex2.approx.ftz.f32 {d}, {a}",
     "rcp.approx.f32 {d}, {a}", "sqrt.rn.f32 {d}, {a}", "cvt.rni.f32.f32 {d}, {a}",
     "neg.f32 {d}, {a}"],
)  # fmt: skip
def test_a_nan_that_is_computed_has_the_bits_of_a_gpu(instruction):
    """PTX ISA, chapter "Floating Point Instructions": the canonical NaN, 0x7fffffff."""
    payloads = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFFFFFFF, 0x3F800000], np.uint32)
    a = payloads.view(np.float32)
    got = apply(instruction, "f32", ("f32", a), ("f32", np.ones_like(a)))
    assert got.view(np.uint32)[:4].tolist() == [0x7FFFFFFF] * 4
    assert not np.isnan(got[4])


@pytest.mark.parametrize(
    "instruction", ["mov.b32 {d}, {a}", "selp.f32 {d}, {a}, {b}, 1", "max.f32 {d}, {a}, {b}"]
)
def test_what_moves_or_passes_over_a_nan_keeps_bits(instruction):
    a = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32)
    got = apply(instruction, "f32", ("f32", a), ("f32", np.ones_like(a)))
    expected = np.ones_like(a) if instruction.startswith("max") else a
    assert got.tobytes() == expected.tobytes()


def test_sums_that_are_undefined_are_the_nan_of_a_gpu():
    """x86 gives its negative NaN for inf - inf."""
    a = np.array([np.inf, -np.inf], np.float32)
    got = apply("sub.f32 {d}, {a}, {b}", "f32", ("f32", a), ("f32", a))
    assert got.view(np.uint32).tolist() == [0x7FFFFFFF] * 2
    halves = a.astype(np.float16)
    got = apply("sub.f16 {d}, {a}, {b}", "f16", ("f16", halves), ("f16", halves))
    assert got.view(np.uint16).tolist() == [0x7FFF] * 2
    wide = apply("cvt.f32.bf16 {d}, {a}", "f32", ("bf16", np.array([np.nan] * 2, BF16)))
    assert wide.view(np.uint32).tolist() == [0x7FC00000] * 2
