"""Steps that compute each lane's result from that lane's operands alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated.instruction_set import Step
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.ptx_types import DTYPES, PACKED, Array
from explorer.devices.emulated.registers import Source, Target


def in_place(ufunc: np.ufunc, target: Target, *sources: Source) -> Step:
    """A ufunc that writes straight to the destination where the lanes form a box."""
    array, flat = target.array, target.flat
    values = tuple(source.value for source in sources)
    plain = all(type(source) is Source for source in sources)

    def step(lanes: Lanes) -> None:
        if lanes.full and plain:
            ufunc(*values, out=array)
        elif lanes.box is not None:
            ufunc(*[source.at(lanes) for source in sources], out=array[lanes.box])
        else:
            flat[lanes.flat] = ufunc(*[source.at(lanes) for source in sources])

    if array.ndim != 3:
        return computed(ufunc, target, *sources)
    return step


def computed(function: Callable[..., Any], target: Target, *sources: Source) -> Step:
    """A function of arrays whose result is then stored."""

    def step(lanes: Lanes) -> None:
        target.put(lanes, function(*[source.at(lanes) for source in sources]))

    return step


def packed(function: Callable[..., Array], ptx_type: str) -> Callable[..., Any]:
    """Apply a function of floats to both halves of registers that hold a pair of them."""
    whole, half = DTYPES[ptx_type], DTYPES[PACKED[ptx_type]]

    def unpack(values: Any) -> Array:
        pairs = np.ascontiguousarray(values, dtype=whole).view(half)
        return pairs.reshape(*np.shape(values), 2)

    def both(*operands: Any) -> Any:
        halves = np.ascontiguousarray(function(*[unpack(o) for o in operands]).astype(half))
        return halves.view(whole)[..., 0]

    return both
