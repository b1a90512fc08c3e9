"""The state of one batch of blocks while a launch runs."""

from dataclasses import dataclass, field

import numpy as np

from explorer.devices.emulated.asynchronous import AsynchronousCopies
from explorer.devices.emulated.bulk_groups import BulkGroups
from explorer.devices.emulated.cluster import Clusters
from explorer.devices.emulated.communication import communicates
from explorer.devices.emulated.counters import Counters, TrafficCounter
from explorer.devices.emulated.findings import FindingLog, Kind, UnsupportedPtx
from explorer.devices.emulated.geometry import Geometry, SpecialRegisters
from explorer.devices.emulated.lanes import WARP, Lanes
from explorer.devices.emulated.layout import Layout
from explorer.devices.emulated.mbarriers import Mbarriers
from explorer.devices.emulated.memory import GlobalMemory
from explorer.devices.emulated.ordering import Ordering, Row
from explorer.devices.emulated.program import Entry, Instruction
from explorer.devices.emulated.ptx_types import Values
from explorer.devices.emulated.shadow import Shadow
from explorer.devices.emulated.shared_space import SharedSpace
from explorer.devices.emulated.spaces import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    GlobalSpace,
    LocalSpace,
    Space,
)


@dataclass(slots=True)
class LaunchState:
    """What all batches of a launch share."""

    entry: Entry
    geometry: Geometry
    memory: GlobalMemory
    layout: Layout
    params: dict[str, bytes]
    findings: FindingLog = field(default_factory=FindingLog)
    counters: Counters = field(default_factory=Counters)
    traffic: TrafficCounter = field(default_factory=TrafficCounter)
    shadows: dict[int, Shadow] = field(default_factory=dict)
    overlaps: bool = False
    """The launch before may not have ended yet."""
    pcs: list[int] = field(default_factory=lambda: [0])
    """The instruction executed at each time; its length is the present time plus one."""


class Machine:
    """A batch of blocks: shape (blocks, warps, 32), memories, and the order of events."""

    def __init__(self, launch: LaunchState, first_block: int, blocks: int) -> None:
        geometry = launch.geometry
        self.launch = launch
        self.geometry = geometry
        self.memory = launch.memory
        self.counters = launch.counters
        self.traffic = launch.traffic
        self.blocks = blocks
        self.first_block = first_block
        self.cluster_size = geometry.cluster_size
        self.shape = (blocks, geometry.warps, WARP)
        self.ordering = Ordering(
            blocks,
            geometry.warps,
            geometry.cluster_size,
            # A flag from an earlier batch cannot be traced back to what it published.
            earlier_known=communicates(launch.entry),
        )
        self.first_lane = first_block * self.ordering.per_block
        self._special = SpecialRegisters(geometry, first_block, blocks)
        layout = launch.layout
        self.global_space = GlobalSpace(self, layout.global_granule, launch.shadows)
        self.shared_space = SharedSpace(self, layout.shared_ranges, layout.shared_granule)
        self.local_space = LocalSpace(self, layout.local_ranges)
        self.asynchronous = AsynchronousCopies(self)
        self.mbarriers = Mbarriers(self)
        self.clusters = Clusters(self)
        self.bulk = BulkGroups()
        self.proxy_fences = np.zeros(self.ordering.lanes, np.int64)
        """When each thread last executed fence.proxy.async."""
        self.unordered = np.full(self.ordering.lanes, launch.overlaps)
        """Threads that have not waited for the launch before, which may not have ended yet."""
        self.published: dict[int, Row] = {}
        """What the last strong writes to a place let its readers know."""
        self.progress = False
        """Something changed that a spinning thread could be waiting for."""
        for shadow in launch.shadows.values():
            shadow._machine = self

    # Time.

    def tick(self, instruction: Instruction) -> int:
        """The time of the access or synchronisation that `instruction` now makes."""
        self.launch.pcs.append(instruction.pc)
        return len(self.launch.pcs) - 1

    @property
    def now(self) -> int:
        """The time of the last access or synchronisation."""
        return len(self.launch.pcs) - 1

    def instruction_at(self, when: int) -> Instruction:
        """The instruction that was executed at a time."""
        return self.launch.entry.instructions[self.launch.pcs[when]]

    def publish(self, place: int, row: Row, *, keep: bool) -> None:
        """Let readers of `place` know `row`; an atomic adds to what was published before."""
        earlier = self.published.get(place)
        if keep and earlier is not None:
            row = np.maximum(earlier, row)
        self.published[place] = row

    def wait_for_launch_before(self, lanes: Lanes) -> None:
        """These threads go on once the launch before has ended."""
        self.unordered[lanes.flat] = False

    # Names and places.

    def special(self, name: str, ptx_type: str) -> Values:
        """A special register's value; raises UnsupportedPtx."""
        if name in ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"):
            raise UnsupportedPtx((name,))
        return self._special.value(name, ptx_type)

    def symbol_address(self, name: str) -> int:
        """The address of a variable in its own space; raises UnsupportedPtx."""
        addresses = self.launch.layout.addresses
        if name not in addresses:
            raise UnsupportedPtx((f"symbol {name}",))
        return addresses[name]

    @staticmethod
    def window(space: str) -> int:
        """What to add to an address of `space` to make it generic."""
        return {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)

    def space(self, name: str) -> Space:
        """A state space by PTX's name."""
        if name.startswith("shared"):
            return self.shared_space
        return self.local_space if name == "local" else self.global_space

    # Reports.

    def place_of(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The block and the thread of a lane of the batch."""
        block, thread = divmod(lane + self.first_lane, self.ordering.per_block)
        return self.geometry.block_place(block), self.geometry.thread_place(thread)

    def describe_lane(self, lane: int) -> str:
        """A lane in words."""
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
        """Add a finding, with the thread of `lane` as its example."""
        block = thread = None
        if lane is not None:
            block, thread = self.place_of(int(lane))
        self.launch.findings.add(
            kind,
            message,
            instruction,
            block=block,
            thread=thread,
            other=other,
            count=count,
            key=key,
        )

    def real_lanes(self) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The lanes that are threads: the last warp of a block may not be full."""
        threads = self.geometry.threads
        lanes = np.arange(self.ordering.lanes)
        return lanes[lanes % self.ordering.per_block < threads]
