"""The contract between the bench and a peer: another library's function, timed beside ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from explorer.model.errors import ExplorerError
from explorer.model.evaluator import Evaluator
from explorer.model.outcome import Absent
from explorer.model.problem import Problem


class PeerRefuses(ExplorerError):
    """Raised if a peer cannot compute a problem by this protocol; the message says why."""


@dataclass(frozen=True, slots=True)
class PeerBuffers:
    """Device memory that launches rotate over: addresses of dense arrays.

    Launch i reads the (rows, cols) matrix `inputs[i % len(inputs)]`, and may write
    `outputs[i % len(outputs)]`. For a backward op, inputs are the forward's outputs, and launch i
    also reads their gradient at `grads[i % len(grads)]`. Attention has no `inputs`.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    grads: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    """Of an op that reads some: (rows, ids_per_row), each a column."""
    others: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By their names, numbers of each row: operands, and results on request, which launches may
    write. Of attention all operands: queries (rows, head_dim), keys and values in the order of the
    problem's layout, and the lengths of sequences."""


class ReadyPeer(Protocol):
    """A peer made ready for one problem, on one stream; indices of launches wrap."""

    @property
    def version(self) -> str:
        """The library and its version, such as torch 2.11.0."""

    @property
    def note(self) -> str:
        """The choice made for the problem, such as num_warps 8; empty without one."""

    def launch(self, index: int) -> None:
        """Put one launch on the stream, without waiting for it."""

    def output(self, index: int, name: str = "output") -> int:
        """Return the address of the last result for an index, dense, of the result's type.

        Another name than the output's is asked for only if the problem has such a result.
        """

    def capture(self, count: int) -> int | None:
        """Return a CUgraph of launches 0 to count - 1, which stays valid until `close`.

        None if the bench can capture `launch` itself: if it allocates no memory that could be
        allocated again while the graph exists.
        """

    def close(self) -> None:
        """Free graphs and memory."""


@runtime_checkable
class Renews(Protocol):
    """What a `ReadyPeer` is as well if it launches on operands of its own, made of the given ones.

    Such a peer writes over its input, for one.
    """

    def renew(self) -> None:
        """Make its operands anew: the given ones have changed, and what it computes is checked.

        That is put on the stream before the launches, and is not timed.
        """


class Prepare(Protocol):
    """The function that an entry point of a peer names.

    Raises PeerRefuses for a problem that the peer cannot compute, and ImportError if it is not
    installed; any other exception is reported as its failure.
    """

    def __call__(self, problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
        """Compile, tune and warm up for `problem` on the CUstream at address `stream`."""


@dataclass(frozen=True, slots=True)
class PeerName:
    """The name of a peer, and its `Prepare` as module:attribute."""

    name: str
    target: str
    given: str = ""
    """Where it is not empty, `target` is called with it, and returns the `Prepare`."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A peer that will be timed, since its output was verified on the whole problem."""

    name: str
    version: str
    note: str
    error: float
    """Largest relative error against float64."""
    max_ulp: float
    inexact: str
    """Why rounding alone would reject it as a kernel of ours; else empty."""
    wrong_rows: tuple[str, ...] = ()
    """Names of patterns on which it is wrong, such as rows with infinities."""


@dataclass(frozen=True, slots=True)
class NotEntered(Absent):
    """A peer that is missing, refused, failed, wrong, crashed or timed out, so is not timed."""

    trace: str = ""
    """The traceback of a failure."""
    context_lost: bool = False
    """Whether the GPU's context is unusable after it."""


class PeerBench(Evaluator, Protocol):
    """An evaluator of one problem that times peers as well."""

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer and verify its output, within `limit_s` seconds, to be compared then."""
