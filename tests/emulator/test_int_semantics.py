"""Integer, bitwise, conversion and selection instructions against Python's integers."""

import ml_dtypes
import numpy as np
import pytest
from apply_ptx import apply

from explorer.ptx_emulator.program import DTYPES

BF16 = ml_dtypes.bfloat16
rng = np.random.default_rng(7)


def values_of(ptx_type, count=60):
    dtype = DTYPES[ptx_type]
    info = np.iinfo(dtype)
    edge = [info.min, info.max, 0, 1, info.max - 1, info.max // 2]
    drawn = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(edge, dtype), drawn])


def wrap(value, ptx_type):
    dtype = DTYPES[ptx_type]
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    signed = np.issubdtype(dtype, np.signedinteger)
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def check(instruction, out_type, function, *operands):
    got = apply(instruction, out_type, *operands)
    arrays = [[int(v) for v in array] for _, array in operands]
    want = [wrap(function(*row), out_type) for row in zip(*arrays, strict=True)]
    assert [int(v) for v in got] == want


TYPES = ["u16", "s16", "u32", "s32", "u64", "s64"]


@pytest.mark.parametrize("t", TYPES)
def test_arithmetic(t):
    a, b = values_of(t), values_of(t)[::-1].copy()
    pair = ((t, a), (t, b))
    check(f"add.{t} {{d}}, {{a}}, {{b}}", t, lambda x, y: x + y, *pair)
    check(f"sub.{t} {{d}}, {{a}}, {{b}}", t, lambda x, y: x - y, *pair)
    check(f"mul.lo.{t} {{d}}, {{a}}, {{b}}", t, lambda x, y: x * y, *pair)
    bits = 8 * DTYPES[t].itemsize
    check(f"mul.hi.{t} {{d}}, {{a}}, {{b}}", t, lambda x, y: x * y >> bits, *pair)
    check(f"min.{t} {{d}}, {{a}}, {{b}}", t, min, *pair)
    check(f"max.{t} {{d}}, {{a}}, {{b}}", t, max, *pair)
    nonzero = np.where(b == 0, b.dtype.type(1), b)
    quotient = lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)  # noqa: E731
    check(f"div.{t} {{d}}, {{a}}, {{b}}", t, quotient, (t, a), (t, nonzero))
    check(
        f"rem.{t} {{d}}, {{a}}, {{b}}", t, lambda x, y: x - quotient(x, y) * y, (t, a), (t, nonzero)
    )


