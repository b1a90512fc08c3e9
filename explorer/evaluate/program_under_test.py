"""A program to check: source text, how to launch it, what it assumes.

It is a variant as it was emitted, or a file that a person may have edited since.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from explorer.codegen import Launch, LaunchPlan, Variant, emit, split_source
from explorer.evaluate.launch_bounds import (
    check_emulated,
    check_far,
    check_launches,
    check_scratch,
)
from explorer.model.asked import asked_from, needed
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput, brief
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.system.plain_data import shown
from explorer.system.user_files import read_text

# ------------------------------------------------------------------ program


HALF_ULP = 2.0**-24
"""Relative error of one fp32 operation."""

ROUNDINGS_A_TERM = 3
"""Operations on a running sum for each term: an online sum is rescaled as well."""

SPARE_TERMS = 32
"""Terms' worth of rounding in all that is not the sum."""


@dataclass(frozen=True, slots=True)
class ProgramUnderTest:
    """The source of one file's kernels, what they compute, and how they are launched."""

    source: str
    problem: Problem
    """What it was emitted for; its rows do not bind it, its cols do where they are static."""
    config: Config
    plan: LaunchPlan
    file: str = "softmax.cu"
    """What its source is called in findings and in errors of the compiler."""
    run_time_cols: int = 0
    """Cols to check it at, where they are others than those that it was emitted for."""
    host_checked: bool = True
    """Whether its host part is known to launch the kernels as the plan does."""

    is_edited: bool = False
    """Whether its text is another than what this version emits."""
    header_cols: int = 0
    """Cols that its header names, where its text is for others, which count."""

    @classmethod
    def of(cls, variant: Variant) -> "ProgramUnderTest":
        """A variant as it was emitted."""
        plan = LaunchPlan.read(variant.source)
        assert plan is not None, "the templates write a plan into every header"
        return cls(variant.source, variant.problem, variant.config, plan)

    @classmethod
    def of_config(cls, problem: Problem, config: Config) -> "ProgramUnderTest":
        """What a config emits for a problem."""
        return cls.of(emit(problem, config))

    def at_cols(self, cols: int | None) -> "ProgramUnderTest":
        """The same text for other cols; raises InvalidInput where the kernel is not for them."""
        if cols is None or cols == self.problem.cols:
            return self
        self._check_cols(cols)
        return replace(self, run_time_cols=cols)

    @property
    def cols(self) -> int:
        """The columns to check it at."""
        return self.run_time_cols or self.problem.cols

    @property
    def split(self) -> WorkSplit:
        """How it divides the rows of the problem that it was emitted for."""
        return WorkSplit(self.problem, self.config)

    @property
    def any_alignment(self) -> bool:
        """Whether its matrices may begin at any element."""
        return self.split.width == 1 or not self.split.aligned

    @property
    def cols_unit(self) -> int:
        """Its run-time cols are multiples of this."""
        return self.split.row_width if self.split.aligned else 1

    def rounding(self, problem: Problem) -> float:
        """Relative error that fp32 sums in this kernel's order can come to: no defect by itself."""
        if problem.output_dtype is not DType.F32:
            return 0.0
        config = self.config
        terms: float = SPARE_TERMS
        if config.sum == "plain":
            adding = 1 if config.arrangement == "replicated" else config.threads_per_row
            terms += problem.cols / adding
            terms += config.threads_per_row if config.reduction == "shared-serial" else 0
        return ROUNDINGS_A_TERM * terms * HALF_ULP

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        """Its launches for other rows, and other cols where they are chosen at run time.

        Raises InvalidInput for cols that the kernel is not for, and for what CUDA cannot launch.
        """
        self._check_cols(problem.cols)
        with _said_of_header(self.file):
            launched = self.plan.launches(problem.rows, problem.cols)
            check_launches(self.plan, launched, problem)
        return launched

    def scratch_bytes(self, problem: Problem) -> int:
        """Bytes of scratch memory that its launches share; raises InvalidInput."""
        with _said_of_header(self.file):
            size = self.plan.scratch_bytes(problem.rows, problem.cols)
            check_scratch(size, problem)
        return size

    def planned_shared_bytes(self, cols: int) -> int:
        """What its first launch asks for at so many columns, even too much; raises InvalidInput."""
        with _said_of_header(self.file):
            return self.plan.launches(1, cols)[0].shared_bytes

    def check_emulated(self, problem: Problem, *, whole: bool) -> None:
        """Raise InvalidInput where to emulate a problem takes more time or memory than there is.

        Of a problem that is not emulated as a `whole`, a few far rows are.
        """
        launched, size = self.launches(problem), self.scratch_bytes(problem)
        with _said_of_header(self.file):
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
def _said_of_header(file: str) -> Iterator[None]:
    """Say of an InvalidInput which file's header it is about."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"the header of {file}: {brief(error)}") from None


# ------------------------------------------------------------------ file


LARGEST_FILE_BYTES = 2**20
"""Bytes of a file that is read; emitted ones have some 30,000."""

_OVERLAPPED = "--overlapped"
"""What the line has of the launch, which the head's `Launch` lines say too."""

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
"""How an emitted file begins: it counts once in a unit, and each unit has kernels of its own."""

