"""A batch of blocks with its memories: what instructions are bound to and act on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.batch import Batch, LaunchLog
from explorer.ptx_emulator.element_sets import MaximaSeen
from explorer.ptx_emulator.findings import UnsupportedPtx
from explorer.ptx_emulator.geometry import Geometry, Layout, Numbers, SpecialRegisters
from explorer.ptx_emulator.lanes import WARP, Lanes
from explorer.ptx_emulator.memory import GlobalMemory
from explorer.ptx_emulator.program import Entry, Instruction, Symbol, Values, once_an_entry
from explorer.ptx_emulator.shadow import Shadow
from explorer.ptx_emulator.spaces import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    GlobalSpace,
    LocalSpace,
    SharedSpace,
    Space,
)

_P = TypeVar("_P")

_UNKNOWN = (
    *("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"),
    *("%smid", "%nsmid", "%warpid", "%nwarpid", "%gridid"),
)
"""Special registers whose values depend on the moment, or on where a GPU puts a block."""


class Schedule(StrEnum):
    """In which order the threads of a launch run. Every order is one that a GPU may take."""

    LOCKSTEP = "lockstep"
    """All threads advance together, as far as their paths agree."""
    STAGGERED = "staggered"
    """Each block starts only when the blocks before it wait, spin or have ended."""
    PERMUTED = "permuted"
    """Warps run one at a time, the last of a block first, each as far as it can.

    So do blocks if they communicate. Atomics of one instruction go from the last lane to the first.
    """
    RANDOM = "random"
    """As in PERMUTED, but warps, blocks and lanes go in an order drawn by the launch's seed."""


@dataclass(slots=True)
class LaunchState:
    """What all batches of a launch share."""

    entry: Entry
    geometry: Geometry
    numbers: Numbers
    """The blocks that run, by their numbers in launch order."""
    memory: GlobalMemory
    layout: Layout
    params: dict[str, bytes]
    log: LaunchLog
    overlaps: bool = False
    """The launch before may not have ended yet."""
    others_write: bool = False
    """That launch is of another program, and may write all memory."""
    schedule: Schedule = Schedule.LOCKSTEP
    seed: int = 0
    """Of the random order of threads."""
    late_copies: bool = False
    """Whether the first wait for copies that an mbarrier counts fails."""
    compares_orders: bool = False
    """Whether what is rounded to 16 bits is noted, to be compared with another order's."""
    reproducible: bool = False
    """Sums of floats whose order is not fixed are findings."""
    maxima: MaximaSeen | None = None
    """What notes of which elements maxima are made, where floats are sets of these."""
    shadows: dict[int, Shadow] = field(default_factory=dict)
    """Shadows of global memory, by the address of the allocation."""


