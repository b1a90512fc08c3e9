"""Two variants of one problem side by side: for a person, and as plain data for a program."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from rich.console import Console

from explorer.evaluate.profile import PTX, SASS, Inspection, Profile, instruction_counts
from explorer.model.config import parameters
from explorer.model.problem import Problem
from explorer.ptx_emulator import Traffic
from explorer.report.profile import (
    counted_sentence,
    counts_data,
    mixed,
    moved_bytes,
    occupancy_data,
    what_data,
)
from explorer.report.records import Tabular
from explorer.report.table import Table, notes, numbers, print_table, words
from explorer.report.text import (
    count,
    counted,
    environment_line,
    microseconds,
    percent,
    share_of_limit,
)
from explorer.tuning.known_times import KnownTimes

Data = dict[str, Any]

SIDES = ("A", "B")

SOURCE = "source"
TEXTS = (SOURCE, PTX, SASS)
"""What can be shown line by line."""


# ------------------------------------------------------------------ what is compared


@dataclass(frozen=True)
class Difference(Tabular):
    """Two variants, as they were named, and the times that are known of them."""

    names: tuple[str, str]
    sides: tuple[Inspection, Inspection]
    times: KnownTimes | None
    """None where no source has a time of either."""
    where: str = ""
    """The GPU whose limits count, in words; empty: `on`, with its name."""

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"Difference({' and '.join(self.names)} of {self.sides[0].variant.problem})"

    def to_dict(self) -> Data:
        """Return what `explorer diff --json` prints, with all texts that both have."""
        return difference_data(self, tuple(self.texts))

    def records(self) -> list[Data]:
        """Return a record for each side."""
        return [_side_data(self, place) for place in range(len(SIDES))]

    def tables(self) -> list[Table]:
        """Return the figures of both, side by side."""
        return [_config_table(self), figures_table(self)]

    @cached_property
    def texts(self) -> dict[str, "TextDiff"]:
        """The texts that both have, each line by line."""
        one, other = self.sides
        source, other_source = (side.variant.source.splitlines() for side in self.sides)
        found = {
            SOURCE: TextDiff.of(source, other_source, str),
            PTX: TextDiff.of(one.ptx, other.ptx, _without_numbers_of_ptx),
        }
        if one.sass is not None and other.sass is not None:
            found[SASS] = TextDiff.of(one.sass, other.sass, _without_numbers_of_sass)
        return found

    def time_us(self, place: int) -> float | None:
        """Return the known time of A (0) or B (1), microseconds a launch."""
        return None if self.times is None else self.times.times_us[place]


# ------------------------------------------------------------------ line by line


CONTEXT = 3
"""Equal lines that are shown around those that differ."""

_PTX_NUMBER = re.compile(r"%([a-z]+)\d+|\$L_+\w+|_INTERNAL_\w+")
_SASS_NUMBER = re.compile(r"\b(UR|UP|SB|R|P|B)\d+\b|\.L_x_\d+|\.reuse\b")


def _without_numbers_of_ptx(line: str) -> str:
    """Return a line of PTX without the numbers of registers and labels."""
    return " ".join(_PTX_NUMBER.sub(r"%\1", line).split())


def _without_numbers_of_sass(line: str) -> str:
    """Return a line of SASS without the numbers of registers and labels."""
    return " ".join(_SASS_NUMBER.sub(r"\1", line).split())


@dataclass(frozen=True, slots=True)
class TextDiff:
    """Two texts as a unified diff, and how many lines only one of them has."""

    lines: tuple[str, ...]
    """Without the two lines that name the files."""
    only: tuple[int, int]

    @classmethod
    def of(cls, one: Sequence[str], other: Sequence[str], key: Callable[[str], str]) -> "TextDiff":
        """Compare lines by `key`; of two that it makes equal, that of the first is shown."""
        matcher = SequenceMatcher(
            None, [key(line) for line in one], [key(line) for line in other], autojunk=False
        )
        lines: list[str] = []
        only = [0, 0]
        for group in matcher.get_grouped_opcodes(CONTEXT):
            begin, end = group[0], group[-1]
            lines.append(f"@@ -{_span(begin[1], end[2])} +{_span(begin[3], end[4])} @@")
            for tag, i, i_end, j, j_end in group:
                if tag == "equal":
                    lines += [f" {line}" for line in one[i:i_end]]
                    continue
                lines += [f"-{line}" for line in one[i:i_end]]
                lines += [f"+{line}" for line in other[j:j_end]]
                only[0] += i_end - i
                only[1] += j_end - j
        return cls(tuple(lines), (only[0], only[1]))


def _span(begin: int, end: int) -> str:
    """Return lines from `begin` to before `end`, from 0, as a unified diff has them."""
    length = end - begin
    return f"{begin + 1}" if length == 1 else f"{begin + (length > 0)},{length}"


# ------------------------------------------------------------------ as JSON


def difference_data(difference: Difference, shown: Sequence[str]) -> Data:
    """Return problem, GPU, both sides, times (null: none known), and diffs of the texts `shown`."""
    one, times = difference.sides[0], difference.times
    return {
        "problem": {**one.variant.problem.as_dict(), "bytes": one.variant.problem.bytes},
        "gpu": one.gpu.name,
        "arch": one.gpu.arch,
        "a": _side_data(difference, 0),
        "b": _side_data(difference, 1),
        "config": _config_data(difference),
        "times": None
        if times is None
        else {
            "source": times.source,
            "in_turn": times.in_turn,
            "circumstances": times.environment.as_dict(),
        },
        "lines": {
            name: {"only_a": text.only[0], "only_b": text.only[1]}
            for name, text in difference.texts.items()
        },
        "diffs": {name: list(difference.texts[name].lines) for name in shown},
    }


def _config_data(difference: Difference) -> Data | None:
    """Return the parameters that differ, and how many are the same; None without two configs."""
    one, other = difference.sides
    if one.program.is_own or other.program.is_own:
        return None
    differing = one.program.config.differences(other.program.config)
    return {
        "differing": {name: list(values) for name, values in differing.items()},
        "same": _chosen(one.program.problem) - len(differing),
    }


def _side_data(difference: Difference, place: int) -> Data:
    side, time_us = difference.sides[place], difference.time_us(place)
    launches = [asdict(launch) for launch in side.variant.launches]
    return {
        "name": difference.names[place],
        **what_data(side.program),
        "digest": side.variant.digest,
        "time_us": time_us,
        "of_limit": _of_limit(difference, place),
        "of_other_code": bool(difference.times and difference.times.other_code[place]),
        "launches": launches,
        "scratch_bytes": side.variant.scratch_bytes,
        "resources": asdict(side.resources),
        "occupancy": occupancy_data(side.occupancy),
        "counted": None if side.profile is None else counts_data(side.profile),
        "not_counted": side.not_counted or None,
        "sass_instructions": None
        if side.sass is None
        else dict(instruction_counts(side.sass).most_common()),
        "no_sass": side.no_sass or None,
    }


def _of_limit(difference: Difference, place: int) -> float | None:
    time_us = difference.time_us(place)
    if difference.times is None or time_us is None:
        return None
    return share_of_limit(time_us, difference.times.environment.limit_us)


# ------------------------------------------------------------------ for a person


def print_difference(difference: Difference, shown: Sequence[str], console: Console) -> None:
    """Print names, config, what each takes and does, instructions, then the texts `shown`."""
    first = difference.sides[0]
    where = difference.where or f"on {first.gpu.name}"
    console.print(f"{first.variant.problem} {where}", style="bold")
    console.print()
    configs = [side.program.words for side in difference.sides]
    named = [f"{_name(name)}: {c}" for name, c in zip(difference.names, configs, strict=True)]
    console.print(notes([*zip(SIDES, named, strict=True)]))
    for table in (
        *([] if _config_data(difference) is None else [_config_table(difference)]),
        figures_table(difference),
        *_mix_tables(difference),
    ):
        print_table(table, console)
    console.print()
    console.print(notes(_remarks(difference)))
    for name in shown:
        _print_text(difference, name, console)


def _name(what: str) -> str:
    """Return how a variant was named, a trial of a study with what its number is of."""
    return f"trial {what}" if what.isdigit() else what


def _chosen(problem: Problem) -> int:
    """Return how many parameters there are to choose for a problem's operator."""
    return sum(len(values) > 1 for values in parameters(problem.dtype, problem.operator).values())


