"""The table from opcodes to the functions that bind them, and the reading of modifiers."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import Instruction

if TYPE_CHECKING:
    from explorer.devices.emulated.binder import Binder

Step = Callable[[Lanes], None]
"""An instruction bound to a batch: executes it for the given lanes."""

Binding = Callable[["Binder", Instruction], Step]

BINDINGS: dict[str, Binding] = {}


def binds(*roots: str) -> Callable[[Binding], Binding]:
    """Register a function that binds the opcodes with these roots."""

    def register(function: Binding) -> Binding:
        for root in roots:
            BINDINGS[root] = function
        return function

    return register


class Modifiers:
    """An opcode's modifiers; what a binding does not take is not known, and never ignored."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        self._left = list(instruction.modifiers)

    def take(self, *names: str) -> bool:
        """Whether one of `names` is there; it is then taken."""
        for name in names:
            if name in self._left:
                self._left.remove(name)
                return True
        return False

    def one_of(self, names: Iterable[str], default: str | None = None) -> str:
        """The first modifier that is among `names`; raises UnsupportedPtx where none is."""
        known = set(names)
        for name in self._left:
            if name in known:
                self._left.remove(name)
                return name
        if default is None:
            raise self.unsupported()
        return default

    def drop_prefixed(self, *prefixes: str) -> None:
        """Pass over hints, which change no result."""
        self._left = [name for name in self._left if not name.startswith(prefixes)]

    def finish(self) -> None:
        """Raises UnsupportedPtx where a modifier is left."""
        if self._left:
            raise self.unsupported()

    def unsupported(self) -> UnsupportedPtx:
        """The error that names this opcode."""
        return UnsupportedPtx((self._instruction.opcode,))
