"""Recordings: kernels that were measured on a GPU, their file format, and the folders of files."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput, NotFound
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec
from explorer.model.outcome import Environment, Measured, Outcome, Rejected
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery, command
from explorer.system.plain_data import (
    parse_json,
    read_fields,
    read_object,
    read_text,
    read_whole,
    shown,
)
from explorer.system.user_files import (
    is_there,
    open_regular,
    shipped_folder,
    studies_folder,
    write_file,
)

# ------------------------------------------------------------------ recording


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """A kernel's config, the digest of its code, and its outcome."""

    config: Config
    digest: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RecordedComparison:
    """The best kernels timed in turn, the very best entered a second time; microseconds."""

    digests: tuple[str, ...]
    samples_us: tuple[tuple[float, ...], ...]
    again_us: tuple[float, ...]
    """The first contender's second entry."""
    limit_us: tuple[float, ...]
    date: str = ""
    """UTC, where they were compared later than they were measured one by one."""


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """The problem of a recording, its GPU and environment, and how its configs were chosen."""

    problem: Problem
    gpu: GpuSpec
    environment: Environment
    rule: str
    """How the configs were chosen, in words."""
    kernel_count: int
    sub_space: dict[str, tuple[str | int | bool, ...]] = field(default_factory=dict)
    """The values of each parameter that span the sub-space of which every legal config was
    measured, one of each emitted code; empty if there is no such sub-space. A parameter that is
    left out has all its values."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A header, its kernels (one a digest) and the comparison of the best."""

    name: str
    header: RecordingHeader
    kernels: tuple[RecordedKernel, ...]
    comparison: RecordedComparison | None = None


# ------------------------------------------------------------------ unpacking


MAX_UNPACKED_BYTES = 128 * 2**20
"""Most bytes that a file may unpack to: 150,000 kernels. A shipped recording of 1700 has 1.5 MB."""

MAX_LINE_BYTES = 2**20
"""Largest line. A comparison of 400 kernels takes 150 kB, a kernel 1 kB and its compiler's log."""


class DamagedFile(Exception):  # the reader of a recording adds the file's name
    """Raised for no gzip file, or one that ends early, is too large or has a wrong check sum."""


def unpacked_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a gzip file without their ends, with one at a time in memory.

    The check sum is compared after the last line, so a caller that takes all lines knows that the
    file is whole. Raises DamagedFile.
    """
    unpacked = 0
    try:
        with gzip.GzipFile(fileobj=file) as lines:
            while line := lines.readline(MAX_LINE_BYTES + 1):
                unpacked += len(line)
                if unpacked > MAX_UNPACKED_BYTES:
                    raise DamagedFile(f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes")
                if len(line) > MAX_LINE_BYTES:
                    raise DamagedFile(f"a line has more than {MAX_LINE_BYTES} bytes")
                yield line.removesuffix(b"\n")
    except EOFError:
        raise DamagedFile("it ends early") from None
    except gzip.BadGzipFile as error:
        raise DamagedFile(f"it is no whole gzip file ({error})") from None
    except zlib.error as error:
        raise DamagedFile(f"its compressed data are damaged ({error})") from None


# ------------------------------------------------------------------ the file
# The file is gzip over JSON lines: a header, a line for each kernel and, if the best kernels were
# compared, a line for that comparison.


FORMAT = "softmax-explorer recording"
FORMAT_VERSION = 1
SUFFIX = ".json.gz"

MAX_PACKED_BYTES = 32 * 2**20
"""Largest file that is read. A shipped recording of 1700 kernels has 0.14 MB."""

_REMEDY = "fetch it again, make it again with explorer record, or remove it"

Values = dict[str, Any]
"""The JSON object of a line."""


class NewerFormat(InvalidInput):
    """A recording that a later version of this program wrote."""


def write_recording(recording: Recording, path: Path) -> None:
    """Write atomically: `path` is the whole recording or what it was before."""
    lines = [_header_line(recording.header), *map(_kernel_line, recording.kernels)]
    if recording.comparison is not None:
        lines.append({"comparison": asdict(recording.comparison)})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    write_file(
        path, gzip.compress(text.encode(), compresslevel=9, mtime=0), "name another --output"
    )


def read_recording(path: Path) -> Recording:
    """Read a whole recording; raises InvalidInput for a truncated, damaged or foreign file."""
    with _lines(path) as lines:
        header = _header(lines)
        kernels, comparison = _kernels(lines, header.kernel_count)
        if comparison is not None:
            _check_comparison(comparison, kernels)
    return Recording(recording_name(path), header, tuple(kernels), comparison)


def read_header(path: Path) -> RecordingHeader:
    """Read the header of a recording alone; raises InvalidInput."""
    with _lines(path) as lines:
        return _header(lines)


def recording_name(path: Path) -> str:
    """Return the file's name without its suffix."""
    return path.name.removesuffix(SUFFIX)


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[Values]]:
    """Open a recording, and give the values of its lines; errors name its path and a remedy.

    Raises NotFound if there is no such file, and InvalidInput for one that cannot be read.
    """
    if not is_there(path):
        raise NotFound(f"recording {path} does not exist; explorer doctor lists those there are")
    with open_regular(path, most_bytes=MAX_PACKED_BYTES, remedy=_REMEDY) as file:
        try:
            yield map(_values, unpacked_lines(file))
        except NewerFormat as error:
            raise NewerFormat(f"recording {path} {error}") from None
        except (DamagedFile, InvalidInput) as error:
            raise InvalidInput(
                f"recording {path} is damaged or no recording: {error}; {_REMEDY}"
            ) from None


