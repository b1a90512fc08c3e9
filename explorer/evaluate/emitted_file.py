"""A file that `explorer emit` wrote, perhaps edited since: its head says how to launch it."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from explorer.asked import asked_from
from explorer.codegen import LaunchPlan, emit, split_source
from explorer.config import Config
from explorer.errors import InvalidInput, brief
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.plain_data import shown
from explorer.problem import Problem
from explorer.user_files import read_text

LARGEST_FILE_BYTES = 2**20
"""Bytes of a file that is read; emitted ones have some 30,000."""

_COMMAND = re.compile(r"^//\s+(explorer emit .*)$", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_GUARDED_INCLUDES = re.compile(
    r"^#ifndef __CUDACC_RTC__[^\n]*\n((?:#include[^\n]*\n|\s*\n)*)#endif"
)
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


def read_emitted(path: Path) -> ProgramUnderTest:
    """Return the program in a file that `explorer emit` wrote, with whatever was edited in it.

    The problem and the config are those of the head's `explorer emit` line, with the constants of
    the parameters block in their place; the launches are those of the head's `Launch` lines, or,
    in a file that has none, those of the config. Raises InvalidInput where the file does not say
    how it is launched, or where nvcc would compile other text than what is checked here.
    """
    source = read_text(
        path, most_bytes=LARGEST_FILE_BYTES, remedy="name a file that explorer emit wrote"
    )
    try:
        problem, config = _from_header(source)
        plan = LaunchPlan.read(source) or LaunchPlan.of(problem, config).bound(source)
        config = _as_edited(config, plan)
        config.check_known()
        cols = plan.value("kCols") if config.static_cols else problem.cols
        problem = problem.resized(cols=cols)
        plan = _with_entries_of(source, plan)
        _check_compiled_text(source)
        program = ProgramUnderTest(source, problem, config, plan, path.name)
        program.launches(problem)  # its numbers can be worked out
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {brief(error)}") from None
    return replace(program, host_checked=_has_emitted_host(program))


def _from_header(source: str) -> tuple[Problem, Config]:
    """What the head's last `explorer emit` line names."""
    commands = _COMMAND.findall(source)
    if not commands:
        raise InvalidInput(
            "it has no 'explorer emit' line in its header comment, which says what its kernel "
            "computes: verify a file that explorer emit wrote, or put the line back"
        )
    try:
        words = shlex.split(commands[-1])
        asked = asked_from(words[3:])
        return asked.of_rows(1 if asked.rows is None else asked.rows), Config.from_json(words[2])
    except (KeyError, IndexError, ValueError):
        raise InvalidInput(
            f"the 'explorer emit' line is {commands[-1][:200]!r}; it must name a config as JSON, "
            "--cols and --dtype"
        ) from None


def _as_edited(config: Config, plan: LaunchPlan) -> Config:
    """The config that the constants of a file's parameters block make of its own."""
    changes: dict[str, Any] = {
        parameter: plan.value(constant)
        for constant, parameter in _EDITABLE.items()
        if constant in plan.constants
    }
    missing = {"kThreads", "kThreadsPerRow"} - set(plan.constants)
    if missing:
        raise InvalidInput(
            f"it does not define {min(missing)}: write 'constexpr int {min(missing)} = 256;' in "
            "its parameters block"
        )
    if "sizeof(Word)" not in plan.constants:
        raise InvalidInput(
            "it does not say what one access moves: keep 'using Word = float4;', or another "
            "vector type of CUDA, in its parameters block"
        )
    static = "kCols" in plan.constants
    word = plan.value("sizeof(Word)")
    return replace(config, **changes, vector_bytes=word, static_cols=static)


def _with_entries_of(source: str, plan: LaunchPlan) -> LaunchPlan:
    """The plan, with the name that a file's only kernel has; raises InvalidInput.

    Each kernel that the head launches must be in the file, and take as many arguments.
    """
    kernels = {name: _parameters(text) for name, text in _KERNEL.findall(_code(source))}
    if len(plan.steps) == 1 == len(kernels):
        plan = replace(plan, steps=(replace(plan.steps[0], entry=next(iter(kernels))),))
    for step in plan.steps:
        if step.entry not in kernels:
            raise InvalidInput(
                f"its header launches {step.entry}, which is no __global__ function of it; it has "
                f"{', '.join(kernels) or 'none'}"
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
    device = _GUARDED_INCLUDES.sub(lambda m: " " * len(m[0]), code.lstrip(), count=1)
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


def _has_emitted_host(program: ProgramUnderTest) -> bool:
    """Whether the host part is what this version emits, and launches what the head's lines say."""
    try:
        emitted = emit(program.problem, program.config)
    except InvalidInput:
        return False
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
