"""Measure configs of a space and keep all of it as a recording: a whole sub-space, or a sample."""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import monotonic

from explorer.config import Config
from explorer.devices.recorded import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    RecordingHeader,
    recording_name,
    write_recording,
)
from explorer.errors import NotFound
from explorer.evaluator import Evaluator
from explorer.outcome import Measured, Stage
from explorer.space import Space
from explorer.space.parameters import Value
from explorer.tuning.proposer import seeds
from explorer.tuning.results import Progress

# ------------------------------------------------------------------ which configs


UNIFORM_SHARE = 0.5
NEAR_SEEDS_SHARE = 0.2

DRAWS_PER_CONFIG = 200

SENSIBLE: dict[str, tuple[Value, ...]] = {
    "algorithm": ("three-pass", "online-block-max"),
    "threads": (64, 128, 192, 256, 384, 512, 768, 1024),
    "reduction": ("shuffle", "shuffle-redux"),
    "exp": ("__expf", "exp2f", "ex2.approx"),
    "normalise": ("reciprocal",),
}
"""Values among which fast kernels are expected; other parameters keep all of theirs.

Vectors are of 8 or 16 bytes, and a row has a thread for every 8 to 64 of its elements.
"""


@dataclass(frozen=True, slots=True)
class Selection:
    """Configs, each of code of its own, and how they were chosen, in words."""

    configs: tuple[Config, ...]
    rule: str


def choose_configs(
    space: Space,
    *,
    sample: int | None,
    seed: int,
    identity: Callable[[Config], str],
    fixed: dict[str, tuple[Value, ...]] | None = None,
) -> Selection:
    """Every legal config of `space` narrowed by `fixed` (`sample` None), or `sample` of them.

    Half of a sample is drawn uniformly from the legal configs; a fifth are seeds and what differs
    from them in one choice; the rest is drawn where fast kernels are expected.
    """
    narrowed = Space(space.problem, space.gpu, {**space.parameters, **(fixed or {})})
    distinct = _Distinct(identity)
    held = f"; {', '.join(f'{k} in {v}' for k, v in fixed.items())}" if fixed else ""
    if sample is None:
        distinct.add(narrowed.legal(), None)
        return Selection(tuple(distinct.configs), f"every legal config{held}")
    rng = random.Random(seed)
    uniform, near = round(sample * UNIFORM_SHARE), round(sample * NEAR_SEEDS_SHARE)
    distinct.add(_near_seeds(narrowed, rng), near)
    distinct.add(_draws(_sensible(narrowed), rng, sample), sample - uniform)
    distinct.add(_draws(narrowed, rng, sample), sample)
    rule = (
        f"{len(distinct.configs)} distinct kernels, seed {seed}: up to {near} seeds and their "
        f"neighbours, up to {sample - uniform} with sensible values, the rest uniform{held}"
    )
    return Selection(tuple(distinct.configs), rule)


class _Distinct:
    """Collects configs whose code was not met before."""

    def __init__(self, identity: Callable[[Config], str]) -> None:
        self.configs: list[Config] = []
        self._identity = identity
        self._seen: set[Config] = set()
        self._digests: set[str] = set()

    def add(self, configs: Iterable[Config], until: int | None) -> None:
        """Take new ones until there are `until` in all, or no more."""
        for config in configs:
            if until is not None and len(self.configs) >= until:
                return
            if config in self._seen:
                continue
            self._seen.add(config)
            digest = self._identity(config)
            if digest not in self._digests:
                self._digests.add(digest)
                self.configs.append(config)


def _near_seeds(space: Space, rng: random.Random) -> Iterator[Config]:
    first = seeds(space, rng)
    steps = list(dict.fromkeys(chain.from_iterable(space.neighbours(seed) for seed in first)))
    rng.shuffle(steps)
    return chain(first, steps)


def _draws(space: Space, rng: random.Random, wanted: int) -> Iterator[Config]:
    return (space.sample(rng) for _ in range(wanted * DRAWS_PER_CONFIG))


def _sensible(space: Space) -> Space:
    """`space` narrowed to sensible values, where it leaves any of them."""
    cols = space.problem.cols
    per_row = tuple(
        threads
        for threads in space.parameters["threads_per_row"]
        if cols / 64 <= int(threads) <= cols / 8 or (int(threads) == 1024 and cols > 65536)
    )
    wanted = {**SENSIBLE, "threads_per_row": per_row, "vector_bytes": (8, 16)}
    narrowed = {
        name: tuple(value for value in space.parameters[name] if value in values)
        for name, values in wanted.items()
    }
    narrowed = {name: values for name, values in narrowed.items() if values}
    return Space(space.problem, space.gpu, {**space.parameters, **narrowed})


# ------------------------------------------------------------------ the recording


COMPARED = 48
"""The best are re-measured in turn: four times as many as finals take, so that those of a replay,
which finds some of the best only, are among them."""

ROUNDS = 40


def record(
    evaluator: Evaluator,
    selection: Selection,
    path: Path,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    ahead: int = 16,
    rounds: int = ROUNDS,
) -> Recording:
    """Evaluate every config, compare the best, write `path` (NAME.json.gz) at the end.

    Raises NotFound where no kernel could be measured; nothing is written then, or on Ctrl-C.
    """
    kernels = _evaluate(evaluator, selection, on_progress, ahead)
    comparison = _compare(evaluator, kernels, rounds)
    header = RecordingHeader(
        problem=evaluator.problem,
        gpu=evaluator.gpu,
        circumstances=evaluator.circumstances,
        rule=selection.rule,
        kernel_count=len(kernels),
    )
    recording = Recording(recording_name(path), header, tuple(kernels), comparison)
    write_recording(recording, path)
    return recording


def _evaluate(
    evaluator: Evaluator,
    selection: Selection,
    on_progress: Callable[[Progress], None] | None,
    ahead: int,
) -> list[RecordedKernel]:
    kernels: dict[str, RecordedKernel] = {}
    waiting = deque(selection.configs)
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
