"""NumPy's view of the element types."""

from typing import Any

import ml_dtypes
import numpy as np

from explorer.dtype import DType

NUMPY_DTYPES: dict[DType, Any] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F64: np.dtype(np.float64),
}
"""NumPy's dtype of each element type."""

SMALLEST_NORMAL = {
    DType.F32: 2.0**-126,
    DType.F16: 2.0**-14,
    DType.BF16: 2.0**-126,
    DType.F64: 2.0**-1022,
}
"""Smallest normal number of each element type; errors are relative to nothing smaller."""

MANTISSA_BITS = {DType.F32: 23, DType.F16: 10, DType.BF16: 7, DType.F64: 52}
"""Stored bits of each element type's mantissa: the spacing from 1 on is 2 to minus so many."""
