"""barrier.cluster: arrival and waiting of all threads of a cluster."""

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.scheduler import Control, Scheduler


class ClusterBarriers:
    """The one barrier of each cluster of a batch.

    What is done between a thread's arrival and its wait counts as not synchronised; what a thread
    does after the barrier has completed but before its own wait is taken as synchronised.
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
        self._relaxed: set[int] = set()
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
        self._synchronise(cluster, threads, present)
        self._arrived[threads] = 0
        self._release(threads, present)

    def _synchronise(self, cluster: int, threads: slice, present: NDArray[np.bool_]) -> None:
        """What was done before arriving is known to all, unless the arrival was relaxed."""
        if cluster in self._relaxed:
            self._relaxed.discard(cluster)
            return
        ordering = self._machine.ordering
        times = self._arrived[threads][present]
        ordering.sync_cluster(cluster, int(times.min()))
        members = np.flatnonzero(present) + threads.start
        if times.min() != times.max():
            row = np.zeros(ordering.lanes + 1, np.int64)
            row[members] = times
            ordering.acquire(members, row)

    def _release(self, threads: slice, present: NDArray[np.bool_]) -> None:
        waiting = self._waiting[threads]
        for pc in np.unique(waiting[waiting >= 0]):
            members = np.flatnonzero(waiting == pc) + threads.start
            self._scheduler.place(int(pc) + 1, Lanes.of(members, self._machine.shape))
        self._passed[threads] |= present & (waiting < 0)
        self._waiting[threads] = -1
