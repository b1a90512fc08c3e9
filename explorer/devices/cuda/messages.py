"""Messages between the process that searches and the worker that owns the GPU."""

from dataclasses import dataclass, field

from explorer.codegen import Launch
from explorer.model.accuracy import Accuracy
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Resources
from explorer.model.peer import PeerName
from explorer.model.problem import Problem
from explorer.reference import Case

FAR_SLOWER = 2.0
"""A kernel that takes more than so many times as long as the best so far gets few launches and
samples in any kind of run."""


@dataclass(frozen=True, slots=True)
class Open:
    """Prepare buffers and tools for a problem; answered by SessionFacts."""

    problem: Problem
    timing: str
    tools_cubins: tuple[bytes, ...]
    seed: int
    accuracy: Accuracy = Accuracy.DEFAULT


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts that the worker measured while it prepared a problem."""

    driver: str
    copy_us: float
    copy_name: str
    """Name of the fastest plain copy."""
    buffers: int
    """Pairs of input and output that launches rotate over."""
    launches_per_sample: int


@dataclass(frozen=True, slots=True)
class SmallRun:
    """Launches of a kernel on one small problem, to verify it."""

    case: Case
    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    misaligned_by: int = 0
    """Misalignment of the matrices (`first_elements`)."""
    accuracy: Accuracy | None = None
    """The accuracy that it must meet; None for the session's."""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to verify on small problems and on the whole one, then to time."""

    cubin: bytes
    digest: str
    """Digest of the source."""
    code_digest: str
    """Digest of the code and its launches: of jobs that share it only one is evaluated."""
    resources: Resources
    small_runs: tuple[SmallRun, ...]
    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    """Device memory that the launches share."""
    best_us: float = 0.0
    """Time of the best so far, in microseconds; 0 for none."""
    slower: float = FAR_SLOWER
    """A kernel that takes more than so many times as long as the best gets fewer samples."""


@dataclass(frozen=True, slots=True)
class Enter:
    """Prepare and verify a peer, to be timed by the next Compare; Entered or NotEntered."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class Compare:
    """Verify contenders again, then time them, peers and copy in turn, `rounds` samples each."""

    contenders: tuple[Job, ...]
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Samples in microseconds a launch: a row a contender, and copy's."""

    samples_us: tuple[tuple[float, ...], ...]
    copy_us: tuple[float, ...]
    copy_name: str
    sm_clock_mhz: int
    memory_clock_mhz: int
    throttle_reasons: str
    peers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Rows of the peers that had entered."""


@dataclass(frozen=True, slots=True)
class Described:
    """The GPU's limits; the worker's first message."""

    gpu: GpuSpec
    uuid: str
    """Hexadecimal digits of the GPU's UUID, the same in every process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed in the worker, and why."""

    reason: str
    context_lost: bool
    """Whether the GPU's context is unusable, so that the worker ends."""


@dataclass(frozen=True, slots=True)
class Bug:
    """An unforeseen error in the worker, which stops the search; its study stays intact."""

    traceback: str
