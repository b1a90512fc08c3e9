"""PTX's scalar types as NumPy's."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Values = NDArray[Any] | np.generic

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "b8": np.dtype(np.uint8),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "b16": np.dtype(np.uint16),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "f16": np.dtype(np.float16),
    "bf16": BFLOAT16,
    "b32": np.dtype(np.uint32),
    "u32": np.dtype(np.uint32),
    "s32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "b64": np.dtype(np.uint64),
    "u64": np.dtype(np.uint64),
    "s64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
    "f32x2": np.dtype(np.uint64),
}
"""The dtype in which an operand of a PTX type is read and written."""

STORAGE: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
"""The dtype that holds a register of so many bytes; other types are views of it."""

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
SIGNED = frozenset({"s8", "s16", "s32", "s64"})
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def storage_dtype(ptx_type: str) -> np.dtype[Any]:
    """The dtype of a register declared with `ptx_type`."""
    if ptx_type == "pred":
        return DTYPES["pred"]
    return STORAGE[DTYPES[ptx_type].itemsize]
