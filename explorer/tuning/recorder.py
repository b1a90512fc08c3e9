"""Measure configs of a space, a whole sub-space and a sample, and write them to a recording."""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from explorer.devices.recording import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    RecordingHeader,
    recording_name,
    write_recording,
)
from explorer.model.config import Config, Value
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.evaluator import Evaluator, first_evaluated, width
from explorer.model.outcome import Measured, Outcome, Stage
from explorer.model.problem import Problem
from explorer.space import Space
from explorer.tuning.results import Progress

# ------------------------------------------------------------------ selection of configs


DRAWS_PER_CONFIG = 20
"""Most draws for each config of a sample, since a small space may have fewer configs."""

SubSpace = dict[str, tuple[Value, ...]]
"""Values of some parameters; the others have all their values."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Different configs, and how they were chosen."""

    configs: tuple[Config, ...]
    rule: str
    """The way they were chosen, in words."""
    sub_space: SubSpace
    """The sub-space of which they are all legal configs; empty if they are a sample alone."""


def choose_configs(
    space: Space, *, sample: int | None = None, seed: int = 0, fixed: SubSpace | None = None
) -> Selection:
    """Return every legal config of `space` narrowed by `fixed`, then `sample` random draws.

    The first part is a complete sub-space, whose best kernel is therefore known. The second shows
    how the sub-space compares with the whole space. Without `fixed` there is the sample alone,
    without `sample` the sub-space alone. The choice does not depend on a search, so that a search
    can be judged by the result.
    """
    chosen: dict[Config, None] = {}
    parts = []
    if fixed:
        narrowed = Space(space.problem, space.gpu, {**space.parameters, **fixed})
        chosen |= dict.fromkeys(narrowed.legal())
        within = ", ".join(f"{name} in {values}" for name, values in fixed.items())
        parts.append(f"every legal config with {within}: {len(chosen)}")
    if sample is not None:
        rng, most = random.Random(seed), len(chosen) + sample
        before = len(chosen)
        for _ in range(DRAWS_PER_CONFIG * sample):
            chosen[space.sample(rng)] = None
            if len(chosen) == most:
                break
        parts.append(f"{len(chosen) - before} drawn at random from the whole space, seed {seed}")
    return Selection(tuple(chosen), "; ".join(parts), fixed or {})


# ------------------------------------------------------------------ recording


CLOSE = 0.03
"""Kernels within 3 % of the fastest are timed in turn, at most MOST_COMPARED of them. Nine samples
each do not show which of thousands is the best: the smallest of the medians is lucky."""

LEAST_COMPARED = 48
"""Fewest kernels that are timed in turn: four times as many as in finals, so that they include
those of a replay, which finds only some of the best."""

MOST_COMPARED = 400
"""Most kernels that are timed in turn, which take half a minute. In three recordings with up to 872
kernels within 3 %, those left out are at least 1.7 % slower than the best."""

ROUNDS = 40

LEAST_AHEAD = 16
"""Fewest configs that compile ahead: more than in a search, since all are known beforehand."""


def record(
    evaluator: Evaluator,
    selection: Selection,
    path: Path,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    rounds: int = ROUNDS,
) -> Recording:
    """Evaluate every config, compare the best, and write `path` (NAME.json.gz) at the end.

    Raises NotFound if no kernel could be measured. Nothing is written then, or on Ctrl-C.
    """
    recorded = Kernels(evaluator, on_progress, len(selection.configs))
    evaluate_each(evaluator, selection.configs, recorded)
    kernels = recorded.kernels
    comparison = _compare(evaluator, _best(evaluator.problem, kernels), rounds)
    header = RecordingHeader(
        problem=evaluator.problem,
        gpu=evaluator.gpu,
        environment=evaluator.environment,
        rule=selection.rule,
        sub_space=selection.sub_space,
        kernel_count=len(kernels),
    )
    recording = Recording(recording_name(path), header, tuple(kernels), comparison)
    write_recording(recording, path)
    return recording


def evaluate_each(evaluator: Evaluator, configs: Sequence[Config], seen: "Kernels") -> None:
    """Evaluate each config whose code `seen` does not have, while the next ones compile."""
    waiting = deque(configs)
    compiling: list[Config] = []
    while waiting or compiling:
        begun = 2 * width(evaluator)
        while waiting and len(compiling) <= max(LEAST_AHEAD, evaluator.ahead) + begun - 2:
            config = waiting.popleft()
            if seen.is_new(config):
                compiling.append(config)
                evaluator.submit(config)
        for config in compiling[:begun]:  # the GPU goes on with the second by itself
            evaluator.begin(config)
        if compiling:
            config = first_evaluated(evaluator, compiling[:begun])
            compiling.remove(config)
            seen.add(config, evaluator.evaluate(config))


