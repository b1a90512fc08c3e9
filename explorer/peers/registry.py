"""The registry of peers: those of this package, and those that entry points add or replace."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points, version

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.peer import PeerBuffers, PeerName, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem
from explorer.ops import FORWARD, OPERATORS, Extent

# ------------------------------------------------------------------ scope


THREE = (DType.F32, DType.F16, DType.BF16)
FOUR = (*THREE, DType.F64)
EVERY = tuple(op for op, operator in OPERATORS.items() if operator.over is Extent.MATRIX)
"""The operators over the rows of a matrix."""


def check_scope(
    peer: str,
    problem: Problem,
    ops: Sequence[str] = FORWARD,
    dtypes: Sequence[DType] = THREE,
    also: Sequence[str] = (),
    takes: Sequence[str] = (),
) -> None:
    """Raise PeerRefuses for another op or dtype, strides, a mask, a scale, options, unusual types.

    And for results on request beside those of `also`. A peer `takes` other values of some fields of
    the problem.
    """
    names = ("ids_per_row", "ids_dtype", "also", *takes)
    as_asked = {name: getattr(problem, name) for name in names}
    plain = Problem(problem.rows, problem.cols, problem.dtype, problem.op, **as_asked)
    lacking = [result.name for result in problem.results[1:] if result.name not in also]
    if problem.op not in ops:
        *first, last = ops
        adapted = f"{', '.join(first)} and {last}" if first else last
        raise PeerRefuses(f"{peer} is adapted for {adapted}, not for {problem.op}")
    if problem.dtype not in dtypes:
        raise PeerRefuses(f"{peer} computes in {', '.join(dtypes)}, not in {problem.dtype}")
    if lacking:
        raise PeerRefuses(f"{peer} is adapted for no {' and no '.join(lacking)} beside the output")
    if problem != plain:
        told = "dense rows, usual types and no options"
        raise PeerRefuses(f"{peer} is adapted for {told}, not for {problem}")


def refuse_jax(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Raise PeerRefuses: XLA takes neither our stream nor buffers, nor can be captured."""
    raise PeerRefuses(
        f"jax {version('jax')} launches on streams of XLA's own, which can be neither captured in "
        "a CUDA graph nor given our buffers: a time of it would not be one of the same protocol"
    )


# ------------------------------------------------------------------ registry


GROUP = "softmax_explorer.peers"

BUILT_IN = {
    "torch": "explorer.peers.torch_softmax:prepare_eager",
    "torch-sdpa.flash": "explorer.peers.attention:prepare_flash",
    "torch-sdpa.cudnn": "explorer.peers.attention:prepare_cudnn",
    "torch-sdpa.efficient": "explorer.peers.attention:prepare_efficient",
    "torch-sdpa.math": "explorer.peers.attention:prepare_math",
    "fa3": "explorer.peers.attention:prepare_fa3",
    "flashinfer.single": "explorer.peers.flashinfer_decode:prepare_single",
    "flashinfer.batch": "explorer.peers.flashinfer_decode:prepare_batch",
    "cudnn": "explorer.peers.cudnn:prepare",
    "quack": "explorer.peers.quack_kernels:prepare",
    "liger": "explorer.peers.liger:prepare",
    "cupy": "explorer.peers.cupy_scipy:prepare",
    "triton-tuned.constexpr": "explorer.peers.triton_softmax:prepare_constexpr",
    "triton-tuned.runtime": "explorer.peers.triton_softmax:prepare_runtime",
    "triton-tutorial": "explorer.peers.triton_softmax:prepare_tutorial",
    "torch-compile": "explorer.peers.torch_softmax:prepare_compiled",
    "jax": "explorer.peers.registry:refuse_jax",
}
"""The adapters of this package, which are known in a checkout without an installation's metadata,
too.

Those that compile for long come last: if one exceeds its time, those before it are prepared once
more. A name before a dot has several forms, of which the fastest is reported.
"""


AHEAD = {
    BUILT_IN["quack"]: "explorer.peers.quack_kernels:ahead",
    BUILT_IN["liger"]: "explorer.peers.liger:ahead",
    BUILT_IN["triton-tuned.constexpr"]: "explorer.peers.triton_softmax:ahead_constexpr",
    BUILT_IN["triton-tuned.runtime"]: "explorer.peers.triton_softmax:ahead_runtime",
    BUILT_IN["triton-tutorial"]: "explorer.peers.triton_softmax:ahead_tutorial",
    BUILT_IN["torch-compile"]: "explorer.peers.inductor_ahead:ahead",
}
"""For each adapter whose library caches compiled kernels on disk, the function that compiles them
without a GPU. `explorer.peers.ahead` calls it."""


def known_peers() -> dict[str, PeerName]:
    """Return every peer by its name, installed or not.

    BUILT_IN has those of this package, because an installation's metadata may be older than its
    code.
    """
    own = "explorer.peers."
    points = (one for one in entry_points(group=GROUP) if not one.value.startswith(own))
    targets = {**BUILT_IN, **{point.name: point.value for point in points}}
    return {name: PeerName(name, target) for name, target in targets.items()}


def chosen_peers(words: list[str]) -> list[PeerName]:
    """Return the peers that a user names, or all known peers without `words`.

    A word is a name, its part before a dash or a dot, or module:attribute. Raises InvalidInput for
    an unknown one.
    """
    known = known_peers()
    if not words:
        return list(known.values())
    chosen: dict[str, PeerName] = {}
    for word in words:
        chosen |= {peer.name: peer for peer in _named(word, known)}
    return list(chosen.values())


def _named(word: str, known: dict[str, PeerName]) -> list[PeerName]:
    if word in known:
        return [known[word]]
    family = [peer for name, peer in known.items() if name.startswith((f"{word}-", f"{word}."))]
    if family:
        return family
    module, _, attribute = word.partition(":")
    if module and attribute.isidentifier():
        return [PeerName(module.rpartition(".")[2], word)]
    near = get_close_matches(word, known, n=1)
    names = f"{', '.join(known)}, and module:attribute"
    there_are = f"did you mean {near[0]}? There are {names}" if near else f"there are {names}"
    raise InvalidInput(f"peer '{word}' is not known; {there_are}")
