"""What `explorer profile --json` prints."""

from dataclasses import asdict
from math import isfinite
from typing import Any

from explorer.evaluate.nsight import NsightFigures
from explorer.evaluate.profile import Profile
from explorer.ptx_emulator import SECTOR_BYTES, Traffic

Data = dict[str, Any]


def profile_data(profile: Profile, nsight: NsightFigures | str | None) -> Data:
    """problem, config, gpu, resources, occupancy; counts are of `emulated_rows`, times `scale`."""
    variant, counters = profile.variant, profile.counters
    problem = variant.problem
    return {
        "problem": {**problem.as_dict(), "bytes": problem.bytes},
        "config": variant.config.as_dict(),
        "digest": variant.digest,
        "gpu": profile.gpu.name,
        "arch": profile.gpu.arch,
        "nvrtc": profile.nvrtc,
        "resources": asdict(profile.resources),
        "occupancy": {
            **asdict(profile.occupancy),
            "share": profile.occupancy.share,
            "waves": profile.occupancy.waves if isfinite(profile.occupancy.waves) else None,
        },
        "emulated_rows": profile.emulated.rows,
        "scale": profile.scale,
        "counts": {
            "instructions": dict(counters.instructions.most_common()),
            "warp_instructions": counters.warp_instructions,
            "thread_instructions": counters.thread_instructions,
            "global_loads": _traffic(counters.global_loads),
            "global_stores": _traffic(counters.global_stores),
            "shared_loads": _traffic(counters.shared_loads),
            "shared_stores": _traffic(counters.shared_stores),
            "local_loads": _traffic(counters.local_loads),
            "local_stores": _traffic(counters.local_stores),
            "atomics": counters.atomics,
            "barriers": counters.barriers,
            "cluster_barriers": counters.cluster_barriers,
            "warp_barriers": counters.warp_barriers,
            "async_copy_bytes": counters.async_copy_bytes,
        },
        "global_bytes_per_element": _moved(profile) / profile.elements,
        "global_bytes_of_model": _moved(profile) / profile.emulated.bytes,
        "nsight": _nsight(nsight),
    }


def _moved(profile: Profile) -> int:
    """Bytes of the sectors that global loads and stores touch."""
    both = profile.counters.global_loads.sectors + profile.counters.global_stores.sectors
    return both * SECTOR_BYTES


def _traffic(traffic: Traffic) -> Data:
    return {
        **asdict(traffic),
        "widths": {str(size): number for size, number in sorted(traffic.widths.items())},
        "bank_conflicts": traffic.bank_conflicts,
    }


def _nsight(nsight: NsightFigures | str | None) -> Data | None:
    """The figures, null where one is not known; a sentence under `missing` where there are none."""
    if nsight is None:
        return None
    if isinstance(nsight, str):
        return {"missing": nsight}
    return {name: value if isfinite(value) else None for name, value in asdict(nsight).items()}
