"""Bulk stores in flight, by the thread that issued them."""

from collections import defaultdict
from dataclasses import dataclass, field

from explorer.devices.emulated.place import Place

Reads = list[tuple[Place, int]]
"""What stores read, and when."""


@dataclass(slots=True)
class BulkGroups:
    """What each thread's bulk stores read: in committed groups, and not yet committed."""

    open: dict[int, Reads] = field(default_factory=lambda: defaultdict(list))
    committed: dict[int, list[Reads]] = field(default_factory=lambda: defaultdict(list))
