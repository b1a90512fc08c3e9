"""A program to check: its source, its launches and its assumptions.

It is an emitted variant, or a file that a person may have edited since.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.units import emit
from explorer.codegen.variant import MAIN_MACRO, Launch, Variant, split_source
from explorer.compile.usual_headers import emulated_text
from explorer.devices.host_check import AS_EMITTED, HostCheck, check_host
from explorer.model.config import Config, brief_words
from explorer.model.errors import InvalidInput, brief
from explorer.model.key_split import WORD_BYTES, KeySplit
from explorer.model.problem import Mask, Problem
from explorer.model.query import needed, query_from_words
from explorer.model.work_split import WorkSplit
from explorer.ptx_emulator import MAX_BLOCK, MAX_GRID, MOST_BYTES
from explorer.reference.inputs import Held
from explorer.reference.layout import Promise
from explorer.system.plain_data import shown
from explorer.system.user_files import read_text

# ------------------------------------------------------------------ program


HALF_ULP = 2.0**-24
"""Relative error of one fp32 operation."""

ROUNDINGS_A_TERM = 3
"""Roundings of a running sum for each term: an online sum is rescaled as well."""

SPARE_TERMS = 32
"""Rounding of everything but the sum, in terms of the sum."""


@dataclass(frozen=True, slots=True)
class ProgramUnderTest:
    """The source of one file's kernels, what they compute, and how they are launched."""

    source: str
    problem: Problem
    """The problem that it was emitted for. It takes other rows, and other cols unless static."""
    config: Config
    plan: LaunchPlan
    file: str = "softmax.cu"
    """Name of its source in findings and in errors of the compiler."""
    run_time_cols: int = 0
    """Cols to check it at; 0 for those that it was emitted for."""
    host: HostCheck = AS_EMITTED
    """What is known of its host part, which is to launch the kernels as the plan does."""
    is_edited: bool = False
    """Whether its kernels, or their launches, differ from what this version emits."""
    has_own_text: bool = False
    """Whether any of its text does."""
    header_cols: int = 0
    """Cols that its header names, if its source is for others, which count; else 0."""
    thorough: bool = False
    """Whether it is to be tried in all that an edited source is, which takes longer."""
    seed: int = 0
    """Of what is drawn: inputs, sizes, and rows far from the first. Another seed draws others."""

    @classmethod
    def of(cls, variant: Variant) -> "ProgramUnderTest":
        """Return the program of an emitted variant."""
        plan = LaunchPlan.read(variant.source)
        assert plan is not None, "the templates write a plan into every header"
        return cls(variant.source, variant.problem, variant.config, plan)

    @classmethod
    def of_config(cls, problem: Problem, config: Config) -> "ProgramUnderTest":
        """Return the program that a config emits for a problem."""
        return cls.of(emit(problem, config))

    def at_cols(self, cols: int | None) -> "ProgramUnderTest":
        """Return the program for other cols; raises InvalidInput if they do not suit the kernel."""
        if cols is None or cols == self.problem.cols:
            return self
        self._check_cols(cols)
        return replace(self, run_time_cols=cols)

    @property
    def cols(self) -> int:
        """The columns to check it at."""
        return self.run_time_cols or self.problem.cols

    @property
    def compiled_source(self) -> str:
        """The text that is compiled; its lines have the numbers of the file's."""
        return self.source

    @property
    def emulated_source(self) -> str:
        """The text that is compiled to be emulated, where a person's calls of printf do nothing."""
        return emulated_text(self.compiled_source) if self.has_own_text else self.compiled_source

    @property
    def variant(self) -> Variant:
        """What is compiled, and its launches, on its problem at the columns to check it at."""
        problem = self.problem.resized(cols=self.cols)
        launched, scratch = self.launches(problem), self.scratch_bytes(problem)
        return Variant(problem, self.config, self.compiled_source, launched, scratch)

    @property
    def is_own(self) -> bool:
        """Whether it is a kernel that a person wrote without this project."""
        return False

    @property
    def told_by(self) -> str:
        """What tells its launches, in words."""
        return f"the header of {self.file}"

    @property
    def words(self) -> str:
        """Its config in words, from which a person may have gone on."""
        return f"{'edited from ' if self.is_edited else ''}{brief_words(self.config)}"

    @property
    def rewrites(self) -> bool:
        """Whether an element of the output may be written more than once."""
        return self.config.rewrites

    @property
    def judged_on(self) -> Held | None:
        """What rows hold that decide whether it is right; None for all that PyTorch computes."""
        return None

    @property
    def is_thorough(self) -> bool:
        """Whether it is tried in every size and row of which others are tried in some."""
        return self.is_edited or self.thorough

    @property
    def split(self) -> WorkSplit:
        """How it divides the rows of its problem among threads."""
        return WorkSplit(self.problem, self.config)

    @property
    def has_bounded_grid(self) -> bool:
        """Whether a grid of many rows has blocks for some alone, as of a person's kernel alone."""
        return False

    @property
    def block_rows(self) -> int:
        """Rows that a block works on at a time, or of attention the blocks that share keys."""
        return self.problem.of_group if self.problem.attends else self.split.block_rows

    @property
    def blocks_together(self) -> int:
        """Blocks that share `block_rows` rows."""
        if self.problem.attends:
            return KeySplit(self.problem, self.config).group_blocks
        return self.config.cluster * self.split.parts

    @property
    def any_alignment(self) -> bool:
        """Whether its matrices may be unaligned."""
        return not self.problem.attends and (self.split.width == 1 or not self.split.aligned)

    @property
    def promise(self) -> Promise | None:
        """What the addresses of its matrices are multiples of, if these are aligned."""
        if self.problem.attends:
            return Promise(WORD_BYTES, WORD_BYTES)
        return Promise(self.config.vector_bytes, self.split.output_word_bytes)

    @property
    def cols_unit(self) -> int:
        """Number of which its run-time cols are multiples."""
        aligned = self.split.aligned and not self.problem.attends
        return self.split.row_width if aligned else 1

    def rounding(self, problem: Problem) -> float:
        """Return the largest relative error of fp32 sums in this order, without a defect.

        Results of 32 bits show it alone: 16 bits are compared with the rounded truth, but for those
        of probabilities that are rounded to 16 bits themselves.
        """
        if problem.dtype.in_double:
            return 0.0
        config = self.config
        if config.probabilities == "one":
            return float(2.0 ** -(problem.dtype.mantissa_bits + 1))
        if problem.attends:
            keys = KeySplit(problem, config)
            return ROUNDINGS_A_TERM * (SPARE_TERMS + problem.cols / keys.block_keys) * HALF_ULP
        terms: float = SPARE_TERMS
        if config.sum == "plain":
            adding = 1 if config.arrangement == "replicated" else config.threads_per_row
            terms += problem.cols / adding
            terms += config.threads_per_row if config.reduction == "shared-serial" else 0
        return ROUNDINGS_A_TERM * terms * HALF_ULP

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        """Return its launches for other rows, and other cols if they are a run-time argument.

        Raises InvalidInput for cols that do not suit the kernel, and for impossible launches.
        """
        self._check_cols(problem.cols)
        with _blaming(self.told_by):
            launched = self.plan.launches(problem.rows, problem.cols)
            check_launches(self.plan, launched, problem)
        return launched

    def scratch_bytes(self, problem: Problem) -> int:
        """Return the bytes of scratch memory that its launches share; raises InvalidInput."""
        with _blaming(self.told_by):
            size = self.plan.scratch_bytes(problem.rows, problem.cols)
            check_scratch(size, problem)
        return size

    def planned_shared_bytes(self, cols: int) -> int:
        """Return its first launch's shared memory at `cols`, unchecked; raises InvalidInput."""
        with _blaming(self.told_by):
            return self.plan.launches(1, cols)[0].shared_bytes

    def check_emulated(self, problem: Problem, *, whole: bool) -> None:
        """Raise InvalidInput if emulating a problem would take too much time or memory.

        If it is not emulated as a `whole`, a few far rows are.
        """
        launched, size = self.launches(problem), self.scratch_bytes(problem)
        with _blaming(self.told_by):
            if whole:
                check_emulated(launched, size, problem)
            else:
                check_far(size, problem)

    def _check_cols(self, cols: int) -> None:
        if cols == self.problem.cols:
            return
        if self.config.static_cols:
            raise InvalidInput(
                f"cols is {cols}; the kernel is for {self.problem.cols} columns only: ask for "
                f"--cols {self.problem.cols}, or take a config with static_cols=false"
            )
        if cols % self.cols_unit:
            raise InvalidInput(
                f"cols is {cols}; the kernel is for multiples of {self.cols_unit} columns"
            )


