"""Measure a list of configs and keep all of it as a recording."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from explorer.config import Config
from explorer.devices.recorded.recording import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    RecordingHeader,
)
from explorer.devices.recorded.recording_file import recording_name, write_recording
from explorer.errors import NotFound
from explorer.evaluator import Evaluator
from explorer.outcome import Measured, Stage
from explorer.tuning.choice import Choice
from explorer.tuning.results import Progress

COMPARED = 48
"""The best are re-measured in turn: four times as many as finals take, so that those of a replay,
which finds some of the best only, are among them."""

ROUNDS = 40


def record(
    evaluator: Evaluator,
    choice: Choice,
    path: Path,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    ahead: int = 16,
    rounds: int = ROUNDS,
) -> Recording:
    """Evaluate every config, compare the best, write `path` (NAME.json.gz) at the end.

    Raises NotFound where no kernel could be measured; nothing is written then, or on Ctrl-C.
    """
    kernels = _evaluate(evaluator, choice, on_progress, ahead)
    comparison = _compare(evaluator, kernels, rounds)
    header = RecordingHeader(
        problem=evaluator.problem,
        gpu=evaluator.gpu,
        circumstances=evaluator.circumstances,
        rule=choice.rule,
        kernel_count=len(kernels),
    )
    recording = Recording(recording_name(path), header, tuple(kernels), comparison)
    write_recording(recording, path)
    return recording


def _evaluate(
    evaluator: Evaluator,
    choice: Choice,
    on_progress: Callable[[Progress], None] | None,
    ahead: int,
) -> list[RecordedKernel]:
    kernels: dict[str, RecordedKernel] = {}
    waiting = deque(choice.configs)
    compiling: deque[Config] = deque()
    start = monotonic()
    while waiting or compiling:
        while waiting and len(compiling) <= ahead:
            compiling.append(waiting.popleft())
            evaluator.submit(compiling[-1])
        config = compiling.popleft()
        digest = evaluator.identity(config)
        if digest not in kernels:
            kernels[digest] = RecordedKernel(config, digest, evaluator.evaluate(config))
        if on_progress is not None:
            left = len(waiting) + len(compiling)
            on_progress(_progress(evaluator, list(kernels.values()), left, monotonic() - start))
    return list(kernels.values())


def _progress(
    evaluator: Evaluator, kernels: Sequence[RecordedKernel], left: int, elapsed_s: float
) -> Progress:
    times = [k.outcome.time_us for k in kernels if isinstance(k.outcome, Measured)]
    stages: Counter[Stage] = Counter(
        k.outcome.stage for k in kernels if not isinstance(k.outcome, Measured)
    )
    return Progress(
        trials=len(kernels),
        measured=len(times),
        rejected=dict(stages),
        best_trial=None,
        best_us=min(times, default=None),
        copy_us=evaluator.circumstances.copy_us,
        elapsed_s=elapsed_s,
        remaining_s=None,
        remaining_trials=left,
        phase="search",
    )


def _compare(
    evaluator: Evaluator, kernels: Sequence[RecordedKernel], rounds: int
) -> RecordedComparison:
    """Time the best in turn, the very best twice."""
    timed = [(k.outcome.time_us, k) for k in kernels if isinstance(k.outcome, Measured)]
    if not timed:
        raise NotFound(f"none of {len(kernels)} kernels of {evaluator.problem} could be measured")
    ranked = [kernel for _, kernel in sorted(timed, key=lambda pair: pair[0])[:COMPARED]]
    configs = [kernel.config for kernel in ranked]
    comparison = evaluator.compare([*configs, configs[0]], rounds)
    return RecordedComparison(
        digests=tuple(kernel.digest for kernel in ranked),
        samples_us=comparison.samples_us[:-1],
        again_us=comparison.samples_us[-1],
        copy_us=comparison.copy_us,
    )
