"""What `explorer profile` prints: what a kernel does and takes."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from math import isfinite
from typing import Any

from rich.console import Console

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.nsight import NsightFigures
from explorer.evaluate.profile import Profile
from explorer.model.gpu_spec import Occupancy
from explorer.model.problem import Mask
from explorer.ptx_emulator import SECTOR_BYTES, Traffic
from explorer.report.table import Table, notes, numbers, print_table, words
from explorer.report.text import count, counted, microseconds, percent

# ------------------------------------------------------------------ as JSON


Data = dict[str, Any]


def profile_data(profile: Profile, nsight: NsightFigures | str | None) -> Data:
    """Return problem, config, GPU, resources, occupancy, counts, and Nsight Compute's figures."""
    variant = profile.variant
    return {
        "problem": {**variant.problem.as_dict(), "bytes": variant.problem.bytes},
        **what_data(profile.program),
        "digest": variant.digest,
        "gpu": profile.gpu.name,
        "arch": profile.gpu.arch,
        "nvrtc": profile.nvrtc,
        "resources": asdict(profile.resources),
        "states_residency": None
        if profile.program.is_own
        else profile.resources.is_stated(variant.config),
        "occupancy": occupancy_data(profile.occupancy),
        **counts_data(profile),
        "nsight": _nsight(nsight),
    }


def what_data(program: ProgramUnderTest) -> Data:
    """Return the config of an emitted kernel, or the launch of a person's own."""
    return {"launch": program.words} if program.is_own else {"config": program.config.as_dict()}


def occupancy_data(held: Occupancy) -> Data:
    """Return blocks and warps an SM, what limits them, the share of its warps, and waves."""
    waves = held.waves if isfinite(held.waves) else None
    return {**asdict(held), "share": held.share, "waves": waves}


def counts_data(profile: Profile) -> Data:
    """Return what the emulator counted of `emulated_rows`: times `scale`, it is of all rows."""
    counters = profile.counters
    counts = {each.name: _plain(getattr(counters, each.name)) for each in fields(counters)}
    return {
        "emulated_rows": profile.emulated.rows,
        "defect": profile.defect or None,
        "scale": profile.scale,
        "counts": {
            "instructions": counts.pop("instructions"),
            "warp_instructions": counters.warp_instructions,
            **counts,
        },
        "global_bytes_per_element": moved_bytes(profile) / profile.elements,
        "global_bytes_of_model": moved_bytes(profile) / profile.emulated.bytes,
    }


def _plain(counted: Any) -> Any:
    """Return a count, counts by name, or the counts of a state space as plain data."""
    if isinstance(counted, Counter):
        return dict(counted.most_common())
    if not isinstance(counted, Traffic):
        return counted
    widths = {str(size): number for size, number in sorted(counted.widths.items())}
    return {**asdict(counted), "widths": widths, "bank_conflicts": counted.bank_conflicts}


def moved_bytes(profile: Profile) -> int:
    """Return the bytes of the sectors that global loads and stores touch."""
    return (profile.counters.global_loads + profile.counters.global_stores).sector_bytes


def _nsight(nsight: NsightFigures | str | None) -> Data | None:
    """Return the figures, null where one is not known, or why there are none under `missing`."""
    if nsight is None:
        return None
    if isinstance(nsight, str):
        return {"missing": nsight}
    return {name: value if isfinite(value) else None for name, value in asdict(nsight).items()}


# ------------------------------------------------------------------ as tables


LEAST_SHARE = 0.02
"""Instructions of a kind that are fewer are summed, unless they are TELLING."""

TELLING = (
    *("ld.global", "st.global", "ld.shared", "st.shared", "ld.local", "st.local"),
    *("shfl", "bar", "barrier", "atom", "red", "cp", "mbarrier", "mma"),
    *("LD", "ST", "SHFL", "BAR", "ATOM", "RED", "UCGABAR", "SYNCS", "UBLKCP", "HMMA"),
)
"""What the names begin with of instructions that move data, wait, or use the tensor cores.

They are those of PTX, then those of SASS.
"""


