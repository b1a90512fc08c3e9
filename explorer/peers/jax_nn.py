"""JAX, which this protocol cannot time."""

import jax

from explorer.model.peer import Contender, PeerBuffers, PeerRefuses
from explorer.model.problem import Problem


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """Always refuses: XLA takes neither our stream nor our buffers, nor can it be captured."""
    raise PeerRefuses(
        f"jax {jax.__version__} launches on streams of XLA's own, which can be neither captured in "
        "a CUDA graph nor given our buffers: a time of it would not be one of the same protocol"
    )
