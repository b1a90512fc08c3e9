"""What the emulator reports: defects of a kernel, and errors for what it cannot execute."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from explorer.ptx_emulator.program import Extents, Instruction, SourceLine


class Kind(StrEnum):
    """The kinds of defects."""

    SHARED_RACE = "shared-race"
    GLOBAL_RACE = "global-race"
    UNINITIALISED_SHARED = "uninitialised-shared"
    UNINITIALISED_GLOBAL = "uninitialised-global"
    OUT_OF_BOUNDS = "out-of-bounds"
    READ_ONLY = "read-only"
    NON_COHERENT = "non-coherent"
    """A load through the non-coherent cache of memory that the same launch writes."""
    MISALIGNED = "misaligned"
    BARRIER = "barrier"
    WARP_MASK = "warp-mask"
    ASYNC_WAIT = "async-wait"
    ASYNC_PROXY = "async-proxy"
    MBARRIER = "mbarrier"
    CLUSTER = "cluster"
    SCHEDULE = "schedule"
    """The result depends on the order in which threads run."""
    LAUNCH = "launch"
    """The launch exceeds a bound of the kernel or of the GPU, which would refuse it."""
    DEADLOCK = "deadlock"
    LIMIT = "limit"
    """The emulator gave up after a number of steps. This says nothing about the kernel."""
    TRAP = "trap"
    NEVER_WRITTEN = "never-written"
    WRITTEN_TWICE = "written-twice"
    POISON = "poison"


@dataclass(slots=True)
class Finding:
    """One defect at one instruction, with the first thread that met it and a count."""

    kind: Kind
    message: str
    ptx_line: int = 0
    """Line of the PTX text, from 1; 0 if the finding is about no instruction."""
    source: SourceLine | None = None
    block: Extents | None = None
    thread: Extents | None = None
    other: SourceLine | None = None
    """The source line of the earlier access, if the defect is about two accesses."""
    count: int = 1

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        ptx = f" [PTX line {self.ptx_line}]" if self.ptx_line else ""
        who = f" block {self.block} thread {self.thread}" if self.thread else ""
        return f"{self.kind}: {self.message}{where}{ptx}{who} ({self.count}x)"


ABSENT_LANE = "the value is read from a lane that does not take part"
"""What a finding says of a shuffle whose result is undefined, though all lanes of its mask came."""


class EmulatorError(Exception):
    """Base of the errors that the emulator raises. The text is one sentence for a user."""


class UnsupportedPtx(EmulatorError):
    """PTX that the emulator does not know: the kernel stays unverified. `opcodes` names them."""

    def __init__(self, opcodes: tuple[str, ...], detail: str = "") -> None:
        self.opcodes = opcodes
        names = ", ".join(opcodes)
        super().__init__(
            f"the emulator does not know {names}{detail}; the kernel is unverified, not passed"
        )


class LaunchError(EmulatorError):
    """A launch that the emulator cannot make: a wrong entry, argument, block or cluster."""


class Aborted(Exception):
    """Execution cannot go on after the defect that was just reported."""


class FindingLog:
    """Collects findings, one for each (kind, instruction, other instruction, key)."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}

    def add(
        self,
        kind: Kind,
        message: str,
        instruction: Instruction | None = None,
        *,
        block: Extents | None = None,
        thread: Extents | None = None,
        other: Instruction | None = None,
        count: int = 1,
        key: object = None,
    ) -> None:
        """Report a defect. A repeat at the same place adds to its count."""
        pc = instruction.pc if instruction else None
        identity = (kind, pc, other.pc if other else None, key)
        if identity in self._found:
            self._found[identity].count += count
            return
        self._found[identity] = Finding(
            kind,
            message,
            instruction.ptx_line if instruction else 0,
            instruction.source if instruction else None,
            block,
            thread,
            other.source if other else None,
            count,
        )

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)