def _config_table(difference: Difference) -> Table:
    one, other = (side.variant.config for side in difference.sides)
    differing = list(one.differences(other))
    same = _chosen(difference.sides[0].variant.problem) - len(differing)
    many = "differ" if len(differing) != 1 else "differs"
    title = (
        f"Config: {counted(len(differing), 'parameter')} {many}, {same} are the same"
        if differing
        else "Config: the same"
    )
    table = Table(words("", *SIDES), title=title)
    for name in differing:
        table.add(name, str(getattr(one, name)), str(getattr(other, name)))
    return table


def figures_table(difference: Difference) -> Table:
    """Return the figures of each side, a row a figure; `not known` where a time or count is not."""
    table = Table([*words(""), *numbers(*SIDES, "B over A")], title="Side by side")

    def add(name: str, show: Show, one: float | None, other: float | None) -> None:
        told = ["not known" if value is None else show(value) for value in (one, other)]
        ratio = f"× {other / one:.3g}" if one and other is not None else ""
        table.add(name, *told, ratio)

    one, other = difference.sides
    add("time", lambda us: f"{microseconds(us)} µs", difference.time_us(0), difference.time_us(1))
    of_limit = (_of_limit(difference, 0), _of_limit(difference, 1))
    if any(of_limit):
        add(f"share of {one.variant.problem.limit}", percent, *of_limit)
    for name, show, value in _COMPILED:
        add(name, show, value(one), value(other))
    table.add("limited by", *(", ".join(side.occupancy.limited_by) for side in (one, other)), "")
    if one.profile or other.profile:
        for name, show, counted_of in _COUNTED:
            known = ((None if p is None else counted_of(p)) for p in (one.profile, other.profile))
            add(name, show, *known)
    return table


