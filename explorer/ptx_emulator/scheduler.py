"""Runs a batch: divergence, reconvergence, waiting and fairness; and the branches that diverge.

Lanes that stand at one instruction run together. The lowest instruction goes first, so that
diverged lanes meet again where their paths join. A group that spins steps back in favour of all
others, so that waiting for another block's flag makes progress. In some schedules lanes take turns:
those of a later turn run only when those of earlier turns cannot. PTX ISA, "Control Flow
Instructions".
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import Binder, Control, Step, controls
from explorer.ptx_emulator.findings import Aborted, Kind, UnsupportedPtx
from explorer.ptx_emulator.lanes import WARP, Lanes, all_of
from explorer.ptx_emulator.machine import Machine, Schedule, communicates
from explorer.ptx_emulator.program import Entry, Instruction, Symbol
from explorer.ptx_emulator.registers import RegisterFile

IDLE_ROUNDS = 300
"""Rounds in which every group polls memory and nothing changes, after which nothing ever will."""


_Groups = dict[int, Lanes]
"""Lanes by the instruction that they stand at."""


class Scheduler:
    """The groups of lanes of one batch, by their turn and the instruction that they stand at."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._instructions = machine.entry.instructions
        self._steps: Sequence[Step] = ()
        self._controls: dict[int, Control] = {}
        self._next_control: list[int] = []
        self._turns = _turns(machine)
        self._everyone: list[tuple[int, Lanes]] = []
        """All threads by their turn, if they take turns."""
        self._runnable: dict[int, _Groups] = {}
        """Groups by their turn. The lowest turn goes first."""
        self._deferred: _Groups = {}
        self._computing: set[int] = set()
        """Where of these stand groups whose loops do not poll memory."""
        self._held: tuple[dict[int, int], bytes] = {}, b""
        """Lanes at each place, and registers, in the last round in which nothing changed."""
        self._registers: RegisterFile | None = None
        exits = (i for i in self._instructions if i.root in ("ret", "exit") and not i.guard)
        self._exits = {i.pc for i in exits}
        self._unstarted: list[Lanes] = []
        self._threads = 0
        self._idle = 0
        self._left = 0
        self._counting = machine.log.traffic is not None
        self.exited: NDArray[np.bool_] = np.ones(machine.ordering.lanes, np.bool_)
        """For each lane: it has ended, or it is no thread."""
        self.wait_pc = np.zeros(machine.ordering.lanes, np.int32)
        """Where each lane waits, if it does."""
        self.stalled: list[Callable[[], bool]] = []
        """What to try when no lane can go on: each says whether it set some free."""
        self.on_exit: list[Callable[[Lanes], None]] = []
        self.warp_counts = np.zeros(len(self._instructions) + 1, np.int64)
        self.lane_counts = np.zeros(len(self._instructions) + 1, np.int64)

    def load(
        self, steps: Sequence[Step], controls: dict[int, Control], registers: RegisterFile
    ) -> None:
        """Take the bound program: a step for each instruction, and the controls among them."""
        self._steps, self._controls, self._registers = steps, controls, registers
        following = len(steps)
        places = []
        for pc in reversed(range(len(steps) + 1)):
            following = pc if pc in controls else following
            places.append(following)
        self._next_control = places[::-1]

    def release(self) -> None:
        """Drop the program and all listeners to exits, which refer to this object."""
        self._steps, self._controls, self._registers = (), {}, None
        self.stalled.clear()
        self.on_exit.clear()

    # Groups.

    def place(self, pc: int, lanes: Lanes) -> None:
        """Make lanes ready to execute the instruction at `pc`."""
        for turn, part in self._by_turn(lanes):
            groups = self._runnable.setdefault(turn, {})
            other = groups.get(pc)
            groups[pc] = part.union(other) if other is not None else part

    def _by_turn(self, lanes: Lanes) -> Iterable[tuple[int, Lanes]]:
        if self._turns is None:
            return ((0, lanes),)
        turns = self._turns[lanes.flat]
        if all_of(turns == turns[0]):
            return ((int(turns[0]), lanes),)
        if self._everyone and lanes.count == self._threads:
            return self._everyone
        return [(turn, lanes.where(turns == turn)) for turn in np.unique(turns).tolist()]

    def defer(self, pc: int, lanes: Lanes, *, polls: bool = True) -> None:
        """Let lanes go on at `pc` once all others have had their turn."""
        if not polls:
            self._computing.add(pc)
        other = self._deferred.get(pc)
        self._deferred[pc] = lanes.union(other) if other is not None else lanes

    def arrive(self, pc: int, lanes: Lanes) -> None:
        """Let lanes go on at `pc`. If nothing is left but to exit, they do so before others."""
        if pc >= len(self._steps):
            self.exit(lanes)
        elif pc in self._exits:
            self._count(pc, pc + 1, lanes)
            self.exit(lanes)
        else:
            self.place(pc, lanes)

    def exit(self, lanes: Lanes) -> None:
        """Note that lanes have ended."""
        self.exited[lanes.flat] = True
        self._machine.progress = True
        for notify in self.on_exit:
            notify(lanes)

    # Running.

    def run(self, step_limit: int) -> None:
        """Execute until every lane has exited. Raises Aborted if none can go on.

        `step_limit` bounds the instructions, each counted once for a group of lanes.
        """
        machine = self._machine
        lanes = machine.real_lanes()
        self._left = step_limit
        self.exited[lanes] = False
        self._threads = len(lanes)
        everyone = Lanes.of(lanes, machine.shape)
        everyone.remember_parts()
        self._unstarted = [everyone]
        if self._turns is not None:
            self._everyone = list(self._by_turn(self._unstarted[0]))
        if machine.schedule is Schedule.STAGGERED:
            blocks = lanes // machine.ordering.per_block
            groups = [lanes[blocks == block] for block in reversed(range(machine.blocks))]
            self._unstarted = [Lanes.of(group, machine.shape) for group in groups]
        try:
            while self._ready():
                turn = min(self._runnable)
                standing = self._runnable[turn]
                pc = min(standing)
                self._advance(pc, standing.pop(pc), standing)
                if not standing:
                    del self._runnable[turn]
        finally:
            machine.log.steps += step_limit - self._left
            everyone.forget_parts()

    def _ready(self) -> bool:
        """Return whether some lanes can run. Those whose turn it is become runnable."""
        if self._runnable:
            return True
        if self._unstarted:
            # If something has changed, threads that spin look again before the next block starts.
            self._resume() if self._deferred and self._machine.progress else self._start()
            return True
        if self._deferred:
            self._idle = 0 if self._machine.progress else self._idle + 1
            if self._is_stuck() and not self._unstall():
                self._deadlock()
            self._resume()
            return True
        if all_of(self.exited):
            return False
        return self._unstall() or self._deadlock()

    def _is_stuck(self) -> bool:
        """Return whether nothing will ever change.

        Who polls memory has seen it unchanged for many rounds. A loop that computes may end in any
        later turn, unless its registers are what they were a round ago.
        """
        if self._idle == 0 or self._computing.isdisjoint(self._deferred):
            return self._idle > IDLE_ROUNDS
        assert self._registers is not None
        before = self._held
        standing = {pc: lanes.count for pc, lanes in self._deferred.items()}
        self._held = standing, self._registers.content()
        return self._idle > 1 and before == self._held

    def _start(self) -> None:
        self.place(0, self._unstarted.pop())

    def _resume(self) -> None:
        """Let those that stepped back go on."""
        self._machine.progress = False
        deferred, self._deferred = self._deferred, {}
        self._computing.clear()
        for pc, lanes in deferred.items():
            self.place(pc, lanes)

    def _unstall(self) -> bool:
        return any(attempt() for attempt in self.stalled)

    def _deadlock(self) -> bool:
        pcs = sorted(self._deferred)
        waiting = [self._instructions[pc] for pc in pcs]
        lane = int(np.flatnonzero(~self.exited)[0])
        at = self._instructions[int(self.wait_pc[lane])] if not waiting else waiting[0]
        what = "every thread left spins" if waiting else "threads wait for others that never come"
        self._machine.report(Kind.DEADLOCK, f"no progress: {what}", at, lane)
        raise Aborted

    def _advance(self, pc: int, lanes: Lanes, others: _Groups) -> None:
        """Run a group until it meets another of its turn, splits or waits."""
        steps, controls = self._steps, self._controls
        stop = min((p for p in others if p > pc), default=len(steps))
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
            if others or following >= len(steps):
                self.arrive(following, lanes)
                return
            pc, stop = following, len(steps)

    def _count(self, start: int, end: int, lanes: Lanes) -> None:
        if self._counting:
            self.warp_counts[start:end] += lanes.warps
            self.lane_counts[start:end] += lanes.count
        self._left -= end - start
        at = self._instructions[min(start, len(self._instructions) - 1)]
        self._machine.spend((end - start) * lanes.count, at, int(lanes.flat[0]))
        if self._left < 0:
            self._machine.give_up(at, int(lanes.flat[0]))


