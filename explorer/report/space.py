"""What `explorer space` and `explorer presets` print."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from explorer.model.config import DRAWN_MIN_BLOCKS, MEANING, Config, Value, brief_words, refuted
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.model.query import command, command_of
from explorer.ops import Op
from explorer.presets.ladder import RUNGS
from explorer.presets.preset import Preset
from explorer.presets.published import PRESET_NAMES, PRESETS, unpublished
from explorer.report.records import Tabular
from explorer.report.table import Field, Kind, Table, data_of, print_table, table_of
from explorer.report.text import count, counted, percent, problem_data
from explorer.space import Space, rules_of
from explorer.space.rules import Rule
from explorer.space.space import Count
from explorer.system.plain_data import nearest, shown

# --------------------------------------------- parameters, their values, and what the rules exclude


@dataclass(frozen=True, slots=True)
class SpaceView(Tabular):
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

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"SpaceView({self.space.problem}: {len(self.parameters)} parameters)"

    def to_dict(self) -> dict[str, Any]:
        """Return what `explorer space --json` prints."""
        return space_data(self)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each value of each parameter."""
        return parameter_rows(self.shown_parameters)

    def tables(self) -> list[Table]:
        """Return the parameters, and the rules."""
        return [table_of(PARAMETER, self.shown_parameters), table_of(RULE, self.rules)]

    @property
    def parameters(self) -> dict[str, tuple[Value, ...]]:
        """Those that are shown, with their values."""
        every = self.space.parameters
        return {name: every[name] for name in every if not self.names or name in self.names}

    @property
    def shown_parameters(self) -> list["Parameter"]:
        """Those that are shown, with their values and what a search leaves out of them."""
        alone = refuted(self.space.problem.operator)
        return [(name, values, alone.get(name, ())) for name, values in self.parameters.items()]

    @property
    def rules(self) -> list[tuple[Rule, float]]:
        """Those that read a parameter that is shown, each with the share that it excludes."""
        shown = [
            rule
            for rule in rules_of(self.space.problem)
            if not self.names or {*rule.reads} & {*self.names}
        ]
        return [(rule, self.space.excluded_share(rule)) for rule in shown]

    @property
    def searched_count(self) -> Count:
        """Return how many legal points a search draws from."""
        return Space.searched(self.space.problem, self.space.gpu, self.fixed).legal_count()


Parameter = tuple[str, tuple[Value, ...], tuple[Value, ...]]
"""The name of a parameter, its values, and those that a search leaves out."""

PARAMETER: tuple[Field[Parameter], ...] = (
    Field("name", lambda p: p[0], "parameter", kind=Kind.WORD),
    Field("values", lambda p: list(p[1]), "values", cell=lambda p: _values(p), kind=Kind.PROSE),
    Field("not_searched", lambda p: list(p[2])),
    Field("meaning", lambda p: MEANING[p[0]], "meaning", kind=Kind.PROSE),
)
"""What is known of each parameter; `not_searched` are the values that a search leaves out."""

RULE: tuple[Field[tuple[Rule, float]], ...] = (
    Field("", lambda r: r[1], "excluded", percent),
    Field("name", lambda r: r[0].name, "rule", kind=Kind.WORD),
    Field("sentence", lambda r: r[0].sentence, "what a legal config satisfies", kind=Kind.PROSE),
    Field("excluded_share", lambda r: r[1]),
)
"""What is known of each rule, and of what it excludes by itself."""


def _values(parameter: Parameter) -> str:
    """Return the values with those in parentheses that a search leaves out; `1 to 32` for many."""
    name, values, alone = parameter
    if name == "min_blocks" and len(values) > len(DRAWN_MIN_BLOCKS):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(f"({value})" if value in alone else str(value) for value in values)


def space_data(view: SpaceView) -> dict[str, Any]:
    """Return problem, gpu, arch, parameters with values and meaning, counts, rules.

    `searched` counts what a search draws from. An error is half of the 95 % interval of an
    estimate, as a share of it; 0 if the count is exact.
    """
    space, searched = view.space, view.searched_count
    legal = space.legal_count()
    return {
        "problem": problem_data(space.problem),
        "gpu": space.gpu.name,
        "arch": space.gpu.arch,
        "parameters": [data_of(PARAMETER, one) for one in view.shown_parameters],
        "points": space.point_count,
        "legal": legal.number,
        "legal_error": legal.error,
        "searched": searched.number,
        "searched_error": searched.error,
        "rules": [data_of(RULE, one) for one in view.rules],
    }