@contextmanager
def _blaming(teller: str) -> Iterator[None]:
    """Add to an InvalidInput what tells the launches that it is about."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{teller}: {brief(error)}") from None


# ------------------------------------------------------------------ file


LARGEST_FILE_BYTES = 2**20
"""Bytes of the largest file that is read; emitted ones have some 30,000."""

_OF_EMIT_ALONE = {"--overlapped", "--main"}
"""Options of the `explorer emit` line that the file's own text implies."""

_COMMAND = re.compile(r"^//\s+(explorer emit .*)$", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_GUARDED_INCLUDES = re.compile(
    r"^#ifndef __CUDACC_RTC__[^\n]*\n((?:#include[^\n]*\n|\s*\n)*)#endif"
)
_OPENING = re.compile(
    r"\s*#ifndef ([A-Z][A-Z0-9_]*_[0-9A-F]{8})[ ]*\n#define \1[ ]*\n"
    r"#ifdef __CUDACC_RTC__\n#define SOFTMAX_API extern \"C\"[ ]*\n"
    r"#else\n#define SOFTMAX_API static[ ]*\n#endif"
)
"""The include guard of an emitted file, and the linkage of its kernels."""

_CONDITION = re.compile(
    r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:el)?if(?!(?:[ \t]+[01][ \t]*$))[^\n]*"
    r"|__has_include|__CUDACC_RTC__|__NVCC__|__GNUC__|__clang__|_MSC_VER|__CUDACC_VER_",
    re.MULTILINE,
)
"""Conditions by which NVRTC and nvcc can compile different kernels: any condition of the
preprocessor but a plain 0 or 1, and macros that name a compiler."""

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*([^\n]*?)[ \t]*$", re.MULTILINE)
_HEADER = re.compile(r"<\w[\w.+-]*(?:/\w[\w.+-]*)*>")
"""The name of a header of the compiler or of CUDA."""

