"""What `explorer space`, `presets`, `record` and `recordings` print."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.devices.recorded import Recording, RecordingFile, RecordingHeader
from explorer.model.config import Config
from explorer.model.config_words import brief_words
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Measured
from explorer.model.parameters import MEANING, REFUTED, Value
from explorer.model.problem import Op, Problem
from explorer.presets import PRESET_NAMES, PRESETS, Preset
from explorer.report.table import Styled, Table, cell, numbers, print_table, prose, words
from explorer.report.text import count, counted, microseconds, percent
from explorer.space import RULES, Space
from explorer.space.rules import Rule
from explorer.system.plain_data import nearest, shown

# --------------------------------------------- parameters, their values, and what the rules exclude


@dataclass(frozen=True, slots=True)
class SpaceView:
    """A space, and which of it is to be shown. Raises InvalidInput for an unknown parameter."""

    space: Space
    fixed: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    """The values to which parameters of it are narrowed."""
    names: tuple[str, ...] = ()
    """The parameters that are shown; all where there are none."""
    where: str = ""
    """The GPU whose limits count, in words; empty: `on`, with its name and architecture."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in self.space.parameters:
                known = self.space.parameters
                instead = nearest(name, known) or f"choose one of {', '.join(known)}"
                raise InvalidInput(f"parameter {shown(name)} is not known; {instead}")

    @property
    def parameters(self) -> dict[str, tuple[Value, ...]]:
        """Those that are shown, with their values."""
        every = self.space.parameters
        return {name: every[name] for name in every if not self.names or name in self.names}

    @property
    def rules(self) -> list[Rule]:
        """Those that read a parameter that is shown."""
        return [rule for rule in RULES if not self.names or {*rule.reads} & {*self.names}]

    @property
    def searched_count(self) -> int:
        """How many legal points a search may propose."""
        return Space.searched(self.space.problem, self.space.gpu, self.fixed).legal_count()


def _share(part: int, whole: int) -> str:
    """Return a share in per cent, which is not called 0 if it is only small."""
    share = part / whole
    return percent(share) if share >= 0.001 or not part else "less than 0.1 %"


def print_space(view: SpaceView, console: Console) -> None:
    """The parameters with their values and meaning, the counts, and each rule with its sentence."""
    space = view.space
    where = view.where or f"on {space.gpu.name} ({space.gpu.arch})"
    console.print(f"{space.problem} {where}", style="bold")
    console.print()
    print_table(_parameters_table(view), console)
    console.print()
    legal, points = space.legal_count(), space.point_count
    console.print(
        f"{count(points)} points, {count(legal)} of them legal ({_share(legal, points)}); many "
        f"emit the same code. A search proposes {count(view.searched_count)} of them: those "
        "without the values in parentheses, which lost wherever they were measured; a preset, or "
        "a config of yours, may have them."
    )
    if view.rules:
        print_table(_rules_table(view), console)


def _parameters_table(view: SpaceView) -> Table:
    table = Table([*words("parameter"), prose("values", 2), prose("meaning", 3)])
    for name, values in view.parameters.items():
        alone = REFUTED.get(name, ())
        told = (f"({value})" if value in alone else str(value) for value in values)
        table.add(name, ", ".join(told), MEANING[name])
    return table


def _rules_table(view: SpaceView) -> Table:
    columns = [*numbers("excluded"), *words("rule"), prose("what a legal config satisfies")]
    table = Table(columns, title="Rules: what each excludes by itself", keys=2)
    for rule in view.rules:
        table.add(percent(view.space.excluded_share(rule)), rule.name, rule.sentence)
    return table


# ------------------------------------------------------------------ published kernels


@dataclass(frozen=True, slots=True)
class PresetLine:
    """A preset and, where a problem was named, its config for it or why there is none."""

    preset: Preset
    config: Config | None = None
    fault: str | None = None

    @property
    def is_legal(self) -> bool | None:
        """Whether it can compute the problem; None where none was named."""
        return None if self.config is None and self.fault is None else self.fault is None


@dataclass(frozen=True, slots=True)
class PresetFilter:
    """Which presets a user wants to see."""

    text: str = ""
    """Part of a name or of the source, in either case."""
    op: Op | None = None
    dtype: DType | None = None
    values: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """What its config for the problem may have of a parameter."""
    only_legal: bool = False

    def passes(self, line: PresetLine) -> bool:
        """Whether a preset is wanted."""
        preset, config = line.preset, line.config
        said = " ".join([preset.name, *preset.other_names, str(preset.source)])
        if self.text.lower() not in said.lower() or (self.only_legal and config is None):
            return False
        if self.op not in (None, *preset.ops) or self.dtype not in (None, *preset.dtypes):
            return False
        values = {} if config is None else config.as_dict()
        return all(values.get(name) in wanted for name, wanted in self.values.items())


