"""What a verification of few rows holds."""

import numpy as np

from explorer.dtype import DType
from explorer.reference import PATTERN_COUNT, TELLING_COUNT, pattern_name, verification_input


def test_few_rows_hold_the_telling_patterns():
    for rows in (4, TELLING_COUNT, PATTERN_COUNT - 1):
        x = verification_input(rows, 1000, DType.F32)
        assert np.isneginf(x[0][:500]).all() and np.isfinite(x[0][500:]).all()
        assert np.isnan(x[1]).any() and np.isneginf(x[2]).all() and np.isfinite(x[3]).all()
        names = [pattern_name(row, rows) for row in range(rows)]
        assert len(set(names)) == rows and names[:2] == ["start masked", "not a number"]


def test_many_rows_run_through_all_patterns():
    names = [pattern_name(row, 2 * PATTERN_COUNT) for row in range(2 * PATTERN_COUNT)]
    assert len(set(names)) == PATTERN_COUNT
    assert names[:PATTERN_COUNT] == names[PATTERN_COUNT:]
    few = [pattern_name(row, PATTERN_COUNT - 1) for row in range(PATTERN_COUNT - 1)]
    assert set(few) < set(names)