def _turns(machine: Machine) -> NDArray[np.int64] | None:
    """Return for each lane its turn if warps run one at a time; None if all run in one turn.

    The same warp of all blocks takes its turn together, so that few turns serve many blocks. Blocks
    of one cluster, and all blocks of a kernel whose blocks communicate, take turns of their own.
    """
    blocks, warps, _ = machine.shape
    apart = blocks if communicates(machine.entry) else machine.cluster_size
    order = machine.in_turn(apart * warps)
    if order is None:
        return None
    turns = np.argsort(order).reshape(apart, warps)
    return np.repeat(turns[np.arange(blocks) % apart].reshape(-1), WARP)


def guarded(binder: Binder, instruction: Instruction, control: Control) -> Control:
    """Return a control that is executed for the lanes whose guard holds; the others go on."""
    guard = binder.guard(instruction)
    if guard is None:
        return control
    current, following = binder.current, instruction.pc + 1

    def run(lanes: Lanes) -> int | None:
        holds = guard.each(lanes)
        count = int(np.count_nonzero(holds))
        if count == lanes.count:
            return control(lanes)
        if count == 0:
            return following
        scheduler = current.machine.part(Scheduler)
        scheduler.place(following, lanes.where(~holds))
        lanes = lanes.where(holds)
        after = control(lanes)
        if after is not None:
            scheduler.place(after, lanes)
        return None

    return run