def _values(line: bytes) -> Values:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InvalidInput("a line is not text in UTF-8") from None
    return read_object(parse_json(text, "a line", of="line"), "a line")


def _header_line(header: RecordingHeader) -> dict[str, Any]:
    plain = {**asdict(header), "problem": header.problem.as_dict()}
    plain["circumstances"] = plain.pop("environment")
    return {"format": FORMAT, "version": FORMAT_VERSION, **plain}


def _header(lines: Iterator[Values]) -> RecordingHeader:
    line = next(lines, {})
    if line.get("format") != FORMAT:
        raise InvalidInput(f"its format is {shown(line.get('format'))}; it must be '{FORMAT}'")
    version = read_whole(line.get("version"), "version", 1)
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"has format {version}, and this explorer reads up to {FORMAT_VERSION}; update "
            "softmax-explorer"
        )
    return RecordingHeader(
        problem=Problem.from_dict(line.get("problem")),
        gpu=GpuSpec.from_dict(line.get("gpu")),
        environment=Environment.from_dict(line.get("circumstances")),
        rule=read_text(line.get("rule"), "rule"),
        kernel_count=read_whole(line.get("kernel_count"), "kernel_count"),
        sub_space=_sub_space(line.get("sub_space", {})),
    )


def _sub_space(value: Any) -> dict[str, tuple[str | int | bool, ...]]:
    """Read the values of each parameter; older recordings have no sub-space."""
    listed, parameters = read_object(value, "sub_space"), Config().as_dict()
    for name, values in listed.items():
        plain = isinstance(values, list) and all(isinstance(v, str | int) for v in values)
        if name not in parameters or not plain:
            raise InvalidInput(f"sub_space has {shown(name)}, which names no values of a parameter")
    return {name: tuple(values) for name, values in listed.items()}


def _kernel_line(kernel: RecordedKernel) -> dict[str, Any]:
    line = {"config": kernel.config.as_dict(), "digest": kernel.digest}
    outcome = kernel.outcome
    if isinstance(outcome, Rejected):
        return {**line, "stage": outcome.stage, "reason": outcome.reason}
    return {
        **line,
        "samples_us": [round(sample, 4) for sample in outcome.samples_us],
        "error": outcome.error,
        "max_ulp": outcome.max_ulp,
        "mean_ulp": outcome.mean_ulp,
        "resources": asdict(outcome.resources),
    }


def _kernels(
    lines: Iterator[Values], count: int
) -> tuple[list[RecordedKernel], RecordedComparison | None]:
    """Read the lines after the header: `count` different kernels, and perhaps a comparison."""
    kernels: list[RecordedKernel] = []
    seen: set[Config | str] = set()
    for number, line in enumerate(lines, 1):
        if "comparison" in line and number > count:
            comparison = read_fields(RecordedComparison, line["comparison"], "comparison")
            if next(lines, None) is not None:
                raise InvalidInput("something follows its comparison")
            return kernels, comparison
        if number > count:
            raise InvalidInput(f"it has more than the {count} kernels that its header tells of")
        kernel = _kernel(line, number)
        if not seen.isdisjoint((kernel.config, kernel.digest)):
            raise InvalidInput(f"kernel {number} has the config or the digest of an earlier one")
        seen |= {kernel.config, kernel.digest}
        kernels.append(kernel)
    if len(kernels) != count:
        raise InvalidInput(f"{len(kernels)} of {count} kernels")
    return kernels, None


def _kernel(line: Values, number: int) -> RecordedKernel:
    """Read a kernel; errors name its number, from 1."""
    outcome: Outcome
    try:
        config = Config.from_dict(line.get("config"))
        digest = read_text(line.get("digest"), "digest")
        outcome = Rejected.from_dict(line) if "stage" in line else Measured.from_dict(line)
    except InvalidInput as error:
        raise InvalidInput(f"kernel {number}: {error}") from None
    return RecordedKernel(config, digest, outcome)


def _check_comparison(comparison: RecordedComparison, kernels: list[RecordedKernel]) -> None:
    """Raise InvalidInput unless a comparison has a row for each of some measured kernels."""
    measured = {kernel.digest for kernel in kernels if isinstance(kernel.outcome, Measured)}
    foreign = [digest for digest in comparison.digests if digest not in measured]
    if foreign:
        raise InvalidInput(f"its comparison has {shown(foreign[0])}, which no kernel measured has")
    names, rows = len(set(comparison.digests)), (*comparison.samples_us, comparison.again_us)
    if not names or len(comparison.digests) != names or len(rows) != names + 1:
        raise InvalidInput(
            f"its comparison has {len(comparison.digests)} digests, {names} of them distinct, and "
            f"{len(rows) - 1} rows; each kernel has one row"
        )
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise InvalidInput("the rows of its comparison differ in their number of samples")


