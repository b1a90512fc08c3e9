"""What `explorer profile` prints: what a kernel does and takes."""

from dataclasses import asdict
from math import isfinite
from typing import Any

from rich.console import Console

from explorer.evaluate.nsight import NsightFigures
from explorer.evaluate.profile import Profile
from explorer.model.config import brief_words
from explorer.model.gpu_spec import Occupancy
from explorer.model.problem import Mask
from explorer.ptx_emulator import SECTOR_BYTES, Traffic
from explorer.report.table import Table, notes, numbers, print_table, words
from explorer.report.text import count, counted, percent

# ------------------------------------------------------------------ as JSON


Data = dict[str, Any]


def profile_data(profile: Profile, nsight: NsightFigures | str | None) -> Data:
    """problem, config, gpu, resources, occupancy; counts are of `emulated_rows`, times `scale`."""
    variant = profile.variant
    problem = variant.problem
    return {
        "problem": {**problem.as_dict(), "bytes": problem.bytes},
        "config": variant.config.as_dict(),
        "digest": variant.digest,
        "gpu": profile.gpu.name,
        "arch": profile.gpu.arch,
        "nvrtc": profile.nvrtc,
        "resources": asdict(profile.resources),
        "occupancy": occupancy_data(profile.occupancy),
        **counts_data(profile),
        "nsight": _nsight(nsight),
    }


def occupancy_data(held: Occupancy) -> Data:
    """Blocks and warps an SM, what limits them, the share of its warps, and waves of the grid."""
    waves = held.waves if isfinite(held.waves) else None
    return {**asdict(held), "share": held.share, "waves": waves}


def counts_data(profile: Profile) -> Data:
    """What the emulator counted of `emulated_rows`: times `scale`, it is of the whole problem."""
    counters = profile.counters
    return {
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
        "global_bytes_per_element": moved_bytes(profile) / profile.elements,
        "global_bytes_of_model": moved_bytes(profile) / profile.emulated.bytes,
    }


def moved_bytes(profile: Profile) -> int:
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


# ------------------------------------------------------------------ as tables


LEAST_SHARE = 0.02
"""Instructions of a kind that are fewer are summed, but for those that move data or wait."""

MOVING = ("ld.global", "st.global", "ld.shared", "st.shared", "ld.local", "st.local")
TELLING = (*MOVING, "shfl", "bar", "barrier", "atom", "red", "cp", "mbarrier")


def print_profile(profile: Profile, nsight: NsightFigures | str | None, console: Console) -> None:
    """All that is known of the variant without timing it, then what a GPU's profiler says."""
    variant = profile.variant
    console.print(f"{variant.problem}: {brief_words(variant.config)}", style="bold")
    console.print()
    console.print(notes(_lines(profile)))
    for table in (_global_table(profile), _shared_table(profile), _opcodes(profile)):
        print_table(table, console)
    if isinstance(nsight, NsightFigures):
        print_table(_nsight_table(profile, nsight), console)
    elif nsight:
        console.print()
        console.print(nsight)


def _lines(profile: Profile) -> list[tuple[str, str]]:
    launch = profile.variant.launches[0]
    grid = counted(launch.grid_on(profile.gpu.sm_count), "block")
    code = f", {count(profile.resources.code_bytes)} bytes of code"
    return [
        ("counted", counted_sentence(profile)),
        (
            "takes",
            str(profile.resources) + code + f" ({profile.gpu.arch}, NVRTC {profile.nvrtc})",
        ),
        ("launch", f"{grid} of {counted(launch.block, 'thread')}"),
        ("occupancy", occupancy_sentence(profile.occupancy, profile)),
    ]


def counted_sentence(profile: Profile) -> str:
    """How many rows were executed, and how totals were made of them."""
    rows, whole = profile.emulated.rows, profile.variant.problem.rows
    if rows == whole:
        return f"exactly, by emulation of all {count(rows)} rows"
    mask = profile.variant.problem.mask
    which = {Mask.CAUSAL: " of mean length", Mask.LENGTHS: " of random lengths"}.get(mask, "")
    return (
        f"exactly for {count(rows)} of {count(whole)} rows{which}, by emulation; totals are those "
        f"times {profile.scale:.6g}"
    )