@pytest.mark.parametrize(
    ("t", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")]
)
def test_wide_and_mad(t, wide):
    a, b = values_of(t), values_of(t)[::-1].copy()
    c = values_of(wide)
    check(f"mul.wide.{t} {{d}}, {{a}}, {{b}}", wide, lambda x, y: x * y, (t, a), (t, b))
    check(f"mad.wide.{t} {{d}}, {{a}}, {{b}}, {{c}}", wide, lambda x, y, z: x * y + z,
          (t, a), (t, b), (wide, c))  # fmt: skip
    check(f"mad.lo.{t} {{d}}, {{a}}, {{b}}, {{c}}", t, lambda x, y, z: x * y + z,
          (t, a), (t, b), (t, a[::-1].copy()))  # fmt: skip


def test_signs_and_sad():
    a, b = values_of("s32"), values_of("s32")[::-1].copy()
    check("neg.s32 {d}, {a}", "s32", lambda x: -x, ("s32", a))
    check("abs.s32 {d}, {a}", "s32", abs, ("s32", a))
    check("add.sat.s32 {d}, {a}, {b}", "s32", lambda x, y: max(-(2**31), min(2**31 - 1, x + y)),
          ("s32", a), ("s32", b))  # fmt: skip
    check("sad.u32 {d}, {a}, {b}, {c}", "u32", lambda x, y, z: z + abs(x - y),
          *[("u32", v.view(np.uint32)) for v in (a, b, a)])  # fmt: skip


@pytest.mark.parametrize("t", ["b16", "b32", "b64"])
def test_shifts_clamp_their_amount(t):
    bits = 8 * DTYPES[t].itemsize
    a = values_of(t, 30)
    n = rng.integers(0, 2 * bits, len(a)).astype(np.uint32)
    n[:3] = bits, bits - 1, 0
    signed = "s" + t[1:]
    check(f"shl.{t} {{d}}, {{a}}, {{b}}", t, lambda x, y: x << y, (t, a), ("u32", n))
    check(f"shr.u{bits} {{d}}, {{a}}, {{b}}", f"u{bits}", lambda x, y: x >> y, (t, a), ("u32", n))
    check(f"shr.{signed} {{d}}, {{a}}, {{b}}", signed, lambda x, y: x >> y,
          (signed, a.view(DTYPES[signed])), ("u32", n))  # fmt: skip
    check(f"shl.{t} {{d}}, {{a}}, 3", t, lambda x: x << 3, (t, a))


def test_logic():
    a, b, c = (values_of("b32") for _ in range(3))
    b, c = b[::-1].copy(), np.roll(c, 3)
    check("and.b32 {d}, {a}, {b}", "b32", lambda x, y: x & y, ("b32", a), ("b32", b))
    check("or.b32 {d}, {a}, {b}", "b32", lambda x, y: x | y, ("b32", a), ("b32", b))
    check("xor.b32 {d}, {a}, {b}", "b32", lambda x, y: x ^ y, ("b32", a), ("b32", b))
    check("not.b32 {d}, {a}", "b32", lambda x: ~x, ("b32", a))
    triple = [("b32", v) for v in (a, b, c)]
    check("lop3.b32 {d}, {a}, {b}, {c}, 0x96", "b32", lambda x, y, z: x ^ y ^ z, *triple)
    check("lop3.b32 {d}, {a}, {b}, {c}, 0xCA", "b32", lambda x, y, z: (x & y) | (~x & z), *triple)


def test_bit_fields():
    a, b = values_of("b32"), values_of("b32")[::-1].copy()
    start = rng.integers(0, 32, len(a)).astype(np.uint32)
    length = np.minimum(rng.integers(0, 20, len(a)), 32 - start).astype(np.uint32)
    fields = ("u32", start), ("u32", length)
    extract = lambda x, s, n: x >> s & ((1 << n) - 1)  # noqa: E731

    def signed(x, s, n):
        field = extract(x & 0xFFFFFFFF, s, n)
        return field - (1 << n) if n and field >> (n - 1) else field

    check("bfe.u32 {d}, {a}, {b}, {c}", "u32", extract, ("u32", a), *fields)
    check("bfe.s32 {d}, {a}, {b}, {c}", "s32", signed, ("s32", a.view(np.int32)), *fields)
    check("bfi.b32 {d}, {a}, {b}, {c}, {e}", "b32",
          lambda x, y, s, n: (y & ~(((1 << n) - 1) << s)) | (x & ((1 << n) - 1)) << s,
          ("b32", a), ("b32", b), *fields)  # fmt: skip


def test_counts():
    a = values_of("b32")
    check("popc.b32 {d}, {a}", "u32", lambda x: x.bit_count(), ("b32", a))
    check("clz.b32 {d}, {a}", "u32", lambda x: 32 - x.bit_length(), ("b32", a))
    check("brev.b32 {d}, {a}", "b32", lambda x: int(f"{x:032b}"[::-1], 2), ("b32", a))
    check("bfind.u32 {d}, {a}", "u32", lambda x: x.bit_length() - 1, ("u32", a))
    wide = values_of("b64")
    check("clz.b64 {d}, {a}", "u32", lambda x: 64 - x.bit_length(), ("b64", wide))
    check("popc.b64 {d}, {a}", "u32", lambda x: x.bit_count(), ("b64", wide))


def test_prmt_and_funnel_shift():
    a, b, s = values_of("b32"), values_of("b32")[::-1].copy(), values_of("b32")

    def prmt(x, y, selector):
        octets = (y << 32 | x).to_bytes(8, "little")
        result = 0
        for place in range(4):
            pick = selector >> 4 * place & 15
            octet = octets[pick & 7]
            octet = (255 if octet & 128 else 0) if pick & 8 else octet
            result |= octet << 8 * place
        return result

    check("prmt.b32 {d}, {a}, {b}, {c}", "b32", prmt, ("b32", a), ("b32", b), ("b32", s))
    n = rng.integers(0, 64, len(a)).astype(np.uint32)
    operands = ("b32", a), ("b32", b), ("u32", n)
    check("shf.l.wrap.b32 {d}, {a}, {b}, {c}", "b32",
          lambda x, y, k: (y << 32 | x) << (k & 31) >> 32, *operands)  # fmt: skip
    check("shf.r.clamp.b32 {d}, {a}, {b}, {c}", "b32",
          lambda x, y, k: (y << 32 | x) >> min(k, 32), *operands)  # fmt: skip


FLOATS = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, np.inf, -np.inf, np.nan, 254.7, 3e9, -3e9],
    np.float32,
)


