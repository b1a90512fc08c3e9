"""Registers share storage only where none of them is in use: whatever order blocks stand in."""

from explorer.ptx_emulator.parser import parse
from explorer.ptx_emulator.registers import register_slots

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
