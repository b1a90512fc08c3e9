"""A config for a problem without a search: few rules of what an SM holds and memory needs.

`chooser` begins: it takes the shape that suits the length of a row, then what shifts a time by a
few percent. `across_rows` has rows over a middle axis; `short_rows` those of up to 400 elements,
`wide_rows` and `wide_gradients` those of 8192 or more, which clusters share, and `one_block` the
others. `residency` guesses a kernel's registers, and so how many of its blocks an SM holds.

No number stands for one GPU: rules compare with its SMs, threads, caches and bandwidth. What the
choices lose to the best known kernels is in studies/tuned/README.md.
"""

from explorer.choose.chooser import config_for, exact, promising

__all__ = ["config_for", "exact", "promising"]
