# ruff: noqa: E501 - lines of CUDA and PTX
"""mma: its fragments, special numbers, lanes that do not come, and registers that nobody set."""

import ml_dtypes
import numpy as np
import pytest

from explorer.ptx_emulator import UnsupportedPtx, decided_by_arrival, parse

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
NAMES = {F16: "f16", BF16: "bf16"}
LANES = [(lane // 4, lane % 4) for lane in range(32)]

MMA = """
__device__ __forceinline__ void mma(float* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 { %0,%1,%2,%3},{ %4,%5,%6,%7},{ %8,%9},{ %0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
extern "C" __global__ void k(const unsigned* a, const unsigned* b, const float* c, float* d) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  unsigned ra[4], rb[2]; float rd[4];
  for (int j = 0; j < 4; ++j) { ra[j] = a[i * 4 + j]; rd[j] = c[i * 4 + j]; }
  for (int j = 0; j < 2; ++j) rb[j] = b[i * 2 + j];
  BODY
  for (int j = 0; j < 4; ++j) d[i * 4 + j] = rd[j];
}"""


def kernel(dtype=F16, body="mma(rd, ra, rb);"):
    return MMA.replace("TYPE", NAMES[np.dtype(dtype)]).replace("BODY", body)


def fragments(a, b, c):
    """What each lane holds of matrices (warps, 16, 16), (warps, 16, 8), (warps, 16, 8).

    PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
    """
    warps = len(a)
    of_a = np.zeros((warps, 32, 4, 2), a.dtype)
    of_b = np.zeros((warps, 32, 2, 2), b.dtype)
    of_c = np.zeros((warps, 32, 4), np.float32)
    for lane, (g, t) in enumerate(LANES):
        places = [(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]
        for register, (row, k) in enumerate(places):
            of_a[:, lane, register] = a[:, row, k : k + 2]
        for register, k in enumerate([2 * t, 2 * t + 8]):
            of_b[:, lane, register] = b[:, k : k + 2, g]
        for register, (row, column) in enumerate(accumulators(g, t)):
            of_c[:, lane, register] = c[:, row, column]
    return of_a.view(np.uint32), of_b.view(np.uint32), of_c


def accumulators(g, t):
    return [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)]


def matrices(held):
    """The matrices (warps, 16, 8) of which lanes hold the elements."""
    held = held.reshape(-1, 32, 4)
    made = np.full((len(held), 16, 8), np.nan, np.float32)
    for lane, (g, t) in enumerate(LANES):
        for register, (row, column) in enumerate(accumulators(g, t)):
            made[:, row, column] = held[:, lane, register]
    return made


def drawn(warps, dtype, seed=3):
    rng = np.random.default_rng(seed)
    shapes = (16, 16), (16, 8), (16, 8)
    a, b, c = (rng.normal(size=(warps, *shape)) for shape in shapes)
    return a.astype(dtype), b.astype(dtype), c.astype(np.float32)


def multiply(run, out, a, b, c, body="mma(rd, ra, rb);", blocks=1, **options):
    """The result of a kernel, and the matrices D that it wrote."""
    given = [x.reshape(-1) for x in fragments(a, b, c)]
    block = 32 * len(a) // blocks
    source = kernel(a.dtype, body)
    result = run(source, *given, out(128 * len(a)), grid=blocks, block=block, **options)
    return result, matrices(result["out0"])


def wide(a, b, c):
    return a.astype(np.float64) @ b.astype(np.float64) + c


@pytest.mark.parametrize("dtype", [F16, BF16], ids=NAMES.get)
def test_each_element_of_a_product(run, out, dtype):
    a, b, c = drawn(12, dtype)
    result, d = multiply(run, out, a, b, c, blocks=3)
    assert not result.findings, result.text
    assert np.array_equal(d, wide(a, b, c).astype(np.float32))
    assert result.counters.instructions["mma"] == 12


def test_products_of_eight_terms(run, out):
    a, b, c = drawn(2, BF16)
    a[:, :, 8:], b[:, 8:] = 0, 0
    short = """asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(rd[0]), "+f"(rd[1]), "+f"(rd[2]), "+f"(rd[3]) : "r"(ra[0]), "r"(ra[1]), "r"(rb[0]));"""
    result, d = multiply(run, out, a, b, c, short)
    assert not result.findings and np.array_equal(d, wide(a, b, c).astype(np.float32))


def test_exchanged_rows_and_columns_of_lanes_give_wrong_numbers(run, out):
    """The bug: a lane takes what belongs to lane 8 t + g / 2 or the like."""
    a, b, c = drawn(1, BF16)
    swapped = "int from = lane % 8 * 4 + lane / 8; for (int j = 0; j < 2; ++j) rb[j] = __shfl_sync(FULL, rb[j], from); mma(rd, ra, rb);"
    result, d = multiply(run, out, a, b, c, swapped)
    assert not result.findings
    assert np.mean(np.abs(d - wide(a, b, c)) > 0.1) > 0.5


@pytest.mark.parametrize("dtype", [F16, BF16], ids=NAMES.get)
def test_special_numbers(run, out, dtype):
    a, b, c = (np.zeros_like(x) for x in drawn(1, dtype))
    b[0, 0] = 1
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    a[0, :6, 0] = [np.inf, -np.inf, np.nan, tiny, 1, 0]
    b[0, 0, 7] = 0
    c[0, 0, 1], c[0, 4, 2], c[0, 6, 3] = -np.inf, np.inf, np.uint32(0xFF812345).view(np.float32)
    c[0, 5, :] = -0.0
    result, d = multiply(run, out, a, b, c)
    nan = np.uint32(0x7FFFFFFF)
    bits = d[0].view(np.uint32)
    assert not {k for k in result.kinds if k != "poison"}
    assert d[0, 0, 0] == np.inf and d[0, 1, 0] == -np.inf
    assert bits[0, 7] == bits[1, 7] == nan, "infinity times zero"
    assert bits[0, 1] == nan, "infinity minus infinity"
    assert np.all(bits[2] == nan), "NaN in a row of A, also times zero"
    assert np.all(d[0, 3, :7] == np.float64(tiny)), "subnormal inputs count"
    assert d[0, 4, 2] == np.inf and d[0, 4, 1] == 1
    assert bits[6, 3] == nan, "no payload of C goes on"
    assert np.all(d[0, 7:] == 0) and np.all(d[0, 5] == 0)


def test_sums_beyond_f32_are_infinite_and_small_ones_subnormal(run, out):
    a, b, c = (np.zeros_like(x) for x in drawn(1, BF16))
    a[0, 0, :2], b[0, :2, 0] = 2.0**64, [2.0**63, 2.0**63]
    a[0, 1, 0], a[0, 2, :2] = -(2.0**65), [2.0**64, -(2.0**64)]
    a[0, 3, 2], b[0, 2, 0] = 2.0**-70, 2.0**-70
    _, d = multiply(run, out, a, b, c)
    assert d[0, :4, 0].tolist() == [np.inf, -np.inf, 0, 2.0**-140]


def test_the_sum_is_rounded_once(run, out):
    a, b, c = (np.zeros_like(x) for x in drawn(1, F16))
    a[0, :, :3], b[0, :3, :] = (
        [2.0**12, 2.0**-6, -(2.0**12)],
        np.array([[2.0**12], [2.0**-6], [2.0**12]]),
    )
    c[:] = 1
    _, d = multiply(run, out, a, b, c)
    assert np.all(d == np.float32(1 + 2.0**-12))


WHOLE = [
    "if (threadIdx.x / 32 == 1) mma(rd, ra, rb);",
    "for (int n = 0; n < 1 + threadIdx.x / 32; ++n) mma(rd, ra, rb);",
    "if (lane < 7) rd[0] += 1; else rd[1] += 1; mma(rd, ra, rb);",
]


@pytest.mark.parametrize("body", WHOLE)
def test_warps_may_go_different_ways(run, out, body):
    result, d = multiply(run, out, *drawn(6, F16), body, blocks=2)
    assert not result.findings, result.text
    assert np.isfinite(d).all()


BROKEN = [
    "if (lane < 20) mma(rd, ra, rb);",
    "if (lane < 16) mma(rd, ra, rb); else { rd[0] = 1; mma(rd, ra, rb); }",
    "for (int n = 0; n < 1 + lane % 2; ++n) mma(rd, ra, rb);",
    "if (rd[0] > 0) mma(rd, ra, rb);",
]


@pytest.mark.parametrize("body", BROKEN)
def test_lanes_that_do_not_come_are_found(run, out, body):
    result, _ = multiply(run, out, *drawn(4, F16), body, blocks=2)
    assert "warp-mask" in result.kinds and "deadlock" not in result.kinds, result.text
    assert "needs all 32 lanes" in result.text and "the mask names" not in result.text


@pytest.mark.parametrize(
    "body", ["if (i != 70) mma(rd, ra, rb);", "if (i == 70) return; mma(rd, ra, rb);"]
)
def test_other_warps_than_the_broken_one_have_right_products(run, out, body):
    a, b, c = drawn(4, BF16)
    result, d = multiply(run, out, a, b, c, body)
    assert result.result.findings[0].kind == "warp-mask" and result.result.findings[0].count == 1
    whole = [0, 1, 3]
    assert np.array_equal(d[whole], wide(a, b, c).astype(np.float32)[whole])


@pytest.mark.parametrize("exits", ["if (lane == 31) return;", ""])
def test_lanes_that_have_ended_or_never_were_are_missed(run, out, exits):
    source = kernel(F16, f"{exits} mma(rd, ra, rb);")
    a, b, c = (x.reshape(-1) for x in fragments(*drawn(2, F16)))
    block = 64 if exits else 48
    result = run(source, a, b, c, out(128 * 2), block=block)
    assert "warp-mask" in result.kinds, result.text


def test_a_guarded_product(run, out):
    a, b, c = drawn(3, F16)
    body = MMA.split("asm volatile(")[1].split(";\n}")[0].replace("TYPE", "f16")
    guarded = body.replace('"mma', '"{.reg .pred p; setp.ne.u32 p, %10, 0; @p mma').replace(
        ';"', ';}"'
    )
    guarded = guarded.replace('"r"(b[1]))', '"r"(b[1]), "r"(threadIdx.x / 32))')
    for name in "abd":
        guarded = guarded.replace(f"({name}[", f"(r{name}[")
    result, d = multiply(run, out, a, b, c, f"asm volatile({guarded};")
    assert not result.findings, result.text
    assert np.array_equal(d[0], c[0]) and np.array_equal(
        d[1:], wide(a, b, c).astype(np.float32)[1:]
    )


UNSET = """extern "C" __global__ void k(const unsigned* a, const unsigned* b, float* d) {
  const int i = threadIdx.x; unsigned u; float f;
  asm volatile("{.reg .b32 x; mov.b32 %0, x;}" : "=r"(u));
  asm volatile("{.reg .f32 x; mov.f32 %0, x;}" : "=f"(f));
  unsigned ra[4] = {a[i * 4], a[i * 4 + 1], a[i * 4 + 2], a[i * 4 + 3]}, rb[2] = {b[i * 2], b[i * 2 + 1]};
  float rd[4] = {};
  BODY
  mma(rd, ra, rb);
  for (int j = 0; j < 4; ++j) d[i * 4 + j] = rd[j];
}"""


def unset(run, out, body, dtype):
    source = kernel(dtype).split("extern")[0] + UNSET.replace("BODY", body)
    a, b, c = drawn(1, dtype)
    given = [x.reshape(-1) for x in fragments(np.abs(a), np.abs(b), c)[:2]]
    result = run(source, *given, out(128))
    good = np.isclose(matrices(result["out0"])[0], wide(np.abs(a), np.abs(b), 0)[0], rtol=1e-5)
    return good


@pytest.mark.parametrize("dtype", [F16, BF16], ids=NAMES.get)
@pytest.mark.parametrize(
    ("body", "rows", "columns"),
    [
        ("ra[0] = u;", range(8), range(8)),
        ("ra[3] = u;", range(8, 16), range(8)),
        ("if (i / 4 == 5) ra[1] = u;", [13], range(8)),
        ("rb[1] = u;", range(16), range(8)),
        ("if (i / 4 == 2) rb[0] = u;", range(16), [2]),
        ("rd[2] = f;", range(8, 16), range(0, 8, 2)),
        ("if (i == 6) rd[1] = f;", [1], [5]),
    ],
)
def test_unset_registers_spoil_what_uses_them_alone(run, out, body, rows, columns, dtype):
    good = unset(run, out, body, dtype)
    spoilt = np.zeros((16, 8), bool)
    spoilt[np.ix_(rows, columns)] = True
    assert np.array_equal(good, ~spoilt)


def test_an_order_of_arrival_goes_on_through_a_product():
    def entry(reached):
        text = f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {{
  .reg .b32 %r<4>; .reg .f32 %f<9>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
  atom.global.add.u32 %r1, [%rd1], 1;
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f1,%f2,%f3,%f4}}, {{%r2,%r2,%r2,%r2}}, {{%r2,{reached}}}, {{%f5,%f6,%f7,%f8}};
  st.global.f32 [%rd1], %f1;
  ret;
}}"""
        return parse(text).entries["k"]

    assert decided_by_arrival(entry("%r1")).root == "mma"
    assert decided_by_arrival(entry("%r3")) is None


@pytest.mark.parametrize(
    "other", ["m16n8k16.row.col.f16.f16.f16.f16", "m16n8k8.row.col.f32.tf32.tf32.f32"]
)
def test_other_matrix_products_are_not_known(run, out, other):
    operands = "{ %0,%1},{ %2,%2,%2,%2},{ %2,%2},{ %0,%1}" if "f16" in other[13:] else ""
    operands = operands or "{ %0,%1,%0,%1},{ %2,%2,%2,%2},{ %2,%2},{ %0,%1,%0,%1}"
    source = f"""extern "C" __global__ void k(unsigned* y) {{ unsigned a = 0, b = 0;
      asm volatile("mma.sync.aligned.{other} {operands};" : "+r"(a), "+r"(b) : "r"(threadIdx.x));
      y[threadIdx.x] = a + b; }}"""
    with pytest.raises(UnsupportedPtx, match=r"mma\.sync\.aligned"):
        run(source, out(32, np.uint32))


def test_one_warp_at_a_time_gives_the_same_bits(run, out):
    given = drawn(16, BF16)
    permuted = multiply(run, out, *given, blocks=4, schedule="permuted")[1]
    assert np.array_equal(permuted, multiply(run, out, *given, blocks=4)[1])


def test_an_element_does_not_depend_on_its_place(run, out):
    """Of whoever sums: each element's terms go in one order, whatever its row, column and warp."""
    a, b, c = (np.ones_like(x) for x in drawn(5, BF16))
    a[:] = np.random.default_rng(1).permutation([1.0, 2.0**60, -(2.0**60), 3.0] * 4)
    _, d = multiply(run, out, a, b, c)
    assert np.all(d == d[0, 0, 0])
    assert d[0, 0, 0] != 17, "the terms do not tell one order from another"


def test_products_count_as_the_work_that_they_are(run, out):
    often = "for (int n = 0; n < 100; ++n) mma(rd, ra, rb);"
    result, _ = multiply(run, out, *drawn(4, F16), often)
    assert result.result.work > 100 * 128 * 8