_EDITABLE = {
    "kThreads": "threads",
    "kThreadsPerRow": "threads_per_row",
    "kRowsPerThread": "rows_per_thread",
    "kUnroll": "unroll",
    "kBlocksPerSm": "persistent",
    "kCluster": "cluster",
    "kStages": "stages",
    "kSplits": "splits",
    "kPartKeys": "part_keys",
    "kHeads": "heads_per_thread",
    "kLanes": "lanes_per_key",
}
"""Constants of the parameters block, with the config's parameter for each."""


_MASK_OF_ARGUMENT = {
    "lengths": Mask.LENGTHS,
    "mask": Mask.ADDITIVE,
    "mask_rows": Mask.CAUSAL,
}
"""Arguments that only launches with one kind of mask pass, but for the rows of an additive one."""


def read_emitted(path: Path) -> ProgramUnderTest:
    """Return the program in a file that `explorer emit` wrote, with all edits.

    The problem and the config are those of the head's `explorer emit` line, changed by the
    constants of the parameters block. The launches are those of the head's `Launch` lines or,
    without any, those of the config. Raises InvalidInput if the file does not define its launches,
    or if nvcc would compile another kernel than is checked here.
    """
    source = read_source(path)
    try:
        problem, config = told = _from_header(source)
        plan = LaunchPlan.read(source) or LaunchPlan.of(problem, config).bound(source)
        _check_mask(source, problem, plan)
        config = _as_edited(problem, config, plan)
        config.check_known()
        cols = plan.value("kCols") if config.static_cols else problem.cols
        header_cols = 0 if cols == problem.cols else problem.cols
        problem = problem.resized(cols=cols)
        plan = _with_entries_of(source, plan)
        _check_compiled_text(source)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {brief(error)}") from None
    program = ProgramUnderTest(source, problem, config, plan, path.name)
    program.launches(problem)  # raises if its formulas cannot be evaluated
    program.scratch_bytes(problem)
    overlapped, main = plan.steps[0].overlaps, MAIN_MACRO in source
    of_header, emitted = (
        _emitted(*one, overlapped=overlapped, main=main) for one in (told, (problem, config))
    )
    if emitted is None:
        host = HostCheck(unknown="this version of explorer does not emit its config")
        known = replace(program, host=host, is_edited=True, has_own_text=True)
    else:
        known = _compared(program, emitted, of_header or emitted)
    return replace(known, header_cols=header_cols)


