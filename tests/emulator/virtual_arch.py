"""What the emulator's tests compile for.

The emulator runs PTX, which is the same for sm_90. A virtual architecture spares the assembler,
half of the compiler's time; that it takes every kind of kernel is what tests/compile is for.
"""

ARCH = "compute_90"
