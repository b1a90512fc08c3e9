"""What one memory instruction does."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explorer.devices.emulated.program import Instruction

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Access:
    """What one memory instruction does to each address."""

    instruction: Instruction
    size: int
    """Bytes a thread."""
    action: str
    """'read', 'write' or 'atomic'."""
    strong: bool = False
    """Relaxed or stronger: it races with weak accesses only."""
