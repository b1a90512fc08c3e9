"""An emitted file, perhaps edited since: its text says how to launch its kernel."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from explorer.asked import asked_from
from explorer.codegen import Variant, emit, split_source
from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.problem import Problem

_COMMAND = re.compile(r"^//\s+(explorer emit .*)$", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)")
_CONSTANT = re.compile(r"^constexpr int (k\w+) = (\d+);", re.MULTILINE)
_WORD_BYTES = re.compile(r"static_assert\(sizeof\(Word\) == (\d+)")

_GUARD = "__CUDACC_RTC__"


def read_emitted(path: Path) -> ProgramUnderTest:
    """The program in a file that `explorer emit` wrote, with whatever was edited in it.

    Columns, threads, threads a row and vector width are read from its parameters block, which
    must give them as plain numbers; the rest from the `explorer emit` line of its header. Raises
    InvalidInput where the file does not say how it is launched, or where its host part was
    edited: only the kernel is run, so a wrong launch would go unseen.
    """
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise InvalidInput(f"{path} cannot be read ({why})") from None
    problem, config = _from_header(source, path)
    constants = {name: int(value) for name, value in _CONSTANT.findall(source)}
    config = replace(
        config,
        threads=_constant(constants, "kThreads", path),
        threads_per_row=_constant(constants, "kThreadsPerRow", path),
        vector_bytes=_vector_bytes(source, path),
        static_cols="kCols" in constants,
        rows_per_thread=constants.get("kRowsPerThread", config.rows_per_thread),
        unroll=constants.get("kUnroll", config.unroll),
        persistent=constants.get("kBlocksPerSm", config.persistent),
    )
    _check_split(config, problem, path)
    variant = emit(problem, config)
    entry = _entry(source, variant, path)
    _check_host(source, variant, entry, path)
    cols = constants.get("kCols", problem.cols)
    return ProgramUnderTest(source, problem.resized(cols=cols), config, entry, path.name)


def _from_header(source: str, path: Path) -> tuple[Problem, Config]:
    """What the header's last `explorer emit` line names."""
    commands = _COMMAND.findall(source)
    if not commands:
        raise InvalidInput(
            f"{path} has no 'explorer emit' line in its header comment, which says how its kernel "
            "is launched: verify a file that explorer emit wrote, or put the line back"
        )
    words = shlex.split(commands[-1])
    try:
        asked = asked_from(words[3:])
        return replace(asked, rows=asked.rows or 1).problem(), Config.from_json(words[2])
    except (KeyError, IndexError):
        raise InvalidInput(
            f"the 'explorer emit' line of {path} is {commands[-1]!r}; it must name a config as "
            "JSON, --cols and --dtype"
        ) from None


def _constant(constants: dict[str, int], name: str, path: Path) -> int:
    if name not in constants:
        raise InvalidInput(
            f"{path} does not give {name} as a plain number: write 'constexpr int {name} = 256;' "
            "in its parameters block"
        )
    return constants[name]


def _vector_bytes(source: str, path: Path) -> int:
    match = _WORD_BYTES.search(source)
    if match is None:
        raise InvalidInput(
            f"{path} does not say how many bytes an access moves: keep the static_assert on "
            "sizeof(Word) in its parameters block"
        )
    return int(match[1])


def _check_split(config: Config, problem: Problem, path: Path) -> None:
    """What would make the launch meaningless."""
    threads, each, size = config.threads, config.threads_per_row, problem.dtype.itemsize
    if not 1 <= threads <= 1024 or (threads % 32 and threads > 1):
        raise InvalidInput(
            f"{path}: kThreads is {threads}; it must be 1 or a multiple of 32 up to 1024"
        )
    if each < 1 or threads % each:
        raise InvalidInput(
            f"{path}: kThreadsPerRow is {each}; it must divide kThreads, which is {threads}"
        )
    if config.vector_bytes not in (2, 4, 8, 16) or config.vector_bytes < size:
        raise InvalidInput(
            f"{path}: an access moves {config.vector_bytes} bytes; it must be {size} to 16, a "
            "power of two"
        )


def _check_host(source: str, variant: Variant, entry: str, path: Path) -> None:
    """The host part is what templates emit, and nothing else depends on who compiles."""
    emitted = variant.source.replace(variant.launches[0].entry, entry) if entry else variant.source
    same_guards = source.count(_GUARD) == emitted.count(_GUARD)
    if split_source(source)[1] != split_source(emitted)[1] or not same_guards:
        raise InvalidInput(
            f"{path}: its host part, or what {_GUARD} guards, was edited; only the kernel can be "
            "verified, so a wrong launch would go unseen: put that part back as it was emitted"
        )


def _entry(source: str, variant: Variant, path: Path) -> str:
    """The kernel's name, or nothing where several have the names that they were emitted with.

    A kernel's parameters must be those that are passed to it, called as they were emitted.
    """
    kernels, emitted = _kernels(source), _kernels(variant.source)
    if len(kernels) != len(emitted):
        raise InvalidInput(
            f"{path} has {len(kernels)} __global__ functions; its config launches {len(emitted)}"
        )
    for (name, taken), (own_name, passed) in zip(kernels, emitted, strict=True):
        if taken != passed:
            raise InvalidInput(
                f"{path}: {name} takes ({', '.join(taken)}); it must take ({', '.join(passed)})"
            )
        if len(emitted) > 1 and name != own_name:
            raise InvalidInput(f"{path}: kernel {name} must be called {own_name}")
    return kernels[0][0] if len(emitted) == 1 else ""


def _kernels(source: str) -> list[tuple[str, list[str]]]:
    """Names of the `__global__` functions in a text, in order, and those of their parameters."""
    found: list[tuple[str, list[str]]] = []
    for name, parameters in _KERNEL.findall(source):
        parts = [part.split() for part in parameters.split(",")]
        found.append((name, [words[-1].lstrip("*&") for words in parts if words]))
    return found