def read_source(path: Path) -> str:
    """Return the text of a file without an editor's byte order mark and CRLF."""
    text = read_text(path, most_bytes=LARGEST_FILE_BYTES, remedy="name a file with a kernel")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def has_command(source: str) -> bool:
    """Return whether a source names the `explorer emit` that wrote it."""
    return _COMMAND.search(source) is not None


def _emitted(problem: Problem, config: Config, **options: bool) -> Variant | None:
    """Return the variant that this version emits; None for a config that it does not know."""
    try:
        return emit(problem, config, **options)
    except InvalidInput:
        return None


def _from_header(source: str) -> tuple[Problem, Config]:
    """Return the problem and the config of the head's last `explorer emit` line."""
    commands = _COMMAND.findall(source)
    if not commands:
        raise InvalidInput(
            "it has no 'explorer emit' line in its header comment, which says what its kernel "
            "computes: verify a file that explorer emit wrote, or put the line back"
        )
    try:
        words = [word for word in shlex.split(commands[-1]) if word not in _OF_EMIT_ALONE]
        query = needed(query_from_words(words[3:]))
        return query.of_rows(1 if query.rows is None else query.rows), Config.from_json(words[2])
    except InvalidInput:
        raise
    except (IndexError, ValueError):
        raise InvalidInput(
            f"the 'explorer emit' line is {commands[-1][:200]!r}; it must name a config as JSON, "
            "--cols and --dtype"
        ) from None


def _check_mask(source: str, problem: Problem, plan: LaunchPlan) -> None:
    """Raise InvalidInput if the launches are for another mask than the `explorer emit` line."""
    passed = {name for step in plan.steps for name in step.arguments}
    if problem.mask is Mask.CAUSAL and not passed & set(_MASK_OF_ARGUMENT):
        return  # its rows may be a constant of the source
    argument = next((name for name in _MASK_OF_ARGUMENT if name in passed), None)
    launched = _MASK_OF_ARGUMENT[argument] if argument else Mask.NONE
    if launched is problem.mask:
        return
    last = list(_COMMAND.finditer(source))[-1]
    line = source.count("\n", 0, last.start(1)) + 1
    passes = f"passes {argument or 'none of ' + ', '.join(_MASK_OF_ARGUMENT)}"
    raise InvalidInput(
        f"its 'explorer emit' line, line {line}, is for --mask {problem.mask}, but its Launch line "
        f"{passes}, as for --mask {launched}: write --mask {launched} in line {line}, or mend the "
        "Launch line"
    )


def _as_edited(problem: Problem, config: Config, plan: LaunchPlan) -> Config:
    """Return the config changed by the constants of a file's parameters block.

    A constant that the config's kernel does not need may be missing: a kernel of single elements
    has no `Word`. Raises InvalidInput if a needed one is missing.
    """
    changes: dict[str, Any] = {
        parameter: plan.value(constant)
        for constant, parameter in _EDITABLE.items()
        if constant in plan.constants
    }
    lost = _needed(problem, config) - set(plan.constants)
    missing = lost - {"sizeof(Word)"}
    if missing:
        raise InvalidInput(
            f"it does not define {min(missing)}: write 'constexpr int {min(missing)} = 256;' in "
            "its parameters block"
        )
    if lost:
        raise InvalidInput(
            "it does not say what one access moves: keep 'using Word = float4;', or another "
            "vector type of CUDA, in its parameters block"
        )
    static = "kCols" in plan.constants
    if "sizeof(Word)" in plan.constants:
        changes["vector_bytes"] = plan.value("sizeof(Word)")
    return replace(config, **changes, static_cols=static)


