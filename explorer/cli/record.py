"""`explorer record`: measure a sub-space, or a sample of it, and keep it as a file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from explorer.cli import completions
from explorer.cli.options import (
    AccuracyLevel,
    Json,
    RecordedDevice,
    Seed,
    SpreadOptions,
    Timing,
    option,
)
from explorer.cli.output import say, stopped
from explorer.cli.problem import with_problem_unless
from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery, needed, rows_notice, whole_number
from explorer.system.user_files import check_writable, is_there

if TYPE_CHECKING:
    from explorer.devices.recording import Recording
    from explorer.model.config import Value
    from explorer.model.evaluator import Evaluator
    from explorer.space import Space

Sample = Annotated[
    int | None,
    option(
        "--sample N",
        "Configs to draw at random from the whole space, with or without --where.",
        whole_number("sample", 1),
    ),
]
Where = Annotated[
    list[str] | None,
    option(
        "--where NAME=V,V",
        "Values of a parameter, of which every legal config is measured; may be repeated.",
        complete=completions.conditions,
    ),
]
Again = Annotated[
    str | None,
    option(
        "--again RECORDING",
        "Instead: time the best of this recording in turn once more; the problem, the timing "
        "and the accuracy are those of the recording.",
        complete=completions.recordings,
    ),
]
Output = Annotated[
    str | None,
    option(
        "--output FILE",
        "File to write, ending in .json.gz; default: one in recorded/ among the studies.",
    ),
]
Force = Annotated[bool, option("--force", "Replace a recording of that name.")]


@with_problem_unless("--again names a recording")
def record(
    query: ProblemQuery | None,
    many: SpreadOptions,
    sample: Sample = None,
    where: Where = None,
    again: Again = None,
    output: Output = None,
    force: Force = False,
    device: RecordedDevice = "cuda:0",
    timing: Timing = "cold",
    accuracy: AccuracyLevel = Accuracy.DEFAULT,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure every config of a sub-space, or a sample of the space, or both, for replays."""
    from explorer.devices.recording import own_file
    from explorer.report.recordings import recording_data, recording_sentence
    from explorer.report.text import as_json
    from explorer.space import restriction
    from explorer.tuning.recorder import compare_again

    measure: Callable[..., Recording]
    if again is not None:
        recording = _to_compare(again, query is None and sample is None and not where)
        made_by = recording.header.environment
        problem, timing, accuracy = recording.header.problem, made_by.timing, made_by.accuracy
        output = output or str(own_file(recording.name))
        notices = [f"timing the best of {recording.name} in turn, which may take a minute"]
        measure = partial(compare_again, recording=recording)
    else:
        query = needed(query)
        problem = query.problem()
        fixed = restriction(where, problem)
        if sample is None and not fixed:
            raise InvalidInput("what to record is not said: give --sample 500, --where, or both")
        notices = rows_notice(problem, query.rows)
        measure = partial(_measure, sample=sample, fixed=fixed, seed=seed)
    opening = _opening(many, problem, device, timing, seed, accuracy)
    with stopped("; nothing was recorded"), opening as evaluator:
        path = _path(output, evaluator, force=force)
        for notice in notices:
            say(notice)
        made = measure(evaluator, path=path)
    print(as_json(recording_data(made, path)) if json else recording_sentence(made, path))


def _opening(many: SpreadOptions, *settings: Any) -> Any:
    """Open what evaluates, on one GPU or on many."""
    if many == SpreadOptions():
        from explorer.evaluate.open_evaluator import open_evaluator

        return open_evaluator(*settings)
    from explorer.tuning.cluster_device import open_on_cluster

    return open_on_cluster(*settings, many.gpus, many.cluster, say)


def _to_compare(name: str, is_alone: bool) -> "Recording":
    from explorer.devices.recording import load_recording

    if not is_alone:
        raise InvalidInput(
            f"--again {name} takes the problem and the configs of that recording; leave the "
            "options of a problem, --sample and --where out"
        )
    return load_recording(name)


def _measure(
    evaluator: "Evaluator",
    path: Path,
    *,
    sample: int | None,
    fixed: "dict[str, tuple[Value, ...]]",
    seed: int,
) -> "Recording":
    from explorer.report.progress import ProgressLine
    from explorer.report.table import notices
    from explorer.space import Space
    from explorer.tuning.recorder import choose_configs
    from explorer.tuning.recorder import record as record_configs

    if fixed:
        _check_size(Space.searched(evaluator.problem, evaluator.gpu, fixed))
    selection = choose_configs(
        Space.searched(evaluator.problem, evaluator.gpu),
        sample=sample,
        seed=seed,
        fixed=fixed or None,
    )
    with ProgressLine(evaluator.problem, notices()) as progress:
        return record_configs(evaluator, selection, path, progress)


MOST_POINTS = 100_000
"""More would take a day to measure."""


def _check_size(space: "Space") -> None:
    """Raise InvalidInput where a space has too many legal points to measure each."""
    legal = space.legal_count().number
    if legal > MOST_POINTS:
        raise InvalidInput(
            f"--where leaves about {legal} legal points, more than {MOST_POINTS}; narrow it "
            "further, or give --sample 500"
        )


def _path(output: str | None, evaluator: "Evaluator", *, force: bool) -> Path:
    """Return where to write, checked before the hours of measuring. Raises InvalidInput."""
    from explorer.devices.recording import SUFFIX, local_path

    if not evaluator.interleaves:
        raise InvalidInput("a recording cannot be recorded; name a GPU such as --device cuda:0")
    made = evaluator.environment
    usual = local_path(evaluator.problem, evaluator.gpu, made.timing, made.accuracy)
    path = usual if output is None else Path(output)
    if not path.name.endswith(SUFFIX):
        raise InvalidInput(f"output is {str(path)!r}; a recording's name ends in {SUFFIX}")
    if is_there(path) and not force:
        raise InvalidInput(f"{path} exists; name another --output, or replace it with --force")
    check_writable(path, "name another --output")
    return path
