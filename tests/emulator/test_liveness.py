"""Registers share storage only where none of them is in use: whatever order blocks stand in."""

import numpy as np

from explorer.ptx_emulator.parser import parse
from explorer.ptx_emulator.registers import maybe_unassigned, register_slots

OUT_OF_LINE = """.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  bra.uni $L_begin;
$L_aside:
  shl.b32 %r2, %r1, 1;
  setp.eq.u32 %p1, %r2, 6;
  @%p1 bra $L_behind;
  st.global.u32 [%rd1], %r2;
  bra.uni $L_behind;
$L_begin:
  add.u32 %r3, %r1, 40;
  setp.lt.u32 %p2, %r1, 3;
  setp.lt.u32 %p3, %r1, 2;
  @%p2 bra $L_aside;
$L_behind:
  @%p3 bra $L_end;
  st.global.u32 [%rd1+4], %r3;
$L_end:
  ret;
}
"""


def test_what_is_needed_behind_a_block_that_stands_elsewhere_keeps_its_storage():
    slots = register_slots(parse(OUT_OF_LINE).entries["k"])
    assert slots["%r2"] != slots["%r3"]
    assert slots["%p1"] != slots["%p3"]


def test_a_register_that_some_path_reads_unassigned_has_storage_of_its_own():
    """A guarded instruction may not assign it. What a path assigns before is never such a one."""
    text = OUT_OF_LINE.replace("shl.b32 %r2, %r1, 1;", "@%p2 shl.b32 %r2, %r4, 1;")
    entry = parse(text).entries["k"]
    assert maybe_unassigned(parse(OUT_OF_LINE).entries["k"]) == []
    assert set(maybe_unassigned(entry)) == {"%r2", "%r4"}
    slots = register_slots(entry)
    assert len({slots[name] for name in ("%r1", "%r2", "%r4")}) == 3


def test_what_nothing_assigned_is_no_number_that_a_maximum_or_a_sum_passes_over(run, out):
    source = """extern "C" __global__ void k(float* y, unsigned* z) {
      float a; unsigned b;
      asm volatile("{ .reg .f32 t; max.f32 %0, t, 0f00000000; }" : "=f"(a));
      asm volatile("{ .reg .pred p; selp.u32 %0, 1, 0, p; }" : "=r"(b));
      y[threadIdx.x] = a; z[threadIdx.x] = b; }"""
    result = run(source, out(64), out(64, np.uint32), block=64)
    assert set(result["out0"].tolist()) == {0.0, float(np.float32(1e38))}
    assert set(result["out1"].tolist()) == {0, 1}
