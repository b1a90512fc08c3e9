"""barrier.cluster: arrival and waiting of all threads of a cluster."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.ordering import Row
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.scheduler import Control, Scheduler


@dataclass(frozen=True, slots=True)
class _Phase:
    """What a completed phase lets those know who waited for it."""

    met: int
    """When the first thread arrived: all that was done before is known to all."""
    row: Row | None
    """When each thread arrived, where they did so at different times."""
    relaxed: bool
    fenced: NDArray[np.int64]
    """For each lane of the batch: its last fence.mbarrier_init before it arrived."""


class ClusterBarriers:
    """The one barrier of each cluster of a batch.

    A thread knows what the others did before they arrived once it has waited, not before.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._machine = scheduler.machine
        lanes = self._machine.ordering.lanes
        self._lanes_each = self._machine.ordering.per_block * self._machine.cluster_size
        self._arrived: NDArray[np.int64] = np.zeros(lanes, np.int64)
        """When each lane arrived in the present phase; 0 if it has not."""
        self._passed: NDArray[np.bool_] = np.zeros(lanes, np.bool_)
        """Arrived in a phase that has completed, not yet waited."""
        self._waiting: NDArray[np.int32] = np.full(lanes, -1, np.int32)
        self._fenced: NDArray[np.int64] = np.zeros(lanes, np.int64)
        self._relaxed: set[int] = set()
        self._completed: dict[int, _Phase] = {}
        """By cluster, its last phase."""
        self._instruction: Instruction | None = None
        scheduler.on_exit.append(self._exited)

    def bind(self, binder: Binder, instruction: Instruction) -> Control:
        """barrier.cluster.arrive and barrier.cluster.wait."""
        mods = binder.modifiers(instruction)
        mods.one_of(("cluster",))
        action = mods.one_of(("arrive", "wait"))
        relaxed = mods.one_of(("release", "acquire", "relaxed"), "release") == "relaxed"
        mods.take("aligned")
        mods.finish()
        if action == "arrive":
            return lambda lanes: self._arrive(instruction, lanes, relaxed=relaxed)
        return lambda lanes: self._wait(instruction, lanes)

    def _clusters(self, lanes: Lanes) -> list[int]:
        clusters: list[int] = np.unique(lanes.flat // self._lanes_each).tolist()
        return clusters

    def _arrive(self, instruction: Instruction, lanes: Lanes, *, relaxed: bool) -> int:
        again = (self._arrived[lanes.flat] > 0) | self._passed[lanes.flat]
        if again.any():
            lane = int(lanes.flat[int(np.argmax(again))])
            message = "a thread arrives at the cluster barrier twice without a wait between"
            self._machine.report(Kind.BARRIER, message, instruction, lane)
        self._instruction = instruction
        self._arrived[lanes.flat] = self._machine.tick(instruction)
        self._fenced[lanes.flat] = self._machine.mbarriers.fenced[lanes.flat]
        clusters = self._clusters(lanes)
        if relaxed:
            self._relaxed.update(clusters)
        for cluster in clusters:
            self._try(cluster)
        return instruction.pc + 1

    def _wait(self, instruction: Instruction, lanes: Lanes) -> int | None:
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
        self._machine.clusters.exited(lanes, self._scheduler.exited)
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
        """Keep what the phase lets its threads know; a relaxed arrival orders no memory."""
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
        """These lanes have waited."""
        ordering = self._machine.ordering
        clusters = members // self._lanes_each
        for cluster in np.unique(clusters).tolist():
            phase = self._completed.get(cluster)
            if phase is None:
                continue
            lanes = members[clusters == cluster]
            ordering.cluster_met[lanes] = phase.met
            self._machine.mbarriers.tell(lanes, phase.fenced)
            if not phase.relaxed:
                ordering.cluster_sync[lanes] = np.maximum(ordering.cluster_sync[lanes], phase.met)
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
