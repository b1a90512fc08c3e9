"""A config for a problem without any search: rules of thumb from measurements on two GPUs.

`regimes` chooses the kind of kernel. The first of these that fits has a module, which chooses the
numbers:

- Rows over a middle axis are for `across_rows`: those of up to 64 elements, most of up to 127, some
  of up to 512, unless these are f64, and, where the GPU has clusters, those of 128 or more.
- Gradients of few rows of 200 or 330 elements or more that start anywhere are for `gradients`: its
  `of_narrow_words` loads them by the words that divide them. It has many rows as well that pairs
  of 16 bits divide, and where exponentials are computed some rows that wider words divide.
- Rows of 1281 to 2100 elements of 16 bits that only pairs divide are for `many_rows` where an SM
  has much bandwidth and enough of them: its `of_many_pairs` has two warps for each.
- Few rows that can be resident on the GPU at the same time, of 512 bytes or more, are for
  `one_block`: its `of_one_wave` chooses the fewest accesses a thread with which they are, or a warp
  for each row where that is enough.
- Gradients of rows of up to 80 elements that words of 16 bytes do not divide, or of 160 of 16 bits
  that 8 bytes do not, are for `short_gradients`, and so are few rows of up to 160 elements.
- Many rows of up to 8191 elements of 32 or 16 bits, without a mask, are for `many_rows`, where each
  has the largest block that keeps memory busy: from 480 elements on in f32 (513 where words of 16
  bytes do not divide rows), from 513, 900 or 1100 on in 16 bits. Where SMs have much bandwidth, it
  leaves softmax of 16-bit rows that start anywhere to the rules below, and has fewer of those rows
  of log_softmax, too, unless all are resident.
- Rows of up to 1280 elements that words of 16 bytes do not divide, or of fewer than 64, are for
  `short_rows`, and so are most rows of 65 to 400 elements of f32 of softmax and log_softmax.
- Rows of 8192 elements or more (`WIDE_ROW`) are for `wide_rows` where clusters may share them: it
  chooses the cluster, or two launches that read them twice. Gradients of them are for
  `wide_gradients`.
- All other rows are for `one_block`: a row has a block, a warp or less. Gradients have their own
  numbers in `gradients`, and many of them have blocks as `many_rows` chooses them.

`registers` guesses how many registers a thread takes. By these, `residency` estimates how many
blocks are resident at the same time, in waves; it also adds cache hints to what any regime chose.
`row_threads`, which `one_block` asks, says how many threads a row is worth. `regimes` then adapts
the config to the op, the type and the accuracy.

A choice may depend on the number of rows, but not above that of `_many_rows` of `regimes`:
`--batch-invariant` relies on that.

What the chosen kernels lose to the best that is known is in studies/tuned/README.md, and a test
holds the rules to it. Choosing by the nearest problems of a table instead lost more on problems
that nothing was fitted on (studies/DECISIONS.md).
"""

from explorer.space.heuristic.regimes import config_for, exact, promising

__all__ = ["config_for", "exact", "promising"]
