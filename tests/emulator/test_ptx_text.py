"""Reading PTX, and naming what is not known."""

import numpy as np
import pytest

from explorer.ptx_emulator.findings import LaunchError, UnsupportedPtx
from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import GlobalMemory
from explorer.ptx_emulator.parser import parse
from explorer.ptx_emulator.program import Address, Immediate, Register, Symbol, Vector

TEXT = """.version 8.5
.target sm_90
.address_size 64
.file 1 "/somewhere/kernel.cu"
.shared .align 16 .b8 pool[64];
.const .align 4 .f32 table[2] = {0f3F800000, 0fC0000000};
.visible .entry k(
  .param .u64 k_param_0, .param .align 8 .b8 k_param_1[24]
)
.maxntid 64, 1, 1
{
  .reg .pred %p<3>;
  .reg .b32 %r<4>; /* a comment
  over lines */ .reg .f32 %f1, %f2;
  .loc 1 12 3
  mov.u32 %r1, -5; // trailing
$L_top:
  .loc 1 7 3, function_name $L__info_string0, inlined_at 1 20 5
  @!%p1 bra $L_top;
  { .reg .b32 %r1; mov.b32 %r1, 0x1F; bra inner; inner: mov.f32 %f1, 0f3F800000; }
  ld.shared.v2.f32 {%f1, %f2}, [pool+8];
  %s
  ret;
}
"""


def test_parse():
    module = parse(TEXT.replace("%s", ""))
    entry = module.entries["k"]
    assert [p.size for p in entry.params] == [8, 24]
    assert module.variables["pool"].size == 64
    assert np.array_equal(np.frombuffer(module.variables["table"].initial, np.float32), [1, -2])
    mov, branch, inner_mov, jump, _, load, _ = entry.instructions
    assert mov.operands == (Register("%r1"), Immediate(-5))
    assert str(mov.source) == "/somewhere/kernel.cu:12" and mov.ptx_line == 16
    assert branch.guard == Register("%p1", negated=True) and branch.source.inlined_at == 20
    assert inner_mov.operands[0].name != "%r1" and inner_mov.operands[1] == Immediate(31)
    assert entry.labels[jump.operands[0].name] == 4 and entry.labels["$L_top"] == 1
    assert load.operands[1] == Address(Symbol("pool"), 8)
    assert isinstance(load.operands[0], Vector)


@pytest.mark.parametrize(
    "line",
    [
        "wgmma.fence.sync.aligned",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%f1}, {%f1}, {%f1}",
        "add.rn.wobbly.f32 %f1, %f1, %f2",
        "tex.1d.v4.f32.s32 {%f1,%f1,%f1,%f1}, [pool, {%r1}]",
        "mov.u32 %r1, %clock",
        "cvt.rn.satfinite.e4m3x2.f32 %r1, %f1, %f2",
        "ld.weird.f32 %f1, [pool]",
        "call.uni vprintf, (%r1)",
        "bra nowhere",
    ],
)
def test_unknown_opcodes_are_named(line):
    module = parse(TEXT.replace("%s", line + ";"))
    with pytest.raises(UnsupportedPtx) as caught:
        launch(
            module,
            "k",
            grid=(1, 1, 1),
            block=(32, 1, 1),
            args=[0, bytes(24)],
            memory=GlobalMemory(),
        )
    named = " ".join(caught.value.opcodes)
    assert line.split()[0].split(".")[0] in named or line.split()[-1] in named
    assert "unverified" in str(caught.value)


def test_all_unknown_opcodes_are_named_at_once():
    module = parse(TEXT.replace("%s", "wgmma.fence.sync.aligned; fns.b32 %r1, %r1, %r1, %r1;"))
    with pytest.raises(UnsupportedPtx) as caught:
        launch(module, "k", grid=(1, 1, 1), block=(32, 1, 1), args=[0, bytes(24)],
               memory=GlobalMemory())  # fmt: skip
    assert set(caught.value.opcodes) == {"wgmma.fence.sync.aligned", "fns.b32"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"entry": "other"}, "there are k"),
        ({"args": [0]}, "takes 2 arguments"),
        ({"args": [0, bytes(8)]}, "24 bytes"),
        ({"block": (1025, 1, 1)}, "1024"),
        ({"grid": (0, 1, 1)}, "start at 1"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "multiple"),
    ],
)
def test_launches_that_do_not_fit(options, words):
    settings = {
        "entry": "k", "grid": (1, 1, 1), "block": (32, 1, 1), "args": [0, bytes(24)],
        "memory": GlobalMemory(), **options,
    }  # fmt: skip
    with pytest.raises(LaunchError, match=words):
        launch(parse(TEXT.replace("%s", "")), **settings)


def test_ptx_of_other_architectures(run, out):
    from run_kernel import PRELUDE, compile_ptx

    source = (
        PRELUDE
        + """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[64]; int t = threadIdx.x; s[t] = __expf(x[t]); __syncthreads();
      y[t] = s[63 - t] / 3.f; }"""
    )
    x = np.linspace(-3, 3, 64).astype(np.float32)
    results = []
    for arch in ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"):
        result = run(compile_ptx(source, arch), x, out(64), block=64, ptx=True)
        assert not result.findings
        results.append(result["out0"])
    assert all(np.array_equal(r, results[0]) for r in results)
