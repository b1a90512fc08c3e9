"""A kernel: a variant's source, compiled."""

from dataclasses import dataclass

from explorer.outcome import Resources


@dataclass(frozen=True, slots=True)
class Kernel:
    """Machine code for one architecture, with the PTX it was made from and ptxas's log."""

    cubin: bytes
    ptx: str
    log: str
    resources: Resources
