"""Runs a batch: divergence, reconvergence, waiting and fairness.

Lanes that stand at one instruction run together; the lowest instruction goes first, so that
diverged lanes meet again where their paths join. A group that spins steps back in favour of all
others, so that waiting for another block's flag makes progress.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.findings import Aborted, Kind
from explorer.devices.emulated.instruction_set import Step
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.machine import Machine
from explorer.devices.emulated.program import Instruction

Control = Callable[[Lanes], "int | None"]
"""Executes an instruction that moves lanes about: where they all go on, None if it placed them."""

CONTROL_ROOTS = frozenset({"bra", "brx", "ret", "exit", "bar", "barrier", "trap", "brkpt"})
_COLLECTIVES = frozenset({"shfl", "vote", "match", "redux", "elect"})

IDLE_ROUNDS = 300
"""Rounds in which every group spins and nothing changes, after which none ever will."""


def is_control(instruction: Instruction) -> bool:
    """Whether an instruction can move lanes elsewhere than to the next one, or make them wait."""
    return instruction.root in CONTROL_ROOTS or is_collective(instruction)


def is_collective(instruction: Instruction) -> bool:
    """Whether it waits for the lanes of a warp that its mask names."""
    if instruction.root in ("bar", "barrier"):
        return instruction.modifiers[:1] == ("warp",)
    return instruction.root in _COLLECTIVES and "sync" in instruction.modifiers


class Scheduler:
    """The groups of lanes of one batch, by the instruction that they stand at."""

    def __init__(
        self, machine: Machine, instructions: Sequence[Instruction], step_limit: int
    ) -> None:
        self.machine = machine
        self._instructions = instructions
        self._steps: list[Step] = []
        self._controls: dict[int, Control] = {}
        self._next_control: list[int] = []
        self._runnable: dict[int, Lanes] = {}
        self._deferred: dict[int, Lanes] = {}
        self._exits = {i.pc for i in instructions if i.root in ("ret", "exit") and not i.guard}
        self._unstarted: list[Lanes] = []
        self._idle = 0
        self._left = step_limit
        self.exited: NDArray[np.bool_] = np.ones(machine.ordering.lanes, np.bool_)
        self.stalled: list[Callable[[], bool]] = []
        """What to try when no lane can go on: each says whether it set some free."""
        self.on_exit: list[Callable[[Lanes], None]] = []
        self.warp_counts = np.zeros(len(instructions) + 1, np.int64)
        self.lane_counts = np.zeros(len(instructions) + 1, np.int64)

    def load(self, steps: list[Step], controls: dict[int, Control]) -> None:
        """Take the bound program: steps by instruction, and the controls among them."""
        self._steps = steps
        self._controls = controls
        following = len(steps)
        places = []
        for pc in reversed(range(len(steps) + 1)):
            following = pc if pc in controls else following
            places.append(following)
        self._next_control = places[::-1]

    # Groups.

    def place(self, pc: int, lanes: Lanes) -> None:
        """Lanes are ready to execute the instruction at `pc`."""
        other = self._runnable.get(pc)
        self._runnable[pc] = lanes.union(other) if other is not None else lanes

    def defer(self, pc: int, lanes: Lanes) -> None:
        """Lanes are to go on at `pc` once all others have had their turn."""
        other = self._deferred.get(pc)
        self._deferred[pc] = lanes.union(other) if other is not None else lanes

    def run(self, *, staggered: bool = False) -> None:
        """Execute until every lane has exited; raises Aborted where none can go on.

        `staggered` starts each block only when those before it wait or spin, or have exited.
        """
        machine = self.machine
        lanes = machine.real_lanes()
        self.exited[lanes] = False
        blocks = lanes // machine.ordering.per_block
        groups = [lanes[blocks == b] for b in range(machine.blocks)] if staggered else [lanes]
        self._unstarted = [Lanes.of(group, machine.shape) for group in reversed(groups)]
        while self._ready():
            pc = min(self._runnable)
            self._advance(pc, self._runnable.pop(pc))

    def _ready(self) -> bool:
        """Whether some lanes can run; those that are due to are made runnable."""
        if self._runnable:
            return True
        if self._unstarted:
            # Those that spin have looked once at what the block before this one did.
            self._resume() if self._deferred and self.machine.progress else self._start()
            return True
        if self._deferred:
            self._idle = 0 if self.machine.progress else self._idle + 1
            if self._idle > IDLE_ROUNDS and not self._unstall():
                self._deadlock()
            self._resume()
            return True
        if self.exited.all():
            return False
        return self._unstall() or self._deadlock()

    def _start(self) -> None:
        self.place(0, self._unstarted.pop())

    def _resume(self) -> None:
        """Let those that stepped back go on."""
        self.machine.progress = False
        deferred, self._deferred = self._deferred, {}
        for pc, lanes in deferred.items():
            self.place(pc, lanes)

    def _unstall(self) -> bool:
        return any(attempt() for attempt in self.stalled)

    def _deadlock(self) -> bool:
        pcs = sorted(self._deferred)
        waiting = [self._instructions[pc] for pc in pcs]
        lane = int(np.flatnonzero(~self.exited)[0])
        at = self.waiting_at(lane) if not waiting else waiting[0]
        what = "every thread left spins" if waiting else "threads wait for others that never come"
        self.machine.report(Kind.DEADLOCK, f"no progress: {what}", at, lane)
        raise Aborted

    def waiting_at(self, lane: int) -> Instruction:
        """The instruction at which a lane that cannot run waits."""
        return self._instructions[int(self.wait_pc[lane])]

    @property
    def wait_pc(self) -> NDArray[np.int32]:
        """Where each lane waits, if it does."""
        if not hasattr(self, "_wait_pc"):
            self._wait_pc = np.zeros(self.machine.ordering.lanes, np.int32)
        return self._wait_pc

    def _advance(self, pc: int, lanes: Lanes) -> None:
        """Run a group until it meets another, splits or waits."""
        steps, controls = self._steps, self._controls
        stop = min((p for p in self._runnable if p > pc), default=len(steps))
        while True:
            end = min(self._next_control[pc], stop)
            for step in steps[pc:end]:
                step(lanes)
            self._count(pc, end, lanes)
            if end == stop:
                self.arrive(end, lanes)
                return
            self._count(end, end + 1, lanes)
            following = controls[end](lanes)
            if following is None:
                return
            if self._runnable or following >= len(steps):
                self.arrive(following, lanes)
                return
            pc, stop = following, len(steps)

    def arrive(self, pc: int, lanes: Lanes) -> None:
        """Go on at `pc`. Where nothing is left but to exit, do so before others go on."""
        if pc >= len(self._steps):
            self.exit(lanes)
        elif pc in self._exits:
            self._count(pc, pc + 1, lanes)
            self.exit(lanes)
        else:
            self.place(pc, lanes)

    def _count(self, start: int, end: int, lanes: Lanes) -> None:
        self.warp_counts[start:end] += lanes.warps
        self.lane_counts[start:end] += lanes.count
        self._left -= end - start
        if self._left < 0:
            at = self._instructions[min(start, len(self._instructions) - 1)]
            self.machine.report(
                Kind.LIMIT, "the limit on executed steps is reached", at, int(lanes.flat[0])
            )
            raise Aborted

    def exit(self, lanes: Lanes) -> None:
        """Lanes have ended."""
        self.exited[lanes.flat] = True
        self.machine.progress = True
        for notify in self.on_exit:
            notify(lanes)
