"""Clusters: remote shared memory and its lifetime. PTX ISA, "mapa", "getctarank"."""

from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import Instruction, Special
from explorer.devices.emulated.ptx_types import Array
from explorer.devices.emulated.spaces import RANK_SHIFT, SHARED_WINDOW

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine

_OFFSET = (1 << RANK_SHIFT) - 1


class Clusters:
    """Watches accesses to the shared memory of other blocks of a cluster."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._remote: dict[tuple[int, int], tuple[int, int]] = {}
        """(target block, accessing block) to the last accessing lane and its time."""
        self._sent: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(target block, storing block, mbarrier) to the lane and time of its last asynchronous
        store; once that has come, to the copy engine and when it did."""
        self._ended = np.zeros(machine.blocks, np.bool_)

    def note_remote(self, targets: Array, lanes: Array, access: Access) -> None:
        """These lanes access the shared memory of `targets`: it must have begun and not ended."""
        machine = self._machine
        now = machine.now
        early = machine.ordering.cluster_met[lanes] == 0
        self._report(early, lanes, access, "before a cluster barrier says that it has started")
        self._report(self._ended[targets], lanes, access, "after it has exited")
        if "async" in access.instruction.modifiers:
            return  # under way until it comes, as its mbarrier counts
        own = lanes // machine.ordering.per_block
        for target, block, lane in zip(targets.tolist(), own.tolist(), lanes.tolist(), strict=True):
            self._remote[target, block] = (lane, now)

    def note_sent(self, target: int, mbarrier: int, lane: int, sender: int, now: int) -> None:
        """`lane` stores to `target`, counted by an mbarrier; or the engine, as `sender`, has."""
        block = lane // self._machine.ordering.per_block
        if target != block:
            self._sent[target, block, mbarrier] = (sender, now)

    def _report(self, bad: Array, lanes: Array, access: Access, when: str) -> None:
        if bad.any():
            self._machine.report(
                Kind.CLUSTER,
                f"{access.action} of another block's shared memory {when}",
                access.instruction,
                int(lanes[int(np.argmax(bad))]),
                count=int(np.count_nonzero(bad)),
                key=when,
            )

    def exited(self, lanes: Lanes, all_exited: Array) -> None:
        """A block whose last threads exit must know that no other block still reads from it."""
        if not self._remote and not self._sent:
            return
        machine = self._machine
        per_block = machine.ordering.per_block
        for block in np.unique(lanes.flat // per_block).tolist():
            if not all_exited[block * per_block : (block + 1) * per_block].all():
                continue
            self._ended[block] = True
            leaving = lanes.flat[lanes.flat // per_block == block]
            for (target, *_), (lane, when) in (*self._remote.items(), *self._sent.items()):
                if target == block:
                    self._check_exit(leaving, lane, when)

    def _check_exit(self, leaving: Array, lane: int, when: int) -> None:
        machine = self._machine
        who, time = np.full(len(leaving), lane), np.full(len(leaving), when, np.int64)
        met = machine.ordering.cluster_met[leaving] >= when
        if not (met | machine.ordering.ordered(who, time, leaving)).any():
            machine.report(
                Kind.CLUSTER,
                "the block may exit while another one still accesses its shared memory",
                machine.instruction_at(when),
                lane,
                key="exit",
            )


@binds("mapa")
def bind_mapa(binder: Binder, instruction: Instruction) -> Step:
    """mapa d, a, rank: the address of a's variable in another block of the cluster."""
    mods = binder.modifiers(instruction)
    mods.take("shared::cluster")
    ptx_type = mods.one_of(("u32", "u64"))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    address = binder.source(instruction.operands[1], ptx_type)
    rank = binder.source(instruction.operands[2], "u32")
    dtype = target.array.dtype

    def remote(a: Any, r: Any) -> Array:
        # The generic window lies above the rank, so it is kept as it is.
        own = np.asarray(a).astype(np.int64)
        base = own & ~np.int64(SHARED_WINDOW - 1)
        return (base | (np.asarray(r).astype(np.int64) + 1) << RANK_SHIFT | own & _OFFSET).astype(
            dtype
        )

    return computed(remote, target, address, rank)


@binds("getctarank")
def bind_getctarank(binder: Binder, instruction: Instruction) -> Step:
    """getctarank d, a: the rank of the block whose shared memory a lies in."""
    mods = binder.modifiers(instruction)
    mods.take("shared::cluster")
    ptx_type = mods.one_of(("u32", "u64"))
    mods.finish()
    target = binder.target(instruction.operands[0], "u32")
    address = binder.source(instruction.operands[1], ptx_type)
    own = binder.source(Special("%cluster_ctarank"), "u32")

    def rank(a: Any, mine: Any) -> Array:
        above = np.asarray(a).astype(np.int64) % SHARED_WINDOW >> RANK_SHIFT
        return np.where(above == 0, mine, above - 1).astype(np.uint32)

    return computed(rank, target, address, own)
