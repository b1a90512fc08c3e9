"""What evaluates: a device verifies kernels of a problem, and times them.

A GPU of this machine, a recording and the emulator each are one. What they are asked and what they
answer is plain data, so that a device of another machine can be one as well. Nothing above asks
which it has: what differs between them is in `can_time` and in the `Facts` of an opened problem.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from explorer.codegen.variant import Launch
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.evaluator import Comparison
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Outcome, Resources
from explorer.model.peer import Entered, NotEntered, PeerName
from explorer.model.problem import Problem
from explorer.reference.inputs import Case, Held
from explorer.reference.layout import Promise

if TYPE_CHECKING:  # the process of a GPU, which reads the messages alone, need not import them
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.devices.verdict import Verdict

# ------------------------------------------------------------------ an opened problem


@dataclass(frozen=True, slots=True)
class Setting:
    """A problem to open, and how its kernels are verified and timed."""

    problem: Problem
    timing: str = "cold"
    """Cold, where launches rotate over buffers larger than the L2 cache, or warm."""
    seed: int = 0
    """Of the inputs, of the order of rounds, and of that of emulated threads."""
    accuracy: Accuracy = Accuracy.DEFAULT
    """What kernels must meet, if a small run says nothing else."""
    only: Held | None = None
    """What the problem's last rows hold in the verification; None for anything."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device found out while it prepared a problem; zeros where it times nothing afresh."""

    driver: str = ""
    """Version of the GPU's driver."""
    limit_us: float = 0.0
    """Microseconds a launch of the problem's limit."""
    limit_name: str = ""
    """How the fastest kernel of the limit moves its bytes."""
    buffers: int = 0
    """Pairs of input and output that launches rotate over."""
    launches_per_sample: int = 0
    """Launches of a graph whose replay is a sample."""
    catalogue: Mapping[Config, str] | None = None
    """The only configs that it can evaluate, a recording's, with the digests of their code; None
    for every config that is compiled for its GPU."""
    compared: frozenset[Config] = frozenset()
    """Of the catalogue, what was timed in turn."""
    environment: Environment | None = None
    """Of the catalogue's measurements."""
    notices: tuple[str, ...] = ()
    """Sentences on what limits the catalogue; mostly none."""


# ------------------------------------------------------------------ kernels


FAR_SLOWER = 2.0
"""A kernel that takes more than so many times as long as the best so far gets few launches and
samples in any kind of run."""


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
    promise: Promise | None = None
    """What the addresses of its matrices are multiples of, and of no more."""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to verify on small problems and on the whole one, then to time."""

    config: Config
    """What emitted it; to a device with a catalogue no more is given."""
    digest: str = ""
    """Digest of the source; empty where that may have been edited."""
    cubin: bytes = b""
    """Machine code for the device's GPU."""
    code_digest: str = ""
    """Digest of the code and its launches: of jobs that share it only one is evaluated."""
    resources: Resources = field(default_factory=lambda: Resources(registers=0))
    small_runs: tuple[SmallRun, ...] = ()
    launches: tuple[Launch, ...] = ()
    scratch_bytes: int = 0
    """Device memory that the launches share."""
    best_us: float = 0.0
    """Time of the best so far, in microseconds; 0 for none."""
    slower: float = FAR_SLOWER
    """A kernel that takes more than so many times as long as the best gets fewer samples."""


@dataclass(frozen=True, slots=True)
class Compared(Comparison):
    """A comparison, and what the GPU was at during it."""

    limit_name: str = ""
    """How the fastest kernel of the limit moves its bytes."""
    sm_clock_mhz: int = 0
    memory_clock_mhz: int = 0
    throttle_reasons: str = ""


# ------------------------------------------------------------------ devices


class Device:
    """Evaluates kernels of one problem after another; a context manager, which closes it.

    A device defines what it can do; what it does not define raises InvalidInput.
    """

    can_time = True
    """Whether it times kernels. Of one that does not, several at once disturb no times."""
    gpu: GpuSpec
    """The GPU that times come from; of a recording, once a problem is open."""
    workers: Sequence[str] | None = None
    """A line on each GPU of a cluster, which all evaluate at the same time. None for one device,
    which evaluates jobs in the order in which they are begun."""
    on_run: Callable[[int, int], None] | None = None
    """What hears how many runs of a check are over, and of how many that are known to come."""

    def open(self, setting: Setting) -> Facts:
        """Prepare a problem in place of the one before, whose peers leave.

        Raises InvalidInput for what it cannot prepare, NotFound where it has nothing on the
        problem, and DeviceLost.
        """
        raise NotImplementedError

    def verify(
        self,
        program: "ProgramUnderTest",
        rows: int | None = None,
        then: Sequence["ProgramUnderTest"] = (),
        told: Callable[[int, int], None] | None = None,
    ) -> "Verdict":
        """Compile and check a program, also one that was edited; its failures are verdicts.

        A device that times does so on the open problem, and the verdict has the outcome. `rows` are
        those that another one checks it on, None for as many as reveal a fault, and `then` is what
        is verified next, which may compile meanwhile. An emulator has `told` how many runs have
        ended, and of how many at least. Raises InvalidInput for impossible launches.
        """
        raise InvalidInput("a recording checks no kernels: verify them on cuda:N or emulated")

    def begin(self, job: Job) -> None:
        """Go on with a job by itself, if it can be taken now; does not wait.

        `evaluate` is to be called for it next, or after the one that was begun before it.
        """

    def evaluating(self, job: Job) -> Future[Any] | None:
        """Return a future that is done once a begun job is; None where jobs wait their turn."""
        return None

    def evaluate(self, job: Job) -> Outcome:
        """Verify a kernel and time it; what fails, crashes or hangs is an outcome.

        Raises DeviceLost if the device cannot go on.
        """
        raise InvalidInput("the emulator times no kernels: time them on cuda:N")

    def compare(self, jobs: Sequence[Job], rounds: int, seed: int) -> Compared:
        """Time verified kernels, the limit and the peers that entered in turn, `rounds` times each.

        Raises DeviceLost if one of them fails.
        """
        raise InvalidInput("the emulator times no kernels: time them on cuda:N")

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare and verify a peer in `limit_s` seconds, for the comparisons that follow.

        A crash or a hang excludes it alone.
        """
        raise InvalidInput("peers are timed on a GPU alone: name cuda:N")

    def close(self) -> None:
        """Free what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
