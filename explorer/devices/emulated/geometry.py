"""Grid, block and cluster extents, and the special registers that tell a thread its place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.lanes import WARP
from explorer.devices.emulated.ptx_types import DTYPES, Values

Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a launch is laid out: extents along x, y, z."""

    grid: Extents
    block: Extents
    cluster: Extents = (1, 1, 1)
    explicit_cluster: bool = False
    dynamic_shared_bytes: int = 0
    total_shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps a block, the last one perhaps not full."""
        return -(-self.threads // WARP)

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def cluster_size(self) -> int:
        """Blocks a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def block_place(self, number: int) -> Extents:
        """ctaid of the block with this number in launch order: clusters one after another."""
        cluster, rank = divmod(number, self.cluster_size)
        extents = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        places = zip(_place(cluster, extents), _place(rank, self.cluster), strict=True)
        x, y, z = (c * s + r for (c, r), s in zip(places, self.cluster, strict=True))
        return x, y, z

    def thread_place(self, number: int) -> Extents:
        """tid of the thread with this number in its block."""
        return _place(number, self.block)


def _place(number: int, extents: tuple[int, ...]) -> Extents:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


class SpecialRegisters:
    """Values of %tid, %ctaid and the like for the blocks first_block .. first_block + blocks."""

    def __init__(self, geometry: Geometry, first_block: int, blocks: int) -> None:
        self._geometry = geometry
        self._shape = (blocks, geometry.warps, WARP)
        self._thread = np.arange(geometry.warps * WARP)
        self._places = np.array(
            [geometry.block_place(first_block + b) for b in range(blocks)], np.int64
        ).reshape(-1, 3)
        self._rank = (first_block + np.arange(blocks)) % geometry.cluster_size

    def value(self, name: str, ptx_type: str) -> Values:
        """The register as a scalar or an array of the batch's shape; raises UnsupportedPtx."""
        root, number = _split(name)
        constant = self.constant(name)
        dtype = DTYPES[ptx_type]
        if constant is not None:
            scalar: Values = dtype.type(constant)
            return scalar
        if root in _BY_THREAD:
            values = _BY_THREAD[root](self._geometry, self._thread, number)
            return self._spread(values.reshape(1, -1, WARP), dtype)
        if root in _BY_BLOCK:
            values = _BY_BLOCK[root](self._geometry, self._places, self._rank, number)
            return self._spread(values.reshape(-1, 1, 1), dtype)
        raise UnsupportedPtx((name,))

    def _spread(self, values: NDArray[np.int64], dtype: Any) -> NDArray[Any]:
        return np.ascontiguousarray(np.broadcast_to(values, self._shape).astype(dtype))

    def constant(self, name: str) -> int | None:
        """The register's value if all threads share it, else None."""
        root, axis = _split(name)
        geometry = self._geometry
        constants = {
            "ntid": geometry.block[axis],
            "nctaid": geometry.grid[axis],
            "nwarpid": geometry.warps,
            "nsmid": 1,
            "smid": 0,
            "gridid": 0,
            "cluster_nctaid": geometry.cluster[axis],
            "cluster_nctarank": geometry.cluster_size,
            "nclusterid": geometry.grid[axis] // geometry.cluster[axis],
            "is_explicit_cluster": int(geometry.explicit_cluster),
            "dynamic_smem_size": geometry.dynamic_shared_bytes,
            "total_smem_size": geometry.total_shared_bytes,
        }
        return constants.get(root)


def _split(name: str) -> tuple[str, int]:
    root, _, axis = name.removeprefix("%").partition(".")
    return root, "xyz".find(axis) if axis else 0


def _tid(geometry: Geometry, thread: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    x, y, _ = geometry.block
    return (thread % x, thread // x % y, thread // (x * y))[axis]


_BY_THREAD: dict[str, Callable[[Geometry, NDArray[np.int64], int], NDArray[np.int64]]] = {
    "tid": _tid,
    "laneid": lambda g, t, _: t % WARP,
    "warpid": lambda g, t, _: t // WARP,
    "lanemask_eq": lambda g, t, _: 1 << t % WARP,
    "lanemask_lt": lambda g, t, _: (1 << t % WARP) - 1,
    "lanemask_le": lambda g, t, _: (2 << t % WARP) - 1,
    "lanemask_gt": lambda g, t, _: 2**32 - (2 << t % WARP),
    "lanemask_ge": lambda g, t, _: 2**32 - (1 << t % WARP),
}

_BY_BLOCK: dict[str, Callable[..., NDArray[np.int64]]] = {
    "ctaid": lambda g, places, rank, axis: places[:, axis],
    "cluster_ctaid": lambda g, places, rank, axis: places[:, axis] % g.cluster[axis],
    "clusterid": lambda g, places, rank, axis: places[:, axis] // g.cluster[axis],
    "cluster_ctarank": lambda g, places, rank, axis: rank,
}
