"""A config for a problem without any search: rules of thumb from measurements on an H200.

`regimes` chooses the kind of kernel. The first of these that fits has a module, which chooses the
numbers:

- Rows of up to 1280 elements that words of 16 bytes do not divide, or of fewer than 64, are
  `short_rows`, unless `of_one_wave` has a config for all of them.
- Rows over a middle axis, of 128 elements or more, are `across_rows` where the GPU has clusters.
- Rows of 8192 elements or more (`WIDE_ROW`) are `wide_rows` where clusters may share them, and
  `row_clusters` says by which clusters; or two launches read them twice.
- All other rows are `one_block`: a row has a block, a warp or less. If all rows can be resident on
  the GPU at the same time, its `of_one_wave` says how.

`at_once`, which all of these but `across_rows` ask, estimates how many blocks are resident
together; `row_threads`, which `one_block` asks, says how many threads a row is worth. `hints` adds
cache hints to what any regime chose, and `regimes` then adapts it to the op, the type and the
accuracy.

A choice may depend on the number of rows, but not above `one_block.most_few_rows`, or over a
middle axis above `_many_rows` of `regimes`: `--batch-invariant` relies on that.
"""

from explorer.space.heuristic.regimes import config_for, exact, promising

__all__ = ["config_for", "exact", "promising"]
