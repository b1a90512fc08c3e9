"""atom and red: read-modify-write, one thread after another. PTX ISA, "atom", "red".

If the result is to be reproducible, additions of floats by several threads to one address are
reported unless synchronisation fixes their order: float addition is not associative.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.arithmetic import with_one_nan
from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds
from explorer.ptx_emulator.float_instructions import extreme
from explorer.ptx_emulator.lanes import Lanes
from explorer.ptx_emulator.memory_instructions import (
    HINTS,
    ORDERS,
    SCOPES,
    SPACES,
    TURN_WORK,
    Flags,
    bind_address,
    locate,
)
from explorer.ptx_emulator.program import (
    DTYPES,
    FLOATS,
    PACKED,
    Array,
    Instruction,
    Operand,
    Sink,
    Vector,
)
from explorer.ptx_emulator.registers import Source
from explorer.ptx_emulator.shadow import Access
from explorer.ptx_emulator.spaces import Place

Operation = Callable[[Any, Any, Any], Any]
"""The new value, from the old one and the operands b and c."""

_OPERATIONS: dict[str, Operation] = {
    "add": lambda old, b, c: old + b,
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, c: np.where(old >= b, 0, old + 1),
    "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - 1),
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
}


def _operation(name: str, ptx_type: str) -> Operation:
    if name not in ("add", "min", "max") or PACKED.get(ptx_type, ptx_type) not in FLOATS:
        return _OPERATIONS[name]
    function = np.add if name == "add" else extreme(name, nan=False)
    return lambda old, b, c: with_one_nan(np.asarray(function(old, b)))


def _bits(values: Any) -> bytes:
    """Return values as they are kept: no NaN equals itself otherwise."""
    return np.ascontiguousarray(values).tobytes()


def _turns_of(index: NDArray[np.int64]) -> int:
    """Return how many lanes share the place that the most of them share."""
    return int(np.unique(index, return_counts=True)[1].max())


def one_by_one(
    memory: Array,
    index: NDArray[np.int64],
    operation: Operation,
    b: Array,
    c: Array,
    *,
    in_turn: NDArray[np.int64] | None = None,
) -> Array:
    """Apply an operation to memory[index] for each lane in turn, and return the old values.

    Lanes of distinct places go together. Those of one place take turns in their order, or in that
    of `in_turn`. None does where no lane would change what is there, as where threads spin.
    """
    old = memory[index]
    if _bits(operation(old, b, c)) == _bits(old):
        return old
    order = np.argsort(index if in_turn is None else index[in_turn], kind="stable")
    order = order if in_turn is None else in_turn[order]
    ordered = index[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(first)
    turn = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    for number in range(int(turn.max()) + 1):
        members = order[turn == number]
        where = index[members]
        old[members] = memory[where]
        memory[where] = operation(old[members], b[members], c[members])
    return old


class _Form:
    def __init__(self, mods: Modifiers) -> None:
        mods.drop_prefixed(*HINTS)
        self.space = mods.one_of(SPACES, "")
        self.order = mods.one_of(ORDERS, "relaxed")
        mods.one_of(SCOPES, "")
        self.name = mods.one_of(_OPERATIONS)
        self.ptx_type = mods.one_of(DTYPES)
        self.count = int(mods.one_of(("v2", "v4", "v8"), "v1")[1:])
        mods.take("noftz")
        mods.finish()
        element = PACKED.get(self.ptx_type, self.ptx_type)
        self.dtype = DTYPES[element]
        self.adds_floats = self.name == "add" and element in FLOATS
        self.size = DTYPES[self.ptx_type].itemsize * self.count
        self.operation = _operation(self.name, self.ptx_type)


@binds("atom", "red")
def bind_atomic(binder: Binder, instruction: Instruction) -> Step:
    """Bind atom and red of every operation and type."""
    form = _Form(Modifiers(instruction))
    operands = list(instruction.operands)
    to = operands.pop(0) if instruction.root == "atom" else Sink()
    address, *values = operands
    if form.name != "cas":
        values = values[:1]
    addresses = bind_address(binder, address)
    sources = [[binder.source(o, form.ptx_type) for o in _items(v)] for v in values]
    targets = [None if isinstance(o, Sink) else binder.target(o, form.ptx_type) for o in _items(to)]
    machine = binder.machine
    access = Access(instruction, form.size, "atomic", strong=True)
    flags = Flags(machine, form.order, access)

    def step(lanes: Lanes) -> None:
        where = addresses(lanes)
        now = machine.tick(instruction)
        machine.counters.atomics += lanes.count
        operands = [_gather(source, lanes, form) for source in sources]
        for place in locate(machine, form.space, where, lanes, access):
            if place.shadow is not None:
                place.shadow.atomic(place.index, place.lanes, access, now, reads=True)
                if form.adds_floats and machine.reproducible:
                    place.shadow.add_floats(place.index, place.lanes, access, now)
            in_turn = machine.in_turn(place.lanes.count)
            old, changed = _apply(place, form, operands, in_turn)
            if changed:
                machine.progress = True
                machine.work += TURN_WORK * _turns_of(place.index)
            flags.exchanged(place, now, in_turn)
            for number, target in enumerate(targets):
                if target is not None:
                    target.put(place.lanes, old[:, number])

    return step


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _gather(sources: list[Source], lanes: Lanes, form: _Form) -> Array:
    """Return values of shape (lanes, elements); packed pairs are two elements each."""
    columns = [np.ascontiguousarray(source.each(lanes)) for source in sources]
    return np.stack(columns, axis=1).view(form.dtype)


def _apply(
    place: Place, form: _Form, operands: list[Array], in_turn: NDArray[np.int64] | None
) -> tuple[Array, bool]:
    """Return the old values, shape (lanes, components), and whether any value changed."""
    chosen = slice(None) if place.chosen is None else place.chosen
    b = operands[0][chosen]
    c = operands[-1][chosen]
    memory = place.data.view(form.dtype)
    start = place.index // form.dtype.itemsize
    columns = [
        one_by_one(memory, start + n, form.operation, b[:, n], c[:, n], in_turn=in_turn)
        for n in range(b.shape[1])
    ]
    old = np.ascontiguousarray(np.stack(columns, axis=1))
    new = np.asarray(form.operation(old, b, c)).astype(old.dtype)
    return old.view(DTYPES[form.ptx_type]), _bits(new) != _bits(old)