def preset_lines(problem: Problem | None, gpu: GpuSpec | None) -> list[PresetLine]:
    """All presets, for `problem` on `gpu` where both are given."""
    if problem is None or gpu is None:
        return [PresetLine(preset) for preset in PRESETS]
    lines = []
    for preset in PRESETS:
        fault = preset.fault(problem, gpu)
        config = preset.config(problem, gpu) if fault is None else None
        lines.append(PresetLine(preset, config, fault))
    return lines


def print_presets(
    lines: Sequence[PresetLine], problem: Problem | None, console: Console, text: str = ""
) -> None:
    """Names on the left; beside each its sentence, its source and, for a problem, its config.

    `text` is what the names were to have: if no preset is left, a sentence says why.
    """
    if not lines:
        console.print(cell(_no_preset(text)), soft_wrap=not console.is_terminal)
        return
    table = Table([*words("preset"), prose("what it does, where it is from")])
    for line in lines:
        name = Styled(line.preset.name, "dim" if line.fault else "bold")
        table.add(name, "\n".join(_texts(line)))
    print_table(table, console)
    console.print()
    legal = sum(line.config is not None for line in lines)
    told = f"{counted(len(lines), 'preset')}"
    if problem is not None:
        told += f", {legal} of them legal for {problem}"
    cols = 4096 if problem is None else problem.cols
    hint = f"; explorer emit NAME --cols {cols} writes one" if legal or problem is None else ""
    console.print(cell(told + hint))


def _no_preset(text: str) -> str:
    """Say what no preset has: the text in its name or source, or else all that was asked for."""
    every = f"explorer presets lists all {len(PRESETS)}"
    if any(PresetFilter(text).passes(line) for line in preset_lines(None, None)):
        return f"no preset is all that was asked for; {every}"
    near = nearest(text, PRESET_NAMES)
    told = f"no preset has {shown(text)} in its name or in what it is from"
    return f"{told}; {near and f'{near}; '}{every}"


def presets_data(lines: Sequence[PresetLine]) -> list[dict[str, Any]]:
    """name, other_names, sentence, source, reported, ops, dtypes; legal, config and why_not."""
    return [
        {
            "name": line.preset.name,
            "other_names": list(line.preset.other_names),
            "sentence": line.preset.sentence,
            "source": {
                "project": line.preset.source.project,
                "place": line.preset.source.place,
                "revision": line.preset.source.revision or None,
            },
            "reported": line.preset.reported or None,
            "ops": list(line.preset.ops),
            "dtypes": [str(dtype) for dtype in line.preset.dtypes],
            "legal": line.is_legal,
            "config": None if line.config is None else line.config.as_dict(),
            "why_not": line.fault,
        }
        for line in lines
    ]


def _texts(line: PresetLine) -> list[str]:
    preset = line.preset
    texts = [preset.sentence, f"from {preset.source}"]
    if preset.other_names:
        texts.append(f"also {', '.join(preset.other_names)}")
    if preset.reported:
        texts.append(f"reported: {preset.reported}")
    if line.config is not None:
        texts.append(f"here: {brief_words(line.config)}")
    if line.fault is not None:
        texts.append(f"not here: {line.fault}")
    return texts


# ------------------------------------------------------------------ a recording


def recording_sentence(recording: Recording, path: Path) -> str:
    """The file, how many kernels it holds, the best of them."""
    times = measured_us(recording)
    header = recording.header
    kernels = counted(header.kernel_count, "kernel")
    return (
        f"{path}: {header.problem} on {header.gpu.name}, {len(times)} of "
        f"{kernels} measured, the best {microseconds(min(times))} µs, "
        f"copy {microseconds(header.environment.copy_us)} µs"
    )


def print_recordings(files: Sequence[RecordingFile], console: Console) -> None:
    """A line a recording: what it is of, and whether a whole sub-space is in it."""
    table = Table((*words("name", "problem", "GPU"), *numbers("kernels"), prose("chosen", 1)))
    for file in files:
        if file.header is None:
            table.add(file.name, "", "", "", f"cannot be read: {file.damage}")
        else:
            header = file.header
            kernels = str(header.kernel_count)
            sample = header.rule.rpartition("; ")[2]
            chosen = f"a whole sub-space; {sample}" if header.sub_space else header.rule
            table.add(file.name, str(header.problem), header.gpu.name, kernels, chosen)
    print_table(table, console)


def recordings_data(files: Sequence[RecordingFile]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "name": file.name,
            "file": str(file.path),
            **_header_data(file.header),
            "damage": file.damage or None,
        }
        for file in files
    ]


def _header_data(header: RecordingHeader | None) -> dict[str, Any]:
    """What a recording is of; null throughout where it cannot be read."""
    if header is None:
        return dict.fromkeys(("problem", "gpu", "kernels", "chosen", "sub_space"))
    return {
        "problem": str(header.problem),
        "gpu": header.gpu.name,
        "kernels": header.kernel_count,
        "chosen": header.rule,
        "sub_space": header.sub_space,
    }


def measured_us(recording: Recording) -> list[float]:
    """The times of all kernels that were measured, microseconds."""
    outcomes = (kernel.outcome for kernel in recording.kernels)
    return [outcome.time_us for outcome in outcomes if isinstance(outcome, Measured)]
