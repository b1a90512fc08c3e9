"""Where recordings lie: studies/recorded under the current folder, then those that ship."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from explorer.accuracy import Accuracy
from explorer.asked import AskedProblem
from explorer.devices.recorded.recording import (
    SUFFIX,
    Recording,
    RecordingHeader,
    read_header,
    read_recording,
    recording_name,
)
from explorer.errors import ExplorerError, InvalidInput, NotFound
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.user_files import is_there

LOCAL_DIR = Path("studies") / "recorded"

_RECORD = "record one on a GPU with explorer record"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A recording's file, with its header, or with what is wrong with it."""

    name: str
    path: Path
    header: RecordingHeader | None
    damage: str = ""


def recording_dirs() -> list[Path]:
    """Folders that are looked into, in that order."""
    package = Path(__file__).resolve().parents[2]
    shipped = package / "_data" / "recorded"
    in_checkout = package.parent / "studies" / "recorded"
    candidates = [shipped if shipped.is_dir() else in_checkout]
    with suppress(FileNotFoundError):  # the current folder is gone
        candidates.insert(0, LOCAL_DIR.absolute())
    return [path for path in dict.fromkeys(candidates) if path.is_dir()]


def local_path(
    problem: Problem, gpu: GpuSpec, timing: str, accuracy: Accuracy = Accuracy.DEFAULT
) -> Path:
    """Where a new recording goes, such as studies/recorded/h200-f32-4096.json.gz.

    What is not as usual of a problem, a timing that is not cold, and an accuracy that is not the
    default are part of the name.
    """
    short = gpu.name.removeprefix("NVIDIA ").removeprefix("Tesla ").lower().replace(" ", "-")
    usual = problem == AskedProblem(problem.cols, problem.dtype).problem()
    what = f"{problem.dtype} {problem.cols}" if usual else str(problem)
    words = re.sub(r"[^a-z0-9.]+", "-", what.removeprefix("softmax "))
    parts = [short, words, *([] if timing == "cold" else [timing])]
    parts += [] if accuracy is Accuracy.DEFAULT else [str(accuracy)]
    return LOCAL_DIR / f"{'-'.join(parts)}{SUFFIX}"


def list_recordings() -> list[RecordingFile]:
    """All recordings, by name; a name found in an earlier folder hides later ones."""
    paths: dict[str, Path] = {}
    for folder in recording_dirs():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            paths.setdefault(recording_name(path), path)
    return [_look_at(path) for _, path in sorted(paths.items())]


def load_recording(name: str) -> Recording:
    """The recording called `name`, or at that path; raises NotFound, InvalidInput."""
    places = [Path(name)] if name.endswith(SUFFIX) else []
    for path in [*places, *(folder / f"{name}{SUFFIX}" for folder in recording_dirs())]:
        if is_there(path):
            return read_recording(path)
    there_are = ", ".join(file.name for file in list_recordings()) or "none"
    raise NotFound(f"recording '{name}' does not exist; there are: {there_are}; or {_RECORD}")


def find_recording(asked: AskedProblem, tell: Callable[[str], None] = lambda _: None) -> Recording:
    """The latest recording of what was asked; raises NotFound, InvalidInput.

    `tell` gets a sentence for each damaged recording that was passed over. Where nothing else is
    found, the damage is what is raised.
    """
    files = list_recordings()
    damage = [file.damage for file in files if file.damage]
    matching = [file for file in files if file.header and asked.matches(file.header.problem)]
    for file in sorted(matching, key=_date, reverse=True):
        try:
            found = read_recording(file.path)
        except ExplorerError as error:
            damage.insert(0, str(error))
            continue
        for sentence in damage:
            tell(f"passed over: {sentence}")
        return found
    if damage:
        raise InvalidInput(f"no recording of {asked} can be read: {damage[0]}")
    recorded = [f"{file.header.problem} ({file.name})" for file in files if file.header]
    there_are = ", ".join(recorded) or "none"
    raise NotFound(f"no recording of {asked}; there are: {there_are}; or {_RECORD}")


def _look_at(path: Path) -> RecordingFile:
    try:
        return RecordingFile(recording_name(path), path, read_header(path))
    except ExplorerError as error:
        return RecordingFile(recording_name(path), path, None, str(error))


def _date(file: RecordingFile) -> str:
    return file.header.circumstances.date if file.header else ""
