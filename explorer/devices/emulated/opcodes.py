"""Imports every module that registers opcodes, so that the table is complete."""

from explorer.devices.emulated import (  # noqa: F401
    accesses,
    atomics,
    bit_arithmetic,
    bulk,
    cluster,
    conversions,
    fences,
    float_arithmetic,
    float_functions,
    int_arithmetic,
    mbarrier_instructions,
    moves,
    shuffles,
    st_async,
    warp,
)
