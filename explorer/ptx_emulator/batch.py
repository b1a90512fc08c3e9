"""What every part of the emulator needs of a batch of blocks: shape, time, order, reports."""

from math import inf

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.counters import Counters, TrafficCounter
from explorer.ptx_emulator.findings import Aborted, FindingLog, Kind
from explorer.ptx_emulator.geometry import Geometry, Numbers
from explorer.ptx_emulator.happens_before import HappensBefore
from explorer.ptx_emulator.lanes import WARP, Lanes
from explorer.ptx_emulator.program import Entry, Extents, Instruction

WORK_LIMIT = 2_000_000_000
"""Instructions of one batch of blocks, each counted for every lane, and more for what takes longer
than arithmetic: half a minute. No kernel that ends comes near."""


class LaunchLog:
    """What all batches of a launch add to: the order of events, findings and counts."""

    def __init__(self, entry: Entry, *, counting: bool) -> None:
        self.instructions = entry.instructions
        self.findings = FindingLog()
        self.counters = Counters()
        self.traffic = TrafficCounter() if counting else None
        """Counts sectors and bank conflicts; None if nothing is to be counted."""
        self.pcs: list[int] = [0]
        """The instruction executed at each time. Its length is the present time plus one."""
        self.work = 0
        """What batches before the present one have executed (`Batch.work`)."""
        self.most_work: float = inf
        """Work after which the launch is given up."""
        self.rounded = 0
        """A digest of all f32 that threads have rounded to 16 bits, each thread's in its order."""
        self.steps = 0
        """Instructions executed, each once for a group of lanes."""


class Batch:
    """Some blocks of a grid that run together, as an array of shape (blocks, warps, 32)."""

    def __init__(
        self,
        geometry: Geometry,
        numbers: Numbers,
        part: slice,
        log: LaunchLog,
        *,
        earlier_known: bool = False,
    ) -> None:
        """Take a part of the blocks of a launch, which has the blocks with these `numbers`.

        With `earlier_known`, threads know what the blocks of earlier batches did.
        """
        self.geometry = geometry
        self._launched = numbers
        self.numbers = numbers[part]
        self.blocks = len(self.numbers)
        self.log = log
        self.counters = log.counters
        self.cluster_size = geometry.cluster_size
        self.shape = (self.blocks, geometry.warps, WARP)
        self.ordering = HappensBefore(
            self.blocks,
            geometry.warps,
            geometry.threads,
            geometry.cluster_size,
            earlier_known=earlier_known,
        )
        self.first_lane = part.start * self.ordering.per_block
        """Lanes of the launch in earlier batches; the codes of threads count from there."""
        self.progress = False
        """Something changed that a spinning thread could be waiting for."""
        self.work = 0
        """What has been executed, in arithmetic instructions of one lane, which take some 10 ns."""

    # Cost.

    def spend(self, work: int, at: Instruction, lane: int) -> None:
        """Count work that an instruction is about to take. Raises Aborted where it is too much."""
        self.work += work
        if self.work > min(WORK_LIMIT, self.log.most_work - self.log.work):
            self.give_up(at, lane)

    def give_up(self, at: Instruction, lane: int) -> None:
        """Report that the launch takes too long to be emulated, and raise Aborted."""
        message = (
            "it executes more steps than are emulated: a loop without an end, or work for a GPU "
            "to verify"
        )
        self.report(Kind.LIMIT, message, at, lane)
        raise Aborted

    # Time.

    def tick(self, instruction: Instruction) -> int:
        """Return the time of the access or synchronisation that `instruction` now makes."""
        pcs = self.log.pcs
        pcs.append(instruction.pc)
        return len(pcs) - 1

    @property
    def now(self) -> int:
        """The time of the last access or synchronisation."""
        return len(self.log.pcs) - 1

    def instruction_at(self, when: int) -> Instruction:
        """Return the instruction that was executed at a time."""
        return self.log.instructions[self.log.pcs[when]]

    # Places and reports.

    def real_lanes(self) -> NDArray[np.intp]:
        """Return the lanes that are threads: the last warp of a block may not be full."""
        lanes = np.arange(self.ordering.lanes)
        return lanes[lanes % self.ordering.per_block < self.geometry.threads]

    def blocks_of(self, lanes: Lanes) -> NDArray[np.intp]:
        """Return the block of each of these lanes."""
        block_of = self.ordering.block_of
        return block_of if lanes.full else block_of[lanes.flat]

    def place_of(self, lane: int) -> tuple[Extents, Extents]:
        """Return the block and the thread of a lane; a negative lane is of an earlier batch."""
        block, thread = divmod(lane + self.first_lane, self.ordering.per_block)
        place = self.geometry.block_place(int(self._launched[block]))
        return place, self.geometry.thread_place(thread)

    def describe_lane(self, lane: int) -> str:
        """Return a lane in words."""
        if lane == self.ordering.async_lane:
            return "the asynchronous copy"
        block, thread = self.place_of(lane)
        return f"thread {thread} of block {block}"

    def report(
        self,
        kind: Kind,
        message: str,
        instruction: Instruction,
        lane: int | None,
        *,
        other: Instruction | None = None,
        count: int = 1,
        key: object = None,
    ) -> None:
        """Add a finding, with the thread of `lane` as its example; the copy engine is no thread."""
        block = thread = None
        if lane is not None and lane < self.ordering.lanes:
            block, thread = self.place_of(int(lane))
        self.log.findings.add(
            kind,
            message,
            instruction,
            block=block,
            thread=thread,
            other=other,
            count=count,
            key=key,
        )