@pytest.mark.parametrize(
    ("mode", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
@pytest.mark.parametrize("t", ["s32", "u32", "u8", "s64"])
def test_float_to_int_clamps(mode, function, t):
    got = apply(f"cvt.{mode}.{t}.f32 {{d}}, {{a}}", t, ("f32", FLOATS))
    info = np.iinfo(DTYPES[t])
    for value, result in zip(FLOATS, got, strict=True):
        if np.isnan(value):
            assert int(result) == (info.min if t == "s64" else 0)
        elif np.isinf(value):
            assert int(result) == (info.max if value > 0 else info.min)
        else:
            assert int(result) == max(info.min, min(info.max, int(function(float(value)))))


def test_int_to_float_and_int_to_int():
    a = values_of("s32")
    got = apply("cvt.rn.f32.s32 {d}, {a}", "f32", ("s32", a))
    assert np.array_equal(got, a.astype(np.float32))
    down = apply("cvt.rz.f32.s32 {d}, {a}", "f32", ("s32", a))
    assert np.all(np.abs(down.astype(np.float64)) <= np.abs(a.astype(np.float64)))
    check("cvt.s64.s32 {d}, {a}", "s64", lambda x: x, ("s32", a))
    check("cvt.u64.u32 {d}, {a}", "u64", lambda x: x, ("u32", a.view(np.uint32)))
    check("cvt.u16.u32 {d}, {a}", "u16", lambda x: x, ("u32", a.view(np.uint32)))
    check("cvt.sat.s8.s32 {d}, {a}", "s8", lambda x: max(-128, min(127, x)), ("s32", a))
    check("cvt.sat.u16.s32 {d}, {a}", "u16", lambda x: max(0, min(65535, x)), ("s32", a))


def test_float_to_half_and_back():
    values = np.concatenate([FLOATS, rng.normal(size=100).astype(np.float32) * 100])
    for name, dtype in (("f16", np.float16), ("bf16", BF16)):
        with np.errstate(over="ignore"):
            want = values.astype(dtype)
        got = apply(f"cvt.rn.{name}.f32 {{d}}, {{a}}", name, ("f32", values))
        nan = np.isnan(values)
        assert np.array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
        assert np.all(got.view(np.uint16)[nan] == 0x7FFF)
        back = apply(f"cvt.f32.{name} {{d}}, {{a}}", "f32", (name, want))
        assert np.array_equal(back, want.astype(np.float32), equal_nan=True)
        cut = apply(f"cvt.rz.{name}.f32 {{d}}, {{a}}", name, ("f32", values)).astype(np.float64)
        finite = np.isfinite(values)
        assert np.all(np.abs(cut[finite]) <= np.abs(values[finite].astype(np.float64)))


def test_packed_conversion_puts_the_first_operand_on_top():
    a = np.array([1.0, -2.5], np.float32)
    b = np.array([3.0, 0.1], np.float32)
    for name, dtype in (("f16x2", np.float16), ("bf16x2", BF16)):
        got = apply(f"cvt.rn.{name}.f32 {{d}}, {{a}}, {{b}}", name, ("f32", a), ("f32", b))
        halves = got.view(dtype).reshape(-1, 2)
        assert np.array_equal(halves[:, 1], a.astype(dtype))
        assert np.array_equal(halves[:, 0], b.astype(dtype))


def test_saturating_float_conversion():
    got = apply("cvt.sat.f32.f32 {d}, {a}", "f32", ("f32", FLOATS))
    want = np.clip(np.nan_to_num(FLOATS, nan=0.0), 0, 1)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_floats(name):
    a, b = (v.ravel() for v in np.meshgrid(FLOATS, FLOATS))
    ordered = apply(f"setp.{name}.f32 {{d}}, {{a}}, {{b}}", "pred", ("f32", a), ("f32", b))
    unordered = apply(f"setp.{name}u.f32 {{d}}, {{a}}, {{b}}", "pred", ("f32", a), ("f32", b))
    import operator

    holds = getattr(operator, name)(a, b)
    nan = np.isnan(a) | np.isnan(b)
    assert np.array_equal(ordered.astype(bool), holds & ~nan)
    assert np.array_equal(unordered.astype(bool), holds | nan)


def test_comparisons_of_integers_know_their_sign():
    a, b = values_of("s32"), values_of("s32")[::-1].copy()
    signed = apply("setp.lt.s32 {d}, {a}, {b}", "pred", ("s32", a), ("s32", b))
    assert np.array_equal(signed.astype(bool), a < b)
    u, v = a.view(np.uint32), b.view(np.uint32)
    unsigned = apply("setp.lo.u32 {d}, {a}, {b}", "pred", ("u32", u), ("u32", v))
    assert np.array_equal(unsigned.astype(bool), u < v)


def test_setp_combines_with_a_predicate():
    a = np.arange(8, dtype=np.uint32)
    c = (a % 2).astype(np.uint32)
    got = apply("setp.gt.and.u32 {d}, {a}, 3, {b}", "pred", ("u32", a), ("pred", c))
    assert np.array_equal(got.astype(bool), (a > 3) & (c == 1))
    got = apply("setp.gt.or.u32 {d}, {a}, 3, !{b}", "pred", ("u32", a), ("pred", c))
    assert np.array_equal(got.astype(bool), (a > 3) | (c == 0))


def test_selections():
    a, b = values_of("s32"), values_of("s32")[::-1].copy()
    p = (a % 2).astype(np.uint32)
    got = apply("selp.b32 {d}, {a}, {b}, {c}", "s32", ("s32", a), ("s32", b), ("pred", p))
    assert np.array_equal(got, np.where(p, a, b))
    got = apply("slct.u32.s32 {d}, {a}, {b}, {c}", "s32", ("s32", a), ("s32", b), ("s32", a))
    assert np.array_equal(got, np.where(a >= 0, a, b))
    got = apply("set.lt.u32.s32 {d}, {a}, {b}", "u32", ("s32", a), ("s32", b))
    assert np.array_equal(got, np.where(a < b, 0xFFFFFFFF, 0))


def test_packing_moves():
    a, b = values_of("b32"), values_of("b32")[::-1].copy()
    check("mov.b64 {d}, {{{a}, {b}}}", "b64", lambda x, y: y << 32 | x, ("b32", a), ("b32", b))
    swap = "{{.reg .b16 %lo, %hi; mov.b32 {{%lo, %hi}}, {a}; mov.b32 {d}, {{%hi, %lo}};}}"
    check(swap, "b32", lambda x: x >> 16 | (x & 0xFFFF) << 16, ("b32", a))
