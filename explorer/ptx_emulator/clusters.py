"""Clusters: barrier.cluster, and addresses of the shared memory of other blocks.

PTX ISA, "barrier.cluster", "mapa", "getctarank".
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import (
    Binder,
    Control,
    Modifiers,
    Step,
    binds,
    computed,
    controls,
)
from explorer.ptx_emulator.findings import Kind
from explorer.ptx_emulator.happens_before import Row
from explorer.ptx_emulator.lanes import Lanes, distinct
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.mbarriers import Mbarriers
from explorer.ptx_emulator.memory_instructions import Fences
from explorer.ptx_emulator.program import Array, Instruction, Special
from explorer.ptx_emulator.scheduler import Scheduler, guarded
from explorer.ptx_emulator.spaces import RANK_SHIFT, SHARED_WINDOW

_OFFSET = (1 << RANK_SHIFT) - 1


@controls("barrier.cluster")
def bind_cluster_barrier(binder: Binder, instruction: Instruction) -> Control:
    """Bind barrier.cluster.arrive and barrier.cluster.wait."""
    barriers = binder.machine.part(_ClusterBarriers)
    mods = Modifiers(instruction)
    mods.one_of(("cluster",))
    action = mods.one_of(("arrive", "wait"))
    relaxed = mods.one_of(("release", "acquire", "relaxed"), "release") == "relaxed"
    mods.take("aligned")
    mods.finish()
    control: Control = partial(barriers.wait, instruction)
    if action == "arrive":
        control = partial(barriers.arrive, instruction, relaxed=relaxed)
    return guarded(binder, instruction, control)


@dataclass(frozen=True, slots=True)
class _Phase:
    """What a completed phase lets those know who waited for it."""

    met: int
    """When the first thread arrived: what was done before then is known to all."""
    row: Row | None
    """When each thread arrived, if they did so at different times."""
    relaxed: bool
    fenced: NDArray[np.int64]
    """For each lane of the batch: its last fence.mbarrier_init before it arrived."""


class _ClusterBarriers:
    """The one barrier of each cluster of a batch.

    A thread knows what the others did before they arrived once it has waited, not before.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scheduler = machine.part(Scheduler)
        self._fences = machine.part(Fences)
        self._mbarriers = machine.part(Mbarriers)
        lanes = machine.ordering.lanes
        self._lanes_each = machine.ordering.per_block * machine.cluster_size
        self._arrived: NDArray[np.int64] = np.zeros(lanes, np.int64)
        """When each lane arrived in the present phase; 0 if it has not."""
        self._passed: NDArray[np.bool_] = np.zeros(lanes, np.bool_)
        """For each lane: it arrived in a phase that has completed, and has not yet waited."""
        self._waiting: NDArray[np.int32] = np.full(lanes, -1, np.int32)
        self._fenced: NDArray[np.int64] = np.zeros(lanes, np.int64)
        self._relaxed: set[int] = set()
        self._completed: dict[int, _Phase] = {}
        """The last phase of each cluster."""
        self._instruction: Instruction | None = None
        self._scheduler.on_exit.append(self._exited)

    def _clusters(self, lanes: Lanes) -> list[int]:
        clusters: list[int] = distinct(lanes.flat // self._lanes_each).tolist()
        return clusters

    def arrive(self, instruction: Instruction, lanes: Lanes, *, relaxed: bool) -> int:
        """Let lanes arrive, without waiting; `relaxed` arrivals order no memory."""
        again = (self._arrived[lanes.flat] > 0) | self._passed[lanes.flat]
        if again.any():
            lane = int(lanes.flat[int(np.argmax(again))])
            message = "a thread arrives at the cluster barrier twice without a wait between"
            self._machine.report(Kind.BARRIER, message, instruction, lane)
        self._instruction = instruction
        self._arrived[lanes.flat] = self._machine.tick(instruction)
        self._fenced[lanes.flat] = self._fences.mbarrier_init[lanes.flat]
        clusters = self._clusters(lanes)
        if relaxed:
            self._relaxed.update(clusters)
        for cluster in clusters:
            self._try(cluster)
        return instruction.pc + 1

    def wait(self, instruction: Instruction, lanes: Lanes) -> int | None:
        """Let lanes wait for the phase in which they arrived."""
        passed = self._passed[lanes.flat]
        if passed.all():
            self._passed[lanes.flat] = False
            self._learn(lanes.flat)
            return instruction.pc + 1
        absent = ~passed & (self._arrived[lanes.flat] == 0)
        if absent.any():
            lane = int(lanes.flat[int(np.argmax(absent))])
            message = "a thread waits at the cluster barrier without having arrived"
            self._machine.report(Kind.BARRIER, message, instruction, lane)
        self._waiting[lanes.flat[~passed]] = instruction.pc
        self._scheduler.wait_pc[lanes.flat[~passed]] = instruction.pc
        if passed.any():
            self._passed[lanes.flat[passed]] = False
            self._learn(lanes.flat[passed])
            self._scheduler.place(instruction.pc + 1, lanes.where(passed))
        return None

    def _exited(self, lanes: Lanes) -> None:
        if self._arrived.any():
            for cluster in self._clusters(lanes):
                self._try(cluster)

    def _try(self, cluster: int) -> None:
        """Complete the phase if every thread of the cluster has arrived or exited."""
        threads = slice(cluster * self._lanes_each, (cluster + 1) * self._lanes_each)
        arrived = self._arrived[threads]
        exited = self._scheduler.exited[threads]
        present = arrived > 0
        if not present.any() or not (present | exited).all():
            return
        machine = self._machine
        assert self._instruction is not None
        per_block = machine.ordering.per_block
        real = np.arange(self._lanes_each) % per_block < machine.geometry.threads
        if (exited & real & ~present).any():
            message = "threads of the cluster exited without reaching the barrier"
            machine.report(Kind.BARRIER, message, self._instruction, threads.start)
        machine.counters.cluster_barriers += 1
        machine.progress = True
        self._note_phase(cluster, threads, present)
        self._arrived[threads] = 0
        self._release(threads, present)

    def _note_phase(self, cluster: int, threads: slice, present: NDArray[np.bool_]) -> None:
        """Keep what the phase lets its threads know. A relaxed arrival orders no memory."""
        times = self._arrived[threads][present]
        relaxed = cluster in self._relaxed
        self._relaxed.discard(cluster)
        row = None
        if times.min() != times.max() and not relaxed:
            row = np.zeros(self._machine.ordering.lanes + 1, np.int64)
            row[np.flatnonzero(present) + threads.start] = times
        fenced = self._fenced.copy()
        self._completed[cluster] = _Phase(int(times.min()), row, relaxed, fenced)

    def _learn(self, members: NDArray[np.intp]) -> None:
        """Let these lanes, which have waited, know what their phase tells."""
        ordering = self._machine.ordering
        clusters = members // self._lanes_each
        for cluster in np.unique(clusters).tolist():
            phase = self._completed.get(cluster)
            if phase is None:
                continue
            lanes = members[clusters == cluster]
            ordering.sync_clusters(lanes, phase.met, relaxed=phase.relaxed)
            self._mbarriers.tell(lanes, phase.fenced)
            if phase.row is not None:
                ordering.acquire(lanes, phase.row)

    def _release(self, threads: slice, present: NDArray[np.bool_]) -> None:
        waiting = self._waiting[threads]
        for pc in np.unique(waiting[waiting >= 0]):
            members = np.flatnonzero(waiting == pc) + threads.start
            self._learn(members)
            self._scheduler.place(int(pc) + 1, Lanes.of(members, self._machine.shape))
        self._passed[threads] |= present & (waiting < 0)
        self._waiting[threads] = -1


@binds("mapa")
def bind_mapa(binder: Binder, instruction: Instruction) -> Step:
    """Bind mapa d, a, rank: the address of a's variable in another block of the cluster."""
    mods = Modifiers(instruction)
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
    """Bind getctarank d, a: the rank of the block whose shared memory a lies in."""
    mods = Modifiers(instruction)
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