# ------------------------------------------------------------------ search for a recording


_RECORD = "record one on a GPU with explorer record"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """The file of a recording, with its header, or with a sentence on its damage."""

    name: str
    path: Path
    header: RecordingHeader | None
    damage: str = ""


def recording_dirs() -> list[Path]:
    """Return the folders of recordings, the user's before the shipped one."""
    candidates = [shipped_folder("recorded", "studies/recorded")]
    with suppress(FileNotFoundError):  # the current folder is gone
        candidates.insert(0, (studies_folder() / "recorded").absolute())
    return [path for path in dict.fromkeys(candidates) if path.is_dir()]


def local_path(
    problem: Problem, gpu: GpuSpec, timing: str, accuracy: Accuracy = Accuracy.DEFAULT
) -> Path:
    """Return the path of a new recording, such as studies/recorded/h200-f32-4096.json.gz.

    The name includes what differs from a problem's defaults, a timing that is not cold, and an
    accuracy that is not the default.
    """
    short = gpu.name.removeprefix("NVIDIA ").removeprefix("Tesla ").lower().replace(" ", "-")
    usual = problem == ProblemQuery(problem.cols, problem.dtype).problem()
    what = f"{problem.dtype} {problem.cols}" if usual else str(problem)
    words = re.sub(r"[^a-z0-9.]+", "-", what.removeprefix("softmax "))
    parts = [short, words, *([] if timing == "cold" else [timing])]
    parts += [] if accuracy is Accuracy.DEFAULT else [str(accuracy)]
    return own_file("-".join(parts))


def own_file(name: str) -> Path:
    """Return the path of a recording of that name in the user's studies, existing or not."""
    return studies_folder() / "recorded" / f"{name}{SUFFIX}"


def list_recordings() -> list[RecordingFile]:
    """Return all recordings, by name; a name in an earlier folder hides it in later ones."""
    paths: dict[str, Path] = {}
    for folder in recording_dirs():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            paths.setdefault(recording_name(path), path)
    return [_look_at(path) for _, path in sorted(paths.items())]


def load_recording(name: str) -> Recording:
    """Return the recording called `name`, or at that path; raises NotFound, InvalidInput."""
    places = [Path(name)] if name.endswith(SUFFIX) else []
    for path in [*places, *(folder / f"{name}{SUFFIX}" for folder in recording_dirs())]:
        if is_there(path):
            return read_recording(path)
    there_are = ", ".join(file.name for file in list_recordings()) or "none"
    raise NotFound(f"recording '{name}' does not exist; there are: {there_are}; or {_RECORD}")


def find_recording(query: ProblemQuery, tell: Callable[[str], None] = lambda _: None) -> Recording:
    """Return the latest recording of a problem; raises NotFound, InvalidInput.

    One in the user's folder is preferred to those that are shipped, and among these one of
    DEFAULT_GPU to those of other GPUs, so that all that is shown without a GPU is of the same one.
    `tell` gets a sentence for each damaged recording that was skipped. If every match is damaged,
    the damage is raised.
    """
    files = list_recordings()
    damage = [file.damage for file in files if file.damage]
    matching = [file for file in files if file.header and query.matches(file.header.problem)]
    for file in sorted(matching, key=_rank, reverse=True):
        try:
            recording = read_recording(file.path)
        except ExplorerError as error:
            damage.insert(0, str(error))
            continue
        for sentence in damage:
            tell(f"passed over: {sentence}")
        return recording
    if damage:
        raise InvalidInput(f"no recording of {query} can be read: {damage[0]}")
    raise NotFound(
        f"no recording of {query}; {_others(query.problem(), files)}; {_RECORD}, or take a kernel "
        f"that needs neither: {query.without_search}"
    )


def _others(problem: Problem, files: list[RecordingFile]) -> str:
    """Say which problems of as many columns were recorded, or else the names of the op's files."""
    there = {f.name: f.header.problem for f in files if f.header}
    of_op = {name: one for name, one in there.items() if one.op == problem.op}
    near = dict.fromkeys(one for one in of_op.values() if one.cols == problem.cols)
    if near:
        named = (f"{one} ({command('search', *ProblemQuery.of(one).options)})" for one in near)
        return f"of {problem.cols} columns there are: {', '.join(named)}"
    names = f"there are: {', '.join(of_op)}" if of_op else f"there is none of {problem.op}"
    return f"{names} (explorer recordings says of which problems)"


def _look_at(path: Path) -> RecordingFile:
    try:
        return RecordingFile(recording_name(path), path, read_header(path))
    except ExplorerError as error:
        return RecordingFile(recording_name(path), path, None, str(error))


def _rank(file: RecordingFile) -> tuple[bool, bool, str]:
    """Return a recording's rank among those of one problem: the greatest is taken."""
    assert file.header is not None
    own = file.path.parent != shipped_folder("recorded", "studies/recorded")
    return own, file.header.gpu.name == DEFAULT_GPU, file.header.environment.date