Show = Callable[[float], str]


def _whole(value: float) -> str:
    return count(round(value))


def _waves(value: float) -> str:
    """Return two decimals, or of less than one wave two significant digits: 12.34, 0.12, 0.0076."""
    return f"{value:.2f}" if value >= 1 or value == 0 else f"{value:#.2g}"


def _few(value: float) -> str:
    return f"{value:.4g}"


def _bytes(value: float) -> str:
    return f"{count(round(value))} B"


_COMPILED: tuple[tuple[str, Show, Callable[[Inspection], float]], ...] = (
    ("registers a thread", _whole, lambda s: s.resources.registers),
    ("spilled", _bytes, lambda s: s.resources.spilled_bytes),
    ("shared memory a block", _bytes, lambda s: s.resources.shared_bytes),
    ("machine code", _bytes, lambda s: s.resources.code_bytes),
    ("launches", _whole, lambda s: len(s.variant.launches)),
    ("threads a block", _whole, lambda s: s.variant.launches[0].block),
    ("blocks", _whole, lambda s: s.variant.launches[0].grid_on(s.gpu.sm_count)),
    ("blocks an SM", _whole, lambda s: s.occupancy.blocks_per_sm),
    ("occupancy", lambda share: percent(share, 0), lambda s: s.occupancy.share),
    ("waves", _waves, lambda s: s.occupancy.waves),
)
"""What ptxas and the launch say."""

_COUNTED: tuple[tuple[str, Show, Callable[[Profile], float]], ...] = (
    ("global memory a row", _bytes, lambda p: moved_bytes(p) / p.emulated.rows),
    ("global memory an element", "{:.3f} B".format, lambda p: moved_bytes(p) / p.elements),
    ("of the least possible bytes", percent, lambda p: moved_bytes(p) / p.emulated.bytes),
    ("shared wavefronts a row", _few, lambda p: _shared(p).wavefronts / p.emulated.rows),
    ("bank conflicts a row", _few, lambda p: _shared(p).bank_conflicts / p.emulated.rows),
    ("block barriers a row", _few, lambda p: p.counters.barriers / p.emulated.rows),
)
"""What the emulator counted, for each element or row."""