def parameter_rows(parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Return a row for each value of each parameter of a space."""
    return [
        {
            "parameter": name,
            "value": str(value),
            "searched": value not in alone,
            "meaning": MEANING[name],
        }
        for name, values, alone in parameters
        for value in values
    ]


def _counted(of: Count) -> str:
    """Return a number, or an estimate of it to two digits with its 95 % interval."""
    if not of.error:
        return count(of.number)
    digits = max(0, len(str(of.number)) - 2)
    return f"about {count(round(of.number, -digits))} (± {percent(of.error)})"


def _share(part: int, whole: int) -> str:
    """Return a share in per cent, which is not called 0 if it is only small."""
    share = part / whole
    return percent(share) if share >= 0.001 or not part else "less than 0.1 %"


def print_space(view: SpaceView, console: Console) -> None:
    """Print the parameters with values and meaning, the counts, and each rule with its sentence."""
    space = view.space
    where = view.where or f"on {space.gpu.name} ({space.gpu.arch})"
    console.print(f"{space.problem} {where}", style="bold")
    console.print()
    print_table(table_of(PARAMETER, view.shown_parameters), console)
    console.print()
    legal, points = space.legal_count(), space.point_count
    share = _share(legal.number, points)
    attends = space.problem.attends
    why = "which first forms have" if attends else "which lost wherever they were measured"
    console.print(
        f"{count(points)} points, {_counted(legal)} of them legal ({share}); many emit the same "
        f"code. A search draws from {_counted(view.searched_count)} of them: those without the "
        f"values in parentheses, {why}, and without most values of "
        "min_blocks. A preset, or a config of yours, may have them."
    )
    if rules := view.rules:
        print_table(table_of(RULE, rules, "Rules: what each excludes by itself", keys=2), console)


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
    """Words, each in a name, in what it does, its idea or its author's name, in either case."""
    op: Op | None = None
    dtype: DType | None = None
    values: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """What its config for the problem may have of a parameter."""
    only_legal: bool = False

    def passes(self, line: PresetLine) -> bool:
        """Return whether a preset is wanted."""
        preset, config = line.preset, line.config
        ideas = (rung.idea for rung in RUNGS if rung.preset == preset.name)
        author = preset.source.project.partition(",")[0]  # before a title and an address
        said = [preset.name, *preset.other_names, preset.sentence, author, *ideas]
        is_said = all(word in " ".join(said).lower() for word in self.text.lower().split())
        if not is_said or (self.only_legal and config is None):
            return False
        if self.op not in (None, *preset.ops) or self.dtype not in (None, *preset.dtypes):
            return False
        values = {} if config is None else config.as_dict()
        return all(values.get(name) in wanted for name, wanted in self.values.items())


def preset_lines(problem: Problem | None, gpu: GpuSpec | None) -> list[PresetLine]:
    """Return all presets; where both are given, those of the operator for `problem` on `gpu`."""
    if problem is None or gpu is None:
        return [PresetLine(preset) for preset in PRESETS]
    lines = []
    for preset in (preset for preset in PRESETS if problem.op in preset.ops):
        fault = preset.fault(problem, gpu)
        config = preset.config(problem, gpu) if fault is None else None
        lines.append(PresetLine(preset, config, fault))
    return lines


def print_presets(
    lines: Sequence[PresetLine],
    problem: Problem | None,
    console: Console,
    wanted: PresetFilter | None = None,
) -> None:
    """Print each name, beside it its sentence, its source and, for a problem, its config.

    If none of what is wanted is left, or none computes the op, a sentence says why.
    """
    wanted = wanted or PresetFilter()
    op = wanted.op if problem is None else problem.op
    told = unpublished(op) if op else ""
    if told or not lines:
        console.print(told or _no_preset(wanted.text), soft_wrap=not console.is_terminal)
        return
    print_table(table_of(PRESET, lines), console)
    console.print()
    legal = sum(line.config is not None for line in lines)
    told = f"{counted(len(lines), 'preset')}"
    if problem is not None:
        told += f", {legal} of them legal for {problem}"
    usual = command("emit", "NAME", "--cols", "4096", *(["--op", op] if op else []))
    emits = command_of("emit", "NAME", problem) if problem else usual
    console.print(f"{told}; {emits} writes one" if legal or problem is None else told)


def _no_preset(text: str) -> str:
    """Say what no preset has: the text in what is said of it, or else all that was asked for."""
    every = f"explorer presets lists all {len(PRESETS)}"
    if any(PresetFilter(text).passes(line) for line in preset_lines(None, None)):
        return f"no preset is all that was asked for; {every}"
    near = nearest(text, PRESET_NAMES)
    told = f"no preset has {shown(text)} in its name, in what it does or in what it is from"
    return f"{told}; {near and f'{near}; '}{every}"


PRESET: tuple[Field[PresetLine], ...] = (
    Field(
        "name",
        lambda p: p.preset.name,
        "preset",
        cell=lambda p: Text(p.preset.name, "dim" if p.fault else "bold"),
        kind=Kind.WORD,
    ),
    Field("other_names", lambda p: list(p.preset.other_names)),
    Field("sentence", lambda p: p.preset.sentence),
    Field(
        "source",
        lambda p: {**asdict(p.preset.source), "revision": p.preset.source.revision or None},
    ),
    Field("reported", lambda p: p.preset.reported or None),
    Field("ops", lambda p: list(p.preset.ops)),
    Field("dtypes", lambda p: [str(dtype) for dtype in p.preset.dtypes]),
    Field("legal", lambda p: p.is_legal),
    Field("config", lambda p: None if p.config is None else p.config.as_dict()),
    Field("why_not", lambda p: p.fault),
    Field("", lambda p: "\n".join(_texts(p)), "what it does, where it is from", kind=Kind.PROSE),
)
"""What is known of each preset."""


def preset_rows(lines: Sequence[PresetLine]) -> list[dict[str, Any]]:
    """Return a row a published kernel, with columns for its config."""
    return [{**(row := data_of(PRESET, line)), "config": row["config"] or {}} for line in lines]


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