class Kernels:
    """The kernels so far, and their progress reports."""

    def __init__(
        self, evaluator: Evaluator, tell: Callable[[Progress], None] | None, total: int
    ) -> None:
        self.kernels: list[RecordedKernel] = []
        self._evaluator = evaluator
        self._tell = tell
        self._left = total
        self._digests: set[str] = set()
        self._rejected: Counter[Stage] = Counter()
        self._best_us: float | None = None
        self._start = monotonic()

    def is_new(self, config: Config) -> bool:
        """Return whether the code of a config is new, and add it to the known ones."""
        digest = self._evaluator.identity(config)
        known = digest in self._digests
        self._digests.add(digest)
        self._left -= known
        return not known

    def add(self, config: Config, outcome: Outcome) -> None:
        """Add a kernel, and report the progress."""
        self.kernels.append(RecordedKernel(config, self._evaluator.identity(config), outcome))
        self._left -= 1
        if isinstance(outcome, Measured):
            self._best_us = min(outcome.time_us, self._best_us or outcome.time_us)
        else:
            self._rejected[outcome.stage] += 1
        if self._tell is not None:
            self._tell(self._progress())

    def _progress(self) -> Progress:
        rejected = dict(self._rejected)
        return Progress(
            trials=len(self.kernels),
            measured=len(self.kernels) - sum(rejected.values()),
            rejected=rejected,
            best_us=self._best_us,
            limit_us=self._evaluator.environment.limit_us,
            elapsed_s=monotonic() - self._start,
            remaining_trials=self._left,
            workers=tuple(self._evaluator.workers or ()),
        )


def compare_again(
    evaluator: Evaluator, recording: Recording, path: Path, *, rounds: int = ROUNDS
) -> Recording:
    """Time the best of a recording in turn once more, and write it to `path` with these times.

    Raises InvalidInput if the GPU or NVRTC differs from the recording's, or the templates emit
    other code for one of the best.
    """
    best = _best(recording.header.problem, recording.kernels)
    _check_same(evaluator, recording, best)
    comparison = _compare(evaluator, best, rounds)
    comparison = replace(comparison, date=evaluator.environment.date)
    made = replace(recording, name=recording_name(path), comparison=comparison)
    write_recording(made, path)
    return made


def _check_same(evaluator: Evaluator, recording: Recording, best: Sequence[RecordedKernel]) -> None:
    recorded = recording.header.gpu.name
    if evaluator.gpu.name != recorded:
        raise InvalidInput(
            f"recording {recording.name} is of {recorded}, and this GPU is {evaluator.gpu.name}; "
            "its kernels can be compared again on that model alone"
        )
    compiler, made_by = evaluator.environment.nvrtc, recording.header.environment.nvrtc
    if compiler != made_by:
        raise InvalidInput(
            f"recording {recording.name} is of kernels that NVRTC {made_by} compiled, and this is "
            f"{compiler}; install that one, or make it again with explorer record"
        )
    for kernel in best:
        if evaluator.identity(kernel.config) != kernel.digest:
            raise InvalidInput(
                f"recording {recording.name} is older than the templates: of "
                f"{kernel.config.to_json(brief=True)} it has other code; make it again with "
                "explorer record"
            )


def _compare(
    evaluator: Evaluator, best: Sequence[RecordedKernel], rounds: int
) -> RecordedComparison:
    """Time the best in turn, the very best twice."""
    configs = [kernel.config for kernel in best]
    comparison = evaluator.compare([*configs, configs[0]], rounds)
    return RecordedComparison(
        digests=tuple(kernel.digest for kernel in best),
        samples_us=tuple(map(_rounded, comparison.samples_us[:-1])),
        again_us=_rounded(comparison.samples_us[-1]),
        limit_us=_rounded(comparison.limit_us),
    )


def _rounded(samples_us: Sequence[float]) -> tuple[float, ...]:
    """Return samples rounded to a tenth of a nanosecond, as a kernel's own samples are written."""
    return tuple(round(sample, 4) for sample in samples_us)


def _best(problem: Problem, kernels: Sequence[RecordedKernel]) -> list[RecordedKernel]:
    """Return the kernels close to the fastest, the fastest first; raises NotFound without any."""
    timed = [(k.outcome.time_us, k) for k in kernels if isinstance(k.outcome, Measured)]
    if not timed:
        raise NotFound(f"none of {len(kernels)} kernels of {problem} could be measured")
    timed.sort(key=lambda pair: pair[0])
    close = sum(time_us <= (1 + CLOSE) * timed[0][0] for time_us, _ in timed)
    number = min(MOST_COMPARED, max(LEAST_COMPARED, close))
    return [kernel for _, kernel in timed[:number]]
