"""What the emulator reports: defects found, and what it cannot execute."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from explorer.devices.emulated.program import Instruction, SourceLine
from explorer.errors import ExplorerError


class Kind(StrEnum):
    """The defects that the emulator tells apart."""

    SHARED_RACE = "shared-race"
    GLOBAL_RACE = "global-race"
    UNINITIALISED_SHARED = "uninitialised-shared"
    UNINITIALISED_GLOBAL = "uninitialised-global"
    OUT_OF_BOUNDS = "out-of-bounds"
    READ_ONLY = "read-only"
    MISALIGNED = "misaligned"
    BARRIER = "barrier"
    WARP_MASK = "warp-mask"
    ASYNC_WAIT = "async-wait"
    ASYNC_PROXY = "async-proxy"
    MBARRIER = "mbarrier"
    CLUSTER = "cluster"
    DEADLOCK = "deadlock"
    LIMIT = "limit"
    TRAP = "trap"
    NEVER_WRITTEN = "never-written"
    WRITTEN_TWICE = "written-twice"
    POISON = "poison"


@dataclass(slots=True)
class Finding:
    """One defect at one instruction, with the first thread that met it and how often it struck."""

    kind: Kind
    message: str
    ptx_line: int = 0
    source: SourceLine | None = None
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    other: SourceLine | None = None
    """For a race: the source line of the access it collides with."""
    count: int = 1

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        ptx = f" [PTX line {self.ptx_line}]" if self.ptx_line else ""
        who = f" block {self.block} thread {self.thread}" if self.thread else ""
        return f"{self.kind}: {self.message}{where}{ptx}{who} ({self.count}x)"


class UnsupportedPtx(ExplorerError):
    """PTX that the emulator does not know: the kernel stays unverified. `opcodes` names them."""

    def __init__(self, opcodes: tuple[str, ...], detail: str = "") -> None:
        self.opcodes = opcodes
        names = ", ".join(opcodes)
        super().__init__(
            f"the emulator does not know {names}{detail}; the kernel is unverified, not passed"
        )


class LaunchError(ExplorerError):
    """A launch that cannot be made: wrong entry, arguments, block or cluster."""


class Aborted(Exception):
    """Execution cannot go on after what was just reported."""


class FindingLog:
    """Collects findings, one for each (kind, instruction, message head)."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}

    def add(
        self,
        kind: Kind,
        message: str,
        instruction: Instruction | None = None,
        *,
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
        other: Instruction | None = None,
        count: int = 1,
        key: object = None,
    ) -> None:
        """Report a defect; a repeat at the same place adds to its count."""
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
