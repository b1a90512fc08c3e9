"""Binds a kernel to a batch of blocks and runs it."""

from explorer.devices.emulated.barriers import BlockBarriers
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.branches import Branches
from explorer.devices.emulated.bulk_stores import bulk_stores_left
from explorer.devices.emulated.cluster_barriers import ClusterBarriers
from explorer.devices.emulated.findings import Aborted, Kind, UnsupportedPtx
from explorer.devices.emulated.instruction_set import Step
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.liveness import register_slots
from explorer.devices.emulated.machine import LaunchState, Machine
from explorer.devices.emulated.program import Instruction, Operand, Symbol
from explorer.devices.emulated.registers import RegisterFile
from explorer.devices.emulated.scheduler import Control, Scheduler, is_collective, is_control
from explorer.devices.emulated.warp import bind_warp_barrier
from explorer.devices.emulated.warp_meetings import WarpMeetings


class Program:
    """A kernel bound to a batch: its scheduler, and what took part in it."""

    def __init__(self, machine: Machine, constants: dict[str, int], step_limit: int) -> None:
        entry = machine.launch.entry
        self._entry = entry
        self._machine = machine
        slots = register_slots(entry)
        registers = RegisterFile(machine.shape, entry.registers, constants, slots)
        self._binder = Binder(machine, registers)
        self.scheduler = Scheduler(machine, entry.instructions, step_limit)
        self._branches = Branches(self.scheduler, entry.instructions)
        self._barriers = BlockBarriers(self.scheduler)
        self._clusters = ClusterBarriers(self.scheduler)
        self._meetings = WarpMeetings(self.scheduler)
        self.aborted = False
        self.scheduler.on_exit.append(self._check_exit)

    def bind(self) -> None:
        """Bind every instruction; raises UnsupportedPtx naming all that are not known."""
        steps: list[Step] = []
        controls: dict[int, Control] = {}
        unknown: list[str] = []
        for instruction in self._entry.instructions:
            step: Step = _no_step
            try:
                if is_control(instruction):
                    controls[instruction.pc] = self._control(instruction)
                else:
                    step = self._binder.bind(instruction)
            except UnsupportedPtx as error:
                unknown += error.opcodes
            except (KeyError, ValueError, IndexError, AssertionError):
                unknown.append(instruction.opcode)
            steps.append(step)
        if unknown:
            raise UnsupportedPtx(tuple(dict.fromkeys(unknown)))
        self.scheduler.load(steps, controls)

    def _control(self, instruction: Instruction) -> Control:
        branches, binder = self._branches, self._binder
        if is_collective(instruction):
            if instruction.root in ("bar", "barrier"):
                step = bind_warp_barrier(binder, instruction)
            else:
                step = binder.bind_unguarded(instruction)
            return self._meetings.bind(binder, instruction, step)
        if instruction.root == "bra":
            target = self._label(instruction.operands[0])
            return branches.bind_branch(binder, instruction, target)
        if instruction.root == "brx":
            table = instruction.operands[1]
            assert isinstance(table, Symbol)
            labels = self._entry.branch_tables[table.name]
            targets = [self._entry.labels[label] for label in labels]
            return branches.bind_switch(binder, instruction, targets)
        if instruction.root in ("ret", "exit"):
            return branches.bind_exit(binder, instruction)
        if instruction.root in ("trap", "brkpt"):
            return branches.bind_trap(binder, instruction)
        if "cluster" in instruction.modifiers:
            return self._clusters.bind(binder, instruction)
        return self._barriers.bind(binder, instruction)

    def _label(self, operand: Operand) -> int:
        """The instruction that a label stands before; raises UnsupportedPtx."""
        if not isinstance(operand, Symbol) or operand.name not in self._entry.labels:
            raise UnsupportedPtx((f"branch to {operand}",))
        return self._entry.labels[operand.name]

    def _check_exit(self, lanes: Lanes) -> None:
        left = bulk_stores_left(self._machine, lanes)
        if len(left):
            machine = self._machine
            last = next(i for i in reversed(self._entry.instructions) if i.root == "cp")
            message = "a thread exits before its bulk store has read shared memory"
            machine.report(Kind.ASYNC_WAIT, message, last, int(left[0]), count=len(left))

    def run(self, *, staggered: bool) -> None:
        """Execute all lanes to their end, or until none can go on."""
        try:
            self.scheduler.run(staggered=staggered)
        except Aborted:
            self.aborted = True


def _no_step(lanes: Lanes) -> None:
    return


def run_batch(
    machine: Machine, constants: dict[str, int], step_limit: int, *, staggered: bool
) -> Program:
    """Bind the launch's kernel to a batch and run it; raises UnsupportedPtx."""
    program = Program(machine, constants, step_limit)
    program.bind()
    program.run(staggered=staggered)
    return program


def tally(state: LaunchState, program: Program) -> None:
    """Add a batch's instruction counts to the launch's."""
    scheduler = program.scheduler
    for instruction in state.entry.instructions:
        count = int(scheduler.warp_counts[instruction.pc])
        if count:
            state.counters.instructions[_name(instruction)] += count
    state.counters.thread_instructions += int(scheduler.lane_counts.sum())


def _name(instruction: Instruction) -> str:
    if instruction.root in ("ld", "st", "atom", "red"):
        spaces = ("global", "shared", "local", "param", "const")
        for modifier in instruction.modifiers:
            space = modifier.split("::")[0]
            if space in spaces:
                return f"{instruction.root}.{space}"
    if instruction.root in ("bar", "barrier"):
        return ".".join((instruction.root, *instruction.modifiers[:1]))
    return instruction.root