def print_profile(
    profile: Profile,
    nsight: NsightFigures | str | None,
    texts: Mapping[str, Sequence[str]],
    console: Console,
) -> None:
    """Print what is known of the variant without timing it, Nsight Compute's figures, and texts."""
    console.print(f"{profile.variant.problem}: {profile.program.words}", style="bold")
    console.print()
    console.print(notes(_lines(profile)))
    for table in profile_tables(profile):
        print_table(table, console)
    if isinstance(nsight, NsightFigures):
        print_table(_nsight_table(profile, nsight), console)
    elif nsight:
        console.print()
        console.print(nsight)
    for name, lines in texts.items():
        console.print(f"\n{name}, below each line of the source", style="bold")
        for line in lines:
            console.print(line, soft_wrap=True, style="cyan" if _OF_SOURCE.match(line) else None)


_OF_SOURCE = re.compile(r" *\d+ \| ")


def profile_tables(profile: Profile) -> list[Table]:
    """Return the traffic of both memories, and the instructions."""
    return [_global_table(profile), _shared_table(profile), _opcodes(profile)]


def _lines(profile: Profile) -> list[tuple[str, str]]:
    launch = profile.variant.launches[0]
    grid = counted(launch.grid_on(profile.gpu.sm_count), "block")
    code = f"{count(profile.resources.code_bytes)} bytes of code"
    made = f"{profile.gpu.arch}, NVRTC {profile.nvrtc}"
    is_own = profile.program.is_own
    residency = "" if is_own else profile.resources.residency(profile.variant.config)
    return [
        ("counted", counted_sentence(profile)),
        ("takes", f"{profile.resources}, {code} ({made})"),
        ("launch", f"{grid} of {counted(launch.block, 'thread')}"),
        ("occupancy", occupancy_sentence(profile.occupancy, profile)),
        *([("memory", memory_sentence(profile))] if profile.gpu.peak_gbps else []),
        *([("residency", residency)] if residency else []),
    ]


def counted_sentence(profile: Profile) -> str:
    """Say how many rows were executed, and how totals were made of them."""
    rows, whole = profile.emulated.rows, profile.variant.problem.rows
    if profile.defect:
        return f"what a wrong run does, {profile.defect}: explorer verify says where"
    if rows == whole:
        return f"exactly, by emulation of all {count(rows)} rows"
    mask = profile.variant.problem.mask
    which = {Mask.CAUSAL: " of mean length", Mask.LENGTHS: " of random lengths"}.get(mask, "")
    return (
        f"exactly for {count(rows)} of {count(whole)} rows{which}, by emulation; totals are those "
        f"times {profile.scale:.6g}"
    )


def occupancy_sentence(held: Occupancy, profile: Profile) -> str:
    """Say how many blocks and warps an SM holds, what limits them, and how many waves there are."""
    if not held.blocks_per_sm:
        return f"not one block fits an SM of {profile.gpu.name}: {', '.join(held.limited_by)}"
    return (
        f"{counted(held.blocks_per_sm, 'block')} an SM of {profile.gpu.name}, "
        f"{held.warps_per_sm} of {held.max_warps_per_sm} warps "
        f"({percent(held.share, 0)}), limited by {' and '.join(held.limited_by)}; "
        f"{held.waves:.2f} waves on {profile.gpu.sm_count} SMs"
    )


def memory_sentence(profile: Profile) -> str:
    """Say how long the bytes take at the peak of the GPU's memory: bounds, and no measured time."""
    bytes_a_us = profile.gpu.peak_gbps * 1e3
    least_us = profile.variant.problem.bytes / bytes_a_us
    moved_us = moved_bytes(profile) * profile.scale / bytes_a_us
    peak = f"{count(round(profile.gpu.peak_gbps))} GB/s, the peak of {profile.gpu.name}'s memory"
    return (
        f"at {peak}, the least possible bytes take {microseconds(least_us)} µs, and what it moves "
        f"{microseconds(moved_us)} µs if no cache holds any; this command measures no time"
    )