# Instructions that send lanes elsewhere.

LOOP_FUEL = 4096
"""Turns of a loop after which it steps back for others."""

SPIN_FUEL = 4
"""Turns of a loop that polls memory after which it steps back for others."""

_POLLS = ("volatile", "acquire", "relaxed", "test_wait", "try_wait", "mmio")


class _Loops:
    """Backward branches. A loop that takes too many turns steps back for the others."""

    def __init__(self, machine: Machine) -> None:
        self._scheduler = machine.part(Scheduler)
        self._used: dict[int, int] = {}

    def turn(self, pc: int, target: int, fuel: int, lanes: Lanes) -> int | None:
        """Go back from `pc` to `target`, now or once the others have had their turn."""
        used = self._used.get(pc, 0) + 1
        if used < fuel:
            self._used[pc] = used
            return target
        self._used[pc] = 0
        self._scheduler.defer(target, lanes, polls=fuel == SPIN_FUEL)
        return None


def _fuel(loop: Sequence[Instruction]) -> int:
    """Return the turns that a loop over these instructions may take at a time."""
    for instruction in loop:
        polls = any(m in _POLLS for m in instruction.modifiers)
        if polls or instruction.root in ("atom", "nanosleep"):
            return SPIN_FUEL
    return LOOP_FUEL


@controls("bra")
def bind_branch(binder: Binder, instruction: Instruction) -> Control:
    """Bind bra: all lanes, or those whose guard holds, go to the label."""
    current, pc = binder.current, instruction.pc
    target = _label(current.machine.entry, instruction)
    backward = target <= pc
    fuel = _fuel(current.machine.entry.instructions[target:pc]) if backward else 0
    guard = binder.guard(instruction)

    def taken(lanes: Lanes) -> int | None:
        return current.machine.part(_Loops).turn(pc, target, fuel, lanes) if backward else target

    if guard is None:
        return taken

    def branch(lanes: Lanes) -> int | None:
        holds = guard.each(lanes)
        count = int(np.count_nonzero(holds))
        if count == 0:
            return pc + 1
        if count < lanes.count:
            scheduler = current.machine.part(Scheduler)
            scheduler.arrive(pc + 1, lanes.where(~holds))
            lanes = lanes.where(holds)
            following = taken(lanes)
            if following is not None:
                scheduler.arrive(following, lanes)
            return None
        return taken(lanes)

    return branch


def _label(entry: Entry, instruction: Instruction) -> int:
    """Return the instruction before which the label stands. Raises UnsupportedPtx."""
    operand, labels = instruction.operands[0], entry.labels
    if not isinstance(operand, Symbol) or operand.name not in labels:
        raise UnsupportedPtx((f"branch to {operand}",))
    return labels[operand.name]


@controls("brx")
def bind_switch(binder: Binder, instruction: Instruction) -> Control:
    """Bind brx.idx: each lane goes to the label that its index picks."""
    entry, scheduler = binder.machine.entry, binder.machine.part(Scheduler)
    table = instruction.operands[1]
    assert isinstance(table, Symbol)
    targets = [entry.labels[label] for label in entry.branch_tables[table.name]]
    index = binder.source(instruction.operands[0], "u32")

    def switch(lanes: Lanes) -> None:
        chosen = index.each(lanes)
        for number in np.unique(chosen):
            scheduler.arrive(targets[int(number)], lanes.where(chosen == number))

    return switch


@controls("ret", "exit")
def bind_exit(binder: Binder, instruction: Instruction) -> Control:
    """Bind ret and exit."""
    current = binder.current

    def leave(lanes: Lanes) -> None:
        current.machine.part(Scheduler).exit(lanes)

    return guarded(binder, instruction, leave)


@controls("trap", "brkpt")
def bind_trap(binder: Binder, instruction: Instruction) -> Control:
    """Bind trap and brkpt: they are reported, and the lanes end."""
    machine, scheduler = binder.machine, binder.machine.part(Scheduler)

    def trap(lanes: Lanes) -> None:
        message = f"{instruction.root} was executed"
        machine.report(Kind.TRAP, message, instruction, int(lanes.flat[0]), count=lanes.count)
        scheduler.exit(lanes)

    return guarded(binder, instruction, trap)