def _shared(profile: Profile) -> Traffic:
    """Return the accesses to shared memory."""
    return profile.counters.shared_loads + profile.counters.shared_stores


def _mix_tables(difference: Difference) -> Iterator[Table]:
    """Yield the PTX instructions that warps executed, and those of the machine code, if known."""
    one, other = difference.sides
    if one.profile and other.profile:
        executed = (_executed(one.profile), _executed(other.profile))
        yield _mix_table("PTX instructions executed, an element", executed, "{:.3f}".format)
    if one.sass is not None and other.sass is not None:
        code = (instruction_counts(one.sass), instruction_counts(other.sass))
        yield _mix_table("SASS instructions in the code", code, _whole)


def _executed(profile: Profile) -> dict[str, float]:
    instructions = profile.counters.instructions
    return {name: 32 * number / profile.elements for name, number in instructions.items()}


def _mix_table(title: str, mixes: Sequence[Mapping[str, float]], shown: Show) -> Table:
    """Return both mixes, the most frequent instructions first, and what all come to."""
    table = Table([*words(""), *numbers(*SIDES, "change")], title=title)
    table.rows += [
        [name, shown(a), shown(b), _signed(b - a, shown)] for name, (a, b) in mixed(*mixes)
    ]
    return table


def _signed(value: float, shown: Callable[[float], str]) -> str:
    text = shown(abs(value))
    return text if text == shown(0) else f"{'+' if value > 0 else '-'}{text}"


def _remarks(difference: Difference) -> list[tuple[str, str]]:
    """Say where the times come from, how it was counted, and how much of each text differs."""
    are_files = any(side.program.has_own_text for side in difference.sides)
    no_time = "not known of a file: explorer time measures it on a GPU"
    lines = [("time", no_time if are_files else _time_sentence(difference.times))]
    lines += [("counted", sentence) for sentence in _counted_sentences(difference)]
    for name, text in difference.texts.items():
        lines.append((name, _text_sentence(name, text)))
    missing = dict.fromkeys(side.no_sass for side in difference.sides if side.no_sass)
    return [*lines, *((SASS, sentence) for sentence in missing)]


def _time_sentence(times: KnownTimes | None) -> str:
    if times is None:
        return (
            "not known: neither kernel is in a study, a tuned table or a recording of this problem "
            "on this GPU"
        )
    how = "timed in turn" if times.in_turn else "timed one after the other"
    told = f"{times.source}, {how}; {environment_line(times.environment)}"
    other = [side for side, is_other in zip(SIDES, times.other_code, strict=True) if is_other]
    if not other:
        return told
    return (
        f"{told}; the time of {' and '.join(other)} was taken before the templates changed, and "
        "may be of other code than is shown here"
    )


def _counted_sentences(difference: Difference) -> list[str]:
    """Say how rows were counted; of each side where that differs."""
    told = [
        side.not_counted if side.profile is None else counted_sentence(side.profile)
        for side in difference.sides
    ]
    if told[0] == told[1]:
        return told[:1]
    return [f"{side}: {sentence}" for side, sentence in zip(SIDES, told, strict=True)]


def _text_sentence(name: str, text: TextDiff) -> str:
    if not any(text.only):
        return "the same" if name == SOURCE else "the same but for numbers of registers and labels"
    one, other = (counted(number, "line") for number in text.only)
    apart = "" if name == SOURCE else "; numbers of registers and labels do not count"
    return f"{one} of A alone, {other} of B alone{apart}"


_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def _print_text(difference: Difference, name: str, console: Console) -> None:
    """Print a unified diff, each line whole; in colours where the console has some."""
    lines = difference.texts[name].lines
    if not lines:
        return
    console.print()
    one, other = (f"{side} {_name(of)}" for side, of in zip(SIDES, difference.names, strict=True))
    console.print(f"--- {one} ({name})", style="bold red", soft_wrap=True)
    console.print(f"+++ {other} ({name})", style="bold green", soft_wrap=True)
    for line in lines:
        console.print(line, style=_STYLES.get(line[0], ""), soft_wrap=True)
