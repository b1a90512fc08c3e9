"""The contract between the bench and a peer: somebody else's softmax, timed beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from explorer.model.config import Config
from explorer.model.errors import ExplorerError
from explorer.model.evaluator import Comparison, Evaluator
from explorer.model.problem import Problem


class PeerRefuses(ExplorerError):
    """A peer cannot compute a problem, or not by this protocol; the sentence says why."""


@dataclass(frozen=True, slots=True)
class PeerBuffers:
    """Device memory that launches rotate over: addresses of dense (rows, cols) matrices.

    Launch i reads `inputs[i % len(inputs)]`; a peer that can writes `outputs[i % len(outputs)]`.
    For a backward op, inputs are the forward's outputs, and launch i reads their gradient at
    `grads[i % len(grads)]`, too.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    grads: tuple[int, ...] = ()


class ReadyPeer(Protocol):
    """A peer made ready for one problem, on one stream; indices of launches wrap."""

    @property
    def version(self) -> str:
        """What computes, with its version, such as torch 2.11.0."""

    @property
    def note(self) -> str:
        """What was chosen for the problem, such as num_warps 8; empty for nothing."""

    def launch(self, index: int) -> None:
        """Put one launch on the stream, without waiting for it."""

    def output(self, index: int) -> int:
        """Address of what the last launch of that index wrote, dense, of the output's type."""

    def capture(self, count: int) -> int | None:
        """A CUgraph of launches 0 to count - 1, kept alive until `close`.

        None where the bench can capture `launch` itself: where it allocates no memory that
        others might be given while the graph lives.
        """

    def close(self) -> None:
        """Give up graphs and memory."""


class Prepare(Protocol):
    """What an entry point of a peer names.

    Raises PeerRefuses for what the peer cannot do, ImportError where it is not installed;
    whatever else it raises is reported as its failure.
    """

    def __call__(self, problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
        """Compile, tune and warm up for `problem` on the CUstream at address `stream`."""


@dataclass(frozen=True, slots=True)
class PeerName:
    """A peer as it is called, and where its `Prepare` is: module:attribute."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Entered:
    """A peer whose output was verified on the whole problem and which will be timed."""

    name: str
    version: str
    note: str
    error: float
    """Largest relative error against float64."""
    max_ulp: float
    inexact: str
    """Why it would not pass as a kernel of ours, where that is rounding alone; else empty."""
    wrong_rows: tuple[str, ...] = ()
    """Rows on which it is wrong all the same, such as those with infinities, in words."""


@dataclass(frozen=True, slots=True)
class NotEntered:
    """A peer that will not be timed, and why."""

    name: str
    stage: str
    """missing, refused, failed, wrong, crash or timeout."""
    reason: str
    trace: str = ""
    """The traceback of a failure."""
    context_lost: bool = False
    """Whether the GPU's context is unusable after it."""


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """Configs, copy and peers, timed in turn."""

    ours: Comparison
    peers: dict[str, tuple[float, ...]]
    """Microseconds a launch, one a round, of each peer that had entered."""


class PeerBench(Evaluator, Protocol):
    """An evaluator of one problem that times peers as well."""

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer and verify what it computes, within `limit_s` seconds."""

    def compare_with_peers(self, configs: Sequence[Config], rounds: int) -> PeerTimes:
        """Time measured configs, copy and all peers that entered in turn, `rounds` times each."""
