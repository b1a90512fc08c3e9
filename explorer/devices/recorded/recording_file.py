"""The file of a recording: gzip over JSON lines.

A header, then a line a kernel, then a line of the comparison of the best, where there is one.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from explorer.circumstances import Circumstances
from explorer.config import Config
from explorer.devices.recorded.recording import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    RecordingHeader,
)
from explorer.errors import InvalidInput, NotFound
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Measured, Outcome, Rejected, Resources, Stage
from explorer.problem import Problem

FORMAT = "softmax-explorer recording"
FORMAT_VERSION = 1
SUFFIX = ".json.gz"


def write_recording(recording: Recording, path: Path) -> None:
    """Write atomically: `path` is the whole recording or what it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [_header_line(recording.header), *map(_kernel_line, recording.kernels)]
    if recording.comparison is not None:
        lines.append({"comparison": asdict(recording.comparison)})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_recording(path: Path) -> Recording:
    """Read a whole recording; raises InvalidInput for a truncated, damaged or foreign file."""
    lines = _lines(path)
    with _reading(path):
        header = _header(next(lines), path)
        rest = list(lines)
        comparison = _comparison(rest.pop()) if rest and "comparison" in rest[-1] else None
        kernels = tuple(map(_kernel, rest))
    if len(kernels) != header.kernel_count:
        raise InvalidInput(_damaged(path, f"{len(kernels)} of {header.kernel_count} kernels"))
    return Recording(recording_name(path), header, kernels, comparison)


def read_header(path: Path) -> RecordingHeader:
    """Read what a recording is of, and no more; raises InvalidInput."""
    with _reading(path):
        return _header(next(_lines(path)), path)


def recording_name(path: Path) -> str:
    """The file's name without its suffix."""
    return path.name.removesuffix(SUFFIX)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong in reading is said of the file, with what to do."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(
            f"recording {path} does not exist; explorer doctor lists those there are"
        ) from None
    except gzip.BadGzipFile:
        raise InvalidInput(_damaged(path, "it is no gzip file")) from None
    except (EOFError, StopIteration):
        raise InvalidInput(_damaged(path, "it ends early")) from None
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(_damaged(path, f"{type(error).__name__}: {error}")) from None
    except OSError as error:
        raise InvalidInput(f"recording {path} cannot be read: {error.strerror}") from None


def _damaged(path: Path, what: str) -> str:
    return (
        f"recording {path} is damaged or no recording: {what}; fetch it again, make it again "
        "with explorer record, or remove it"
    )


def _header_line(header: RecordingHeader) -> dict[str, Any]:
    plain = {**asdict(header), "problem": header.problem.as_dict()}
    return {"format": FORMAT, "version": FORMAT_VERSION, **plain}


def _header(line: dict[str, Any], path: Path) -> RecordingHeader:
    if line["format"] != FORMAT:
        raise ValueError(f"its format is {line['format']!r}")
    if line["version"] > FORMAT_VERSION:
        raise InvalidInput(
            f"recording {path} has format {line['version']}, this explorer reads up to "
            f"{FORMAT_VERSION}; update softmax-explorer"
        )
    problem = line["problem"]
    return RecordingHeader(
        problem=Problem.from_dict(problem),
        gpu=GpuSpec(**line["gpu"]),
        circumstances=Circumstances.from_dict(line["circumstances"]),
        rule=line["rule"],
        kernel_count=line["kernel_count"],
    )


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


def _kernel(line: dict[str, Any]) -> RecordedKernel:
    outcome: Outcome
    if "stage" in line:
        outcome = Rejected(Stage(line["stage"]), line["reason"])
    else:
        outcome = Measured(
            samples_us=tuple(line["samples_us"]),
            error=line["error"],
            resources=Resources(**line["resources"]),
            digest=line["digest"],
            max_ulp=line.get("max_ulp"),
            mean_ulp=line.get("mean_ulp"),
        )
    return RecordedKernel(Config.from_dict(line["config"]), line["digest"], outcome)


def _comparison(line: dict[str, Any]) -> RecordedComparison:
    values = line["comparison"]
    return RecordedComparison(
        digests=tuple(values["digests"]),
        samples_us=tuple(tuple(row) for row in values["samples_us"]),
        again_us=tuple(values["again_us"]),
        copy_us=tuple(values["copy_us"]),
    )