def _needed(problem: Problem, config: Config) -> set[str]:
    """Return the constants that a config's source must define."""
    candidates = {"kThreads", "kThreadsPerRow", "sizeof(Word)"}
    emitted = _emitted(problem, config)
    if emitted is None:  # a config of an earlier version, whose kernels had all of them
        return candidates
    return candidates & set(LaunchPlan.of(problem, config).bound(emitted.source).constants)


def _with_entries_of(source: str, plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with the name of a file's only kernel; raises InvalidInput.

    Each kernel that the head launches must be in the file, and take as many arguments.
    """
    kernels = {name: _parameters(text) for name, text in _KERNEL.findall(_code(source))}
    if not kernels:
        raise InvalidInput(
            f"it has no __global__ function, and its header says that {plan.steps[0].entry} is "
            "launched; is the file complete?"
        )
    if len(plan.steps) == 1 == len(kernels):
        plan = replace(plan, steps=(replace(plan.steps[0], entry=next(iter(kernels))),))
    for step in plan.steps:
        if step.entry not in kernels:
            raise InvalidInput(
                f"its header launches {step.entry}, which is no __global__ function of it; it has "
                f"{', '.join(kernels)}"
            )
        taken = kernels[step.entry]
        if len(taken) != len(step.arguments):
            raise InvalidInput(
                f"{step.entry} takes ({', '.join(taken)}); its header passes "
                f"({', '.join(step.arguments)})"
            )
    return plan


def _parameters(text: str) -> list[str]:
    """Return the names of a function's parameters."""
    words = [part.split() for part in text.split(",")]
    return [part[-1].lstrip("*&") for part in words if part]


def _code(source: str) -> str:
    """Return a source with blanks in place of its comments."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def _check_compiled_text(source: str) -> None:
    """Raise InvalidInput if nvcc could compile another kernel than NVRTC, which compiles it here.

    Only the includes at the head, and the host part after the last kernel, may be for nvcc alone.
    """
    code = _code(source)
    device = _OPENING.sub("", code, count=1) if _OPENING.match(code) else code
    device = _GUARDED_INCLUDES.sub(lambda m: " " * len(m[0]), device.lstrip(), count=1)
    device = re.sub(r"\\[ \t]*\n", "", device[: _end_of_kernels(device)])
    for name in _INCLUDE.findall(device):
        if not _HEADER.fullmatch(name):
            raise InvalidInput(
                f"it includes {shown(name)}, which is no header of CUDA's: put its text into the "
                "file, so that what is checked is all in one place"
            )
    condition = _CONDITION.search(device)
    if condition:
        raise InvalidInput(
            f"{shown(condition[0].strip())} stands before the end of its last kernel, so that nvcc "
            "may compile another kernel than the one that is checked: take it out"
        )


def _end_of_kernels(code: str) -> int:
    """Return the place at which the body of the last `__global__` function ends."""
    last = list(_KERNEL.finditer(code))
    depth = 0
    start = code.find("{", last[-1].end()) if last else -1
    for place in range(start, len(code)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return len(code)


def _compared(program: ProgramUnderTest, emitted: Variant, of_header: Variant) -> ProgramUnderTest:
    """Return a program with what of its text is not that of `emitted`, and its host part judged.

    A file whose constants a person has changed keeps the names of the variant `of_header`.
    """
    own, source = emitted.source, program.source
    if len(emitted.launches) == 1 == len(program.plan.steps):
        own = own.replace(emitted.launches[0].entry, program.plan.steps[0].entry)
    same_launches = LaunchPlan.read(own) == replace(
        program.plan, constants=LaunchPlan.of(program.problem, program.config).bound(own).constants
    )
    (own_kernels, own_host), (kernels, host) = (map(_code, split_source(s)) for s in (own, source))
    check, plan = AS_EMITTED, program.plan
    if not same_launches or own_host != host:
        frames = (own_host, _code(split_source(of_header.source)[1]))
        check = check_host(_code(source), _code(emitted.source), frames, program.split, plan)
    if check.surplus:
        blocks = f"{plan.numbers['blocks']} + {check.surplus}"
        plan = replace(plan, numbers={**plan.numbers, "blocks": blocks})
    is_edited = not same_launches or own_kernels != kernels or bool(check.unknown or check.surplus)
    has_own_text = emitted.source != source
    return replace(program, plan=plan, host=check, is_edited=is_edited, has_own_text=has_own_text)


# ------------------------------------------------------------------ limits of launches

MOST_CLUSTER_BLOCKS = 16
"""Most blocks of a cluster, if the host opts in; 8 otherwise."""

MOST_SHARED_BYTES = 227 * 1024
"""Most shared memory of a block on any GPU.

Both limits are from the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability".
"""

EMULATED_BLOCKS = 2**22
"""Most blocks that are emulated: one for each element of the largest problem."""

EMULATED_SCRATCH_BYTES = 2**30
"""Most scratch memory that is allocated; kernels of 2^22 elements take a twentieth of it."""

EMULATED_SCRATCH_BYTES_A_ROW = 2**26
"""Most scratch memory that is allocated for each of the far rows."""


def check_launches(plan: LaunchPlan, launched: Sequence[Launch], problem: Problem) -> None:
    """Raise InvalidInput for launches of a problem that are impossible on every GPU.

    The grid of persistent blocks has no limit, because it is cut to the GPU's size.
    """
    sizes = {"rows": problem.rows, "cols": problem.cols}
    cluster = plan.value(plan.numbers["cluster"], sizes) if "cluster" in plan.numbers else 1
    _check("cluster", cluster, (1, MOST_CLUSTER_BLOCKS), "blocks of a cluster", problem)
    for step in launched:
        _check("blocks_per_sm", step.blocks_per_sm, (0, None), "blocks on an SM", problem)
        most = None if step.blocks_per_sm else MAX_GRID[0]
        _check("blocks", step.grid, (1, most), "blocks of a grid", problem)
        _check("the block", step.block, (1, MAX_BLOCK[0]), "threads of a block", problem)
        shared = (0, MOST_SHARED_BYTES)
        _check("shared", step.shared_bytes, shared, "bytes of shared memory a block", problem)


def check_scratch(scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput for scratch memory that is larger than any GPU's memory."""
    _check("scratch", scratch_bytes, (0, MOST_BYTES), "bytes", problem, emulated=True)


def check_emulated(launched: Sequence[Launch], scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput if emulating all blocks would take too much time or memory."""
    most = max(step.grid for step in launched)
    _check("blocks", most, (1, EMULATED_BLOCKS), "blocks", problem, emulated=True)
    scratch = (0, EMULATED_SCRATCH_BYTES)
    _check("scratch", scratch_bytes, scratch, "bytes", problem, emulated=True)


def check_far(scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput if emulating a few far rows would take too much memory."""
    most = EMULATED_SCRATCH_BYTES_A_ROW * problem.rows
    _check("scratch", scratch_bytes, (0, most), "bytes", problem, emulated=True)


def _check(
    name: str,
    value: int,
    bounds: tuple[int, int | None],
    what: str,
    problem: Problem,
    *,
    emulated: bool = False,
) -> None:
    least, most = bounds
    if least <= value and (most is None or value <= most):
        return
    extent = f"{least} to {most}" if most is not None else f"{least} or more"
    limit = f"the emulator takes {extent} {what}" if emulated else f"CUDA allows {extent} {what}"
    instead = ""
    if emulated:
        instead = ", ask for fewer --rows, or verify it on a GPU"
    elif name == "shared" and value > 0:
        instead = ", or ask for fewer --cols"
    raise InvalidInput(
        f"{name} is {value} at rows = {problem.rows}, cols = {problem.cols}; {limit}: mend that"
        f"{instead}"
    )