def _global_table(profile: Profile) -> Table:
    headings = ("requests", "bytes", "in sectors", "an element", "of the least possible", "access")
    table = _table("Global memory", *headings)
    loads, stores = profile.counters.global_loads, profile.counters.global_stores
    of = profile.emulated
    rows = (("loads", loads, of.read_bytes), ("stores", stores, of.written_bytes))
    for name, traffic, due in (*rows, ("both", loads + stores, of.bytes)):
        moved = traffic.sector_bytes
        shares = (f"{moved / profile.elements:.3f} B", percent(moved / due))
        totals = _totals(profile, traffic.requests, traffic.bytes, moved)
        table.add(name, *totals, *shares, widths(traffic))
    return table


def _shared_table(profile: Profile) -> Table:
    headings = ("requests", "bytes", "wavefronts", "of them conflicts", "access")
    table = _table("Shared memory", *headings)
    counters = profile.counters
    for name, traffic in (("loads", counters.shared_loads), ("stores", counters.shared_stores)):
        counts = (traffic.requests, traffic.bytes, traffic.wavefronts, traffic.bank_conflicts)
        table.add(name, *_totals(profile, *counts), widths(traffic))
    return table


def widths(traffic: Traffic) -> str:
    """Return the bytes that a thread accesses at once, with shares: `16 B 97.0 %, 4 B 3.0 %`."""
    if not traffic.requests:
        return "none"
    parts = [
        f"{size} B" + (f" {percent(n / traffic.requests)}" if n < traffic.requests else "")
        for size, n in traffic.widths.most_common()
    ]
    return ", ".join(parts)


def _opcodes(profile: Profile) -> Table:
    title = (
        "PTX instructions: one for each warp in total; of an element 32, for lanes that idle too"
    )
    table = _table(title, "total", "an element", "share")
    counters = profile.counters
    for name, (number,) in mixed(counters.instructions):
        share = number / max(1, counters.warp_instructions)
        an_element = f"{32 * number / profile.elements:.3f}"
        table.add(name, *_totals(profile, number), an_element, percent(share))
    table.add("block barriers", *_totals(profile, counters.barriers), "", "")
    return table


def mixed(*mixes: Mapping[str, float]) -> Iterator[tuple[str, list[float]]]:
    """Yield each instruction of some mixes with its numbers, the most frequent first; then sums.

    Those of less than LEAST_SHARE in each mix are summed as others, unless they are TELLING.
    """
    sums, others = [sum(mix.values()) for mix in mixes], [0.0 for _ in mixes]
    every = {name: [mix.get(name, 0) for mix in mixes] for name in chain(*mixes)}
    for name, counts in sorted(every.items(), key=lambda item: (-max(item[1]), item[0])):
        is_large = any(n >= LEAST_SHARE * whole for n, whole in zip(counts, sums, strict=True))
        if is_large or name.startswith(TELLING):
            yield name, counts
        else:
            others = [sum(pair) for pair in zip(others, counts, strict=True)]
    if any(others):
        yield "others", others
    yield "all", sums


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
    table.rows += [[name, _known(moved), percent(moved / due)] for name, moved, due in traffic]
    table.rows += [
        ["instructions", _known(nsight.warp_instructions), ""],
        ["duration", f"{nsight.duration_ns / 1000:.2f} µs", ""],
        ["achieved occupancy", f"{nsight.occupancy_percent:.1f} %", ""],
    ]
    return table


def _known(number: float) -> str:
    return count(round(number)) if number == number else "not known"  # NaN differs from itself


def _totals(profile: Profile, *numbers: float) -> list[str]:
    """Return counts as those of all rows."""
    return [count(round(number * profile.scale)) for number in numbers]


def _table(title: str, *headings: str) -> Table:
    return Table([*words(""), *numbers(*headings)], title=title)