_CONDITION = re.compile(
    r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:el)?if(?!(?:[ \t]+[01][ \t]*$))[^\n]*"
    r"|__has_include|__CUDACC_RTC__|__NVCC__|__GNUC__|__clang__|_MSC_VER|__CUDACC_VER_",
    re.MULTILINE,
)
"""By which the text that NVRTC compiles can be another one than nvcc's: any condition of the
preprocessor but a plain 0 or 1, and macros that name a compiler."""

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*([^\n]*?)[ \t]*$", re.MULTILINE)
_HEADER = re.compile(r"<\w[\w.+-]*(?:/\w[\w.+-]*)*>")
"""A header of the compiler's or of CUDA's, by its name."""

_EDITABLE = {
    "kThreads": "threads",
    "kThreadsPerRow": "threads_per_row",
    "kRowsPerThread": "rows_per_thread",
    "kUnroll": "unroll",
    "kBlocksPerSm": "persistent",
    "kCluster": "cluster",
    "kStages": "stages",
}
"""Constants of the parameters block that a config has a parameter for."""


_MASK_OF_ARGUMENT = {
    "lengths": Mask.LENGTHS,
    "mask": Mask.ADDITIVE,
    "mask_rows": Mask.CAUSAL,
}
"""What only the launches of one mask pass, but for the rows of an additive mask too."""


def read_emitted(path: Path) -> ProgramUnderTest:
    """Return the program in a file that `explorer emit` wrote, with whatever was edited in it.

    The problem and the config are those of the head's `explorer emit` line, with the constants of
    the parameters block in their place; the launches are those of the head's `Launch` lines, or,
    in a file that has none, those of the config. Raises InvalidInput where the file does not say
    how it is launched, or where nvcc would compile other text than what is checked here.
    """
    source = _read_source(path)
    try:
        problem, config = _from_header(source)
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
    program.launches(problem)  # its numbers can be worked out
    program.scratch_bytes(problem)
    emitted = _emitted(problem, config, overlapped=plan.steps[0].overlaps)
    is_edited = emitted is None or emitted.source != source
    has_host = emitted is not None and _has_host_of(program, emitted)
    return replace(program, host_checked=has_host, is_edited=is_edited, header_cols=header_cols)


def _read_source(path: Path) -> str:
    """The text of a file as emit wrote it: an editor's byte order mark and CRLF say nothing."""
    text = read_text(
        path, most_bytes=LARGEST_FILE_BYTES, remedy="name a file that explorer emit wrote"
    )
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _emitted(problem: Problem, config: Config, overlapped: bool = False) -> Variant | None:
    """What this version emits; None for a config that none of its templates knows."""
    try:
        return emit(problem, config, overlapped=overlapped)
    except InvalidInput:
        return None


