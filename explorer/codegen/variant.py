"""A variant: the program that a config emits for a problem."""

import hashlib
from dataclasses import dataclass, fields

from explorer.config import Config
from explorer.problem import Problem

_HOST_BEGINS = ("#ifndef __CUDACC_RTC__", "#if !defined(__CUDACC_RTC__)")


@dataclass(frozen=True, slots=True, repr=False)
class Launch:
    """One launch of a variant. `arguments` names what is passed, in order.

    Names are those of `operands`: arrays are passed by their addresses, numbers by value.
    """

    entry: str
    grid: int
    block: int
    shared_bytes: int
    arguments: tuple[str, ...]
    blocks_per_sm: int = 0
    """Where not 0, the grid is at most so many blocks on each SM: blocks stride over the rows."""
    cluster: int = 1
    """Blocks of a cluster, as the kernel declares them."""
    overlaps: bool = False
    """It may begin before the launch before it has ended, and waits in its code for that one."""

    def __repr__(self) -> str:
        """Digests are made of it: a grid of all blocks reads as before there were others.

        The code itself says what a cluster is, and where a launch waits for another.
        """
        untold = {"cluster", "overlaps"} | (set() if self.blocks_per_sm else {"blocks_per_sm"})
        shown = [f for f in fields(self) if f.name not in untold]
        return f"Launch({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def grid_on(self, sm_count: int) -> int:
        """Blocks to launch on a GPU of `sm_count` SMs."""
        return min(self.grid, self.blocks_per_sm * sm_count) if self.blocks_per_sm else self.grid


@dataclass(frozen=True, slots=True)
class Variant:
    """Source and launches, in order, of `config` for `problem`."""

    problem: Problem
    config: Config
    source: str
    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    """Device memory that launches share by the argument `scratch`; it begins undefined."""

    @property
    def code(self) -> str:
        """What the GPU runs: the source without header comment, host part and main program."""
        return split_source(self.source)[0]

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits over code and launches: equal digests run equal programs."""
        text = f"{self.code}\0{self.launches}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def split_source(source: str) -> tuple[str, str]:
    """What the GPU runs, and what the host does with it; the header comment is in neither."""
    lines = source.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    kernel: list[str] = []
    host: list[str] = []
    is_host = False
    for line in lines[start:]:
        is_host = is_host or line.startswith(_HOST_BEGINS)
        (host if is_host else kernel).append(line)
        is_host = is_host and not line.startswith("#endif")
    return "".join(kernel), "".join(host)