def occupancy_sentence(held: Occupancy, profile: Profile) -> str:
    """Blocks and warps an SM, what limits them, and waves of the grid."""
    if not held.blocks_per_sm:
        return f"not one block fits an SM of {profile.gpu.name}: {', '.join(held.limited_by)}"
    blocks = "1 block" if held.blocks_per_sm == 1 else f"{held.blocks_per_sm} blocks"
    return (
        f"{blocks} an SM of {profile.gpu.name}, {held.warps_per_sm} of {held.max_warps_per_sm} "
        f"warps ({percent(held.share, 0)}), limited by {' and '.join(held.limited_by)}; "
        f"{held.waves:.2f} waves on {profile.gpu.sm_count} SMs"
    )


def _global_table(profile: Profile) -> Table:
    headings = ("requests", "bytes", "in sectors", "an element", "of the least possible", "access")
    table = _table("Global memory", *headings)
    counters, problem = profile.counters, profile.emulated
    both = counters.global_loads + counters.global_stores
    rows = (
        ("loads", counters.global_loads, problem.read_bytes),
        ("stores", counters.global_stores, problem.written_bytes),
        ("both", both, problem.bytes),
    )
    for name, traffic, due in rows:
        moved = traffic.sectors * SECTOR_BYTES
        table.add(
            name,
            _total(traffic.requests, profile),
            _total(traffic.bytes, profile),
            _total(moved, profile),
            f"{moved / profile.elements:.3f} B",
            percent(moved / due),
            widths(traffic),
        )
    return table


def _shared_table(profile: Profile) -> Table:
    headings = ("requests", "bytes", "wavefronts", "of them conflicts", "access")
    table = _table("Shared memory", *headings)
    counters = profile.counters
    for name, traffic in (("loads", counters.shared_loads), ("stores", counters.shared_stores)):
        table.add(
            name,
            _total(traffic.requests, profile),
            _total(traffic.bytes, profile),
            _total(traffic.wavefronts, profile),
            _total(traffic.bank_conflicts, profile),
            widths(traffic),
        )
    return table


def widths(traffic: Traffic) -> str:
    """Bytes that a thread accesses at once, with their shares: `16 B 97.0 %, 4 B 3.0 %`."""
    if not traffic.requests:
        return "none"
    parts = [
        f"{size} B" + (f" {percent(n / traffic.requests)}" if n < traffic.requests else "")
        for size, n in traffic.widths.most_common()
    ]
    return ", ".join(parts)


def _opcodes(profile: Profile) -> Table:
    title = "PTX instructions: the total counts one for each warp, an element's one for each thread"
    table = _table(title, "total", "an element", "share")
    counters = profile.counters
    listed = [
        (name, number)
        for name, number in counters.instructions.most_common()
        if number >= LEAST_SHARE * counters.warp_instructions or name.startswith(TELLING)
    ]
    rest = counters.warp_instructions - sum(n for _, n in listed)
    rows = [*listed, *([("others", rest)] if rest else [])]
    for name, number in (*rows, ("all", counters.warp_instructions)):
        table.add(
            name,
            _total(number, profile),
            f"{32 * number / profile.elements:.3f}",
            percent(number / max(1, counters.warp_instructions)),
        )
    table.add("block barriers", _total(counters.barriers, profile), "", "")
    return table


def _nsight_table(profile: Profile, nsight: NsightFigures) -> Table:
    table = _table("Nsight Compute", "measured", "of the least possible")
    problem = profile.variant.problem
    loads, stores = nsight.load_sectors * SECTOR_BYTES, nsight.store_sectors * SECTOR_BYTES
    traffic = (
        ("bytes that loads ask of the L1", loads, problem.read_bytes),
        ("bytes that stores ask of the L1", stores, problem.written_bytes),
        ("bytes read from DRAM", nsight.dram_read_bytes, problem.read_bytes),
        ("bytes written to DRAM", nsight.dram_write_bytes, problem.written_bytes),
    )
    for name, moved, due in traffic:
        table.add(name, _known(moved), percent(moved / due))
    table.add("instructions", _known(nsight.warp_instructions), "")
    table.add("duration", f"{nsight.duration_ns / 1000:.2f} µs", "")
    table.add("achieved occupancy", f"{nsight.occupancy_percent:.1f} %", "")
    return table


def _known(number: float) -> str:
    return count(round(number)) if number == number else "not known"  # NaN differs from itself


def _total(number: int, profile: Profile) -> str:
    return count(round(number * profile.scale))


def _table(title: str, *headings: str) -> Table:
    return Table([*words(""), *numbers(*headings)], title=title)