def _from_header(source: str) -> tuple[Problem, Config]:
    """What the head's last `explorer emit` line names."""
    commands = _COMMAND.findall(source)
    if not commands:
        raise InvalidInput(
            "it has no 'explorer emit' line in its header comment, which says what its kernel "
            "computes: verify a file that explorer emit wrote, or put the line back"
        )
    try:
        words = [word for word in shlex.split(commands[-1]) if word != _OVERLAPPED]
        asked = needed(asked_from(words[3:]))
        return asked.of_rows(1 if asked.rows is None else asked.rows), Config.from_json(words[2])
    except (IndexError, ValueError):
        raise InvalidInput(
            f"the 'explorer emit' line is {commands[-1][:200]!r}; it must name a config as JSON, "
            "--cols and --dtype"
        ) from None


def _check_mask(source: str, problem: Problem, plan: LaunchPlan) -> None:
    """Raise InvalidInput where the launches are for another mask than the head names."""
    passed = {name for step in plan.steps for name in step.arguments}
    if problem.mask is Mask.CAUSAL and not passed & set(_MASK_OF_ARGUMENT):
        return  # its rows may be a constant of the text
    told = next((name for name in _MASK_OF_ARGUMENT if name in passed), None)
    launched = _MASK_OF_ARGUMENT[told] if told else Mask.NONE
    if launched is problem.mask:
        return
    last = list(_COMMAND.finditer(source))[-1]
    line = source.count("\n", 0, last.start(1)) + 1
    passes = f"passes {told}" if told else f"passes none of {', '.join(_MASK_OF_ARGUMENT)}"
    raise InvalidInput(
        f"its 'explorer emit' line, line {line}, is for --mask {problem.mask}, but its Launch line "
        f"{passes}, as for --mask {launched}: write --mask {launched} in line {line}, or mend the "
        "Launch line"
    )


def _as_edited(problem: Problem, config: Config, plan: LaunchPlan) -> Config:
    """The config that the constants of a file's parameters block make of its own.

    A constant that the config's kernel does without, as a kernel of single elements has no `Word`,
    need not be there. Raises InvalidInput where another one is missing.
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
    """The constants that say what a config's kernel does, as far as its text has them."""
    named = {"kThreads", "kThreadsPerRow", "sizeof(Word)"}
    emitted = _emitted(problem, config)
    if emitted is None:  # a config of an earlier version, whose kernels had all of them
        return named
    return named & set(LaunchPlan.of(problem, config).bound(emitted.source).constants)


def _with_entries_of(source: str, plan: LaunchPlan) -> LaunchPlan:
    """The plan, with the name that a file's only kernel has; raises InvalidInput.

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
    """The names of a function's parameters."""
    words = [part.split() for part in text.split(",")]
    return [part[-1].lstrip("*&") for part in words if part]


def _code(source: str) -> str:
    """A source without its comments, as long as before."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def _check_compiled_text(source: str) -> None:
    """Raise InvalidInput where nvcc would compile another kernel than NVRTC does.

    NVRTC is what compiles a kernel here. What nvcc alone sees may be includes at the head and the
    host part behind the last kernel.
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
    found = _CONDITION.search(device)
    if found:
        raise InvalidInput(
            f"{shown(found[0].strip())} stands before the end of its last kernel, so that nvcc may "
            "compile another kernel than the one that is checked: take it out"
        )


def _end_of_kernels(code: str) -> int:
    """Where the body of the last `__global__` function ends."""
    last = list(_KERNEL.finditer(code))
    depth = 0
    start = code.find("{", last[-1].end()) if last else -1
    for place in range(start, len(code)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return len(code)


def _has_host_of(program: ProgramUnderTest, emitted: Variant) -> bool:
    """Whether the host part is that of `emitted`, and launches what the head's lines say."""
    own = emitted.source
    if len(emitted.launches) == 1 == len(program.plan.steps):
        own = own.replace(emitted.launches[0].entry, program.plan.steps[0].entry)
    same_launches = LaunchPlan.read(own) == replace(
        program.plan, constants=LaunchPlan.of(program.problem, program.config).bound(own).constants
    )
    return same_launches and _host_code(own) == _host_code(program.source)


def _host_code(source: str) -> str:
    """The host part without comments, which say nothing to a compiler."""
    return _code(split_source(source)[1])