class Machine(Batch):
    """A batch of blocks of a launch, its memories, and the parts that instructions need."""

    def __init__(self, launch: LaunchState, part: slice) -> None:
        """Take the part of the launch's blocks that runs now."""
        super().__init__(
            launch.geometry,
            launch.numbers,
            part,
            launch.log,
            # A flag from an earlier batch cannot be traced back to what it published.
            earlier_known=communicates(launch.entry),
        )
        self.entry = launch.entry
        self.params = launch.params
        self.schedule = launch.schedule
        self.late_copies = launch.late_copies
        self.compares_orders = launch.compares_orders
        self.of_sets = launch.maxima is not None
        self._maxima = launch.maxima
        self.random = np.random.default_rng([launch.seed, part.start])
        self.reproducible = launch.reproducible
        self._rounded = np.zeros(self.ordering.lanes, np.uint64)
        self._addresses = launch.layout.addresses
        self._special: SpecialRegisters | None = None
        self.global_space = GlobalSpace(
            self,
            launch.memory,
            launch.layout.global_granule,
            launch.shadows,
            overlaps=launch.overlaps,
            others_write=launch.others_write,
        )
        self.shared_space = SharedSpace(self, launch.layout)
        self.local_space = LocalSpace(self, launch.layout)
        self._parts: dict[Any, Any] = {}

    def part(self, kind: "Callable[[Machine], _P]") -> _P:
        """Return the batch's one object of a class, made from the machine when first asked for.

        Instructions keep their state so: mbarriers, copies in flight, barriers, the scheduler.
        """
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        part: _P = self._parts[kind]
        return part

    def release(self) -> None:
        """Add to the log, and let go of all parts and memories, which refer to the machine.

        A batch has megabytes of arrays, and its kernel a hundred thousand objects: they are freed
        at once so, and need not be found by the garbage collector.
        """
        numbers = np.arange(self.first_lane, self.first_lane + self.ordering.lanes, dtype=np.uint64)
        digest = int(np.sum(self._rounded * (2 * numbers + np.uint64(1))))
        self.log.rounded = (self.log.rounded + digest) % 2**64
        self.log.work += self.work
        self._parts.clear()
        del self.global_space, self.shared_space, self.local_space

    def in_turn(self, count: int) -> NDArray[np.int64] | None:
        """Return the order in which lanes go whom nothing orders; None for that of their numbers.

        A reversal alone would not tell a sum over five places from the same sum backwards.
        """
        if self.schedule is Schedule.PERMUTED:
            return np.arange(count)[::-1]
        return self.random.permutation(count) if self.schedule is Schedule.RANDOM else None

    def note_rounded(self, lanes: Lanes, values: NDArray[np.float32]) -> None:
        """Note numbers that these lanes round to 16 bits, which mostly hides an order of theirs."""
        self._rounded[lanes.flat] *= np.uint64(6364136223846793005)
        self._rounded[lanes.flat] += values.view(np.uint32)

    def note_maximum(self, sets: NDArray[np.unsignedinteger[Any]]) -> None:
        """Note of which elements some maxima are made, where floats are sets of them."""
        if self._maxima is not None:
            self._maxima.note(sets)

    # Names and places.

    def special(self, name: str, ptx_type: str) -> Values:
        """Return the value of a special register. Raises UnsupportedPtx."""
        if name in _UNKNOWN:
            raise UnsupportedPtx((name,))
        if self._special is None:
            self._special = SpecialRegisters(self.geometry, self.numbers)
        return self._special.value(name, ptx_type)

    def symbol_address(self, name: str) -> int:
        """Return the address of a variable in its own space. Raises UnsupportedPtx."""
        if name not in self._addresses:
            raise UnsupportedPtx((f"symbol {name}",))
        return self._addresses[name]

    @staticmethod
    def window(space: str) -> int:
        """Return what to add to an address of `space` to make it generic."""
        return {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)

    def space(self, name: str) -> Space:
        """Return a state space by PTX's name."""
        if name.startswith("shared"):
            return self.shared_space
        return self.local_space if name == "local" else self.global_space


# Whether blocks talk to one another through global memory.

_STRONG = {"volatile", "relaxed", "acquire", "acq_rel", "mmio"}


@once_an_entry
def communicates(entry: Entry) -> bool:
    """Return whether a kernel reads what other blocks may publish, by atomics or strong loads."""
    return any(_reads_flags(instruction) for instruction in entry.instructions)


def permuted_turns(entry: Entry, blocks: int, threads: int, cluster_size: int) -> int:
    """Return how many groups of threads take turns in a permuted or random schedule.

    The schedule takes about as many times the steps that a launch takes in lockstep. `threads` are
    those of a block.
    """
    apart = blocks if communicates(entry) else cluster_size
    return apart * -(-threads // WARP)


@once_an_entry
def waits_for_other_blocks(entry: Entry) -> bool:
    """Return whether it does so in a loop, so that blocks may have to run side by side."""
    return any(_reads_flags(instruction) for instruction in _in_loops(entry))


@once_an_entry
def spins(entry: Entry) -> bool:
    """Return whether threads look again and again at memory that others write, but for mbarriers.

    It is not known how often: work that no thread of a GPU waits for may take the emulator hours.
    """
    return any(_is_strong(instruction) for instruction in _in_loops(entry))


def _in_loops(entry: Entry) -> Iterator[Instruction]:
    """Yield the instructions between each backward branch and its label."""
    instructions = entry.instructions
    for branch in instructions:
        if branch.root == "bra" and branch.operands and isinstance(branch.operands[0], Symbol):
            start = entry.labels.get(branch.operands[0].name, len(instructions))
            yield from instructions[start : branch.pc]


def _is_strong(instruction: Instruction) -> bool:
    strong = bool(_STRONG & set(instruction.modifiers))
    return instruction.root == "atom" or (instruction.root == "ld" and strong)


def _reads_flags(instruction: Instruction) -> bool:
    shared = any(m.startswith("shared") for m in instruction.modifiers)
    return not shared and _is_strong(instruction)
