"""Where some lanes access memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.ptx_types import Array
from explorer.devices.emulated.shadow import Shadow

if TYPE_CHECKING:
    pass

Addresses = NDArray[np.int64]
_UNITS: dict[int, Any] = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


@dataclass(slots=True)
class Place:
    """Where some lanes access one space or allocation."""

    lanes: Lanes
    index: Addresses
    """Bytes from the start of `data`."""
    data: NDArray[np.uint8]
    shadow: Shadow | None
    chosen: NDArray[np.bool_] | None = None
    """Which of the instruction's lanes these are; None for all."""

    def read(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Values of shape (lanes, components)."""
        if size in _UNITS:
            unit = self.data.view(_UNITS[size])
            return np.take(unit, self.index // size).reshape(-1, 1).view(dtype)
        return np.take(self.data.reshape(-1, size), self.index // size, axis=0).view(dtype)

    def write(self, size: int, values: Array) -> None:
        """Store values of shape (lanes, components)."""
        if size in _UNITS:
            unit = self.data.view(_UNITS[size])
            unit[self.index // size] = values.view(_UNITS[size])[:, 0]
        else:
            octets = values.view(np.uint8).reshape(len(self.index), -1)
            self.data.reshape(-1, size)[self.index // size] = octets
