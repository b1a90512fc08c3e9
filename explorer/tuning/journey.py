"""A journey: known designs timed in turn, from the simplest to the best, and its results."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from optuna.storages import BaseStorage

from explorer.codegen.units import emit
from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.evaluator import Evaluator
from explorer.model.outcome import Absent, Contender, Environment, Measured
from explorer.model.peer import Entered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.presets.published import BETWEEN, PRESETS
from explorer.space import can_emit
from explorer.system.plain_data import read_fields, shown, write_fields
from explorer.tuning.contest import ROUNDS, Contest, Entry, Ratio, check_rows
from explorer.tuning.objective import Goal
from explorer.tuning.peer_comparison import enter_all, timed_peers
from explorer.tuning.search import evaluator_study
from explorer.tuning.study_reader import StoredStudy, fitting

# ------------------------------------------------------------------ results


BEST = "search's best"
"""The name of the step that a search found."""


@dataclass(frozen=True)
class Journey:
    """Kernels in the order of their times, the slowest first; ratios pair samples of a round."""

    problem: Problem
    environment: Environment = field(metadata={"key": "circumstances"})
    steps: tuple[Contender, ...]
    left_out: tuple[Absent, ...]
    limit_us: tuple[float, ...]
    """The problem's limit, timed in the same rounds."""
    again_us: tuple[float, ...]
    """One of the fastest once more: its two rows differ by what the contest cannot resolve."""
    twice: str
    """The digest of that step."""
    best_from: str
    """Where the search's best comes from; empty where there is none."""
    interleaved: bool = True

    @cached_property
    def contest(self) -> Contest:
        """The steps, one of which is entered twice, and the limit."""
        twice = [step.digest for step in self.steps].index(self.twice)
        return Contest(self.steps, self.again_us, twice, self.limit_us, self.interleaved)

    @property
    def limit_time_us(self) -> float:
        """Median microseconds of the limit; 0 where it was not measured."""
        return self.contest.limit_time_us

    def speedup(self, slower: Contender, faster: Contender) -> Ratio:
        """How many times as fast one step is as another, with its confidence interval."""
        return self.contest.over(slower, faster)

    def is_tie(self, one: Contender, other: Contender) -> bool:
        """Whether two steps cannot be told apart."""
        return self.contest.is_tie(one, other)

    def find(self, name: str) -> Contender | None:
        """Return the step of a preset, if it has one."""
        return next((step for step in self.steps if name in step.names), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what was measured, without what follows from it."""
        return write_fields(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Journey":
        """Read what `as_dict` wrote, whatever else is there. Raises InvalidInput for other data."""
        read = read_fields(cls, values, "journey", ignore_unknown=True)
        if not read.steps:
            raise InvalidInput("steps is empty; a journey has a step")
        if read.twice not in {step.digest for step in read.steps}:
            raise InvalidInput(f"twice is {shown(read.twice)}; it must be the digest of a step")
        check_rows([*(step.samples_us for step in read.steps), read.again_us])
        return read


# ------------------------------------------------------------------ journey


FEWEST = 2
"""Kernels that a journey has at least."""

Progress = Callable[[str, int, int], None]
"""Told the name of what is verified and timed next, its number from 1, and of how many."""


def stored_best(evaluator: Evaluator, storage: BaseStorage) -> Entry | None:
    """Return the best of the study that a search would go on with; None without one."""
    name, goal = evaluator_study(evaluator), Goal(accuracy=evaluator.environment.accuracy)
    studies: list[StoredStudy] = []
    with suppress(NotFound):
        studies = fitting(storage, evaluator.problem, goal)
    for study in studies:
        best = study.best() if study.name == name else None
        if best is not None and can_emit(study.problem, best.config):
            return Entry(best.config, f"trial {best.number} of study {name}")
    return None


def run_journey(
    evaluator: PeerBench,
    find_best: Callable[[], Entry | None],
    *,
    own: Sequence[PeerName] = (),
    rounds: int = ROUNDS,
    on_progress: Progress | None = None,
) -> Journey:
    """Verify and time each preset that can compute the problem, then all of them in turn.

    Kernels of a person's `own` are timed with them, as peers are.
    `find_best` is asked once the presets are known to be there. Raises NotFound where fewer than
    two kernels could be measured, or where a recording lacks some of them.
    """
    entered, left_out = _presets(evaluator)
    found = find_best()
    if found is not None:
        _enter(entered, BEST, found.config, evaluator)
    for config, _ in entered.values():
        evaluator.submit(config)
    measured = []
    for number, (config, names) in enumerate(entered.values(), 1):
        if on_progress is not None:
            on_progress(names[0], number, len(entered))
        outcome = evaluator.evaluate(config)
        if isinstance(outcome, Measured):
            measured.append(Contender.of(tuple(names), config, outcome))
        else:
            left_out += [Absent(name, outcome.reason, outcome.stage) for name in names]
    if len(measured) < FEWEST:
        raise NotFound(_too_few(evaluator, len(measured), left_out))
    peers, refused = enter_all(evaluator, own)
    return _in_turn(evaluator, measured, peers, [*left_out, *refused], found, rounds)


_Entered = dict[str, tuple[Config, list[str]]]
"""By the digest of its code, each kernel that is entered, and its names."""


def _enter(entered: _Entered, name: str, config: Config, evaluator: Evaluator) -> None:
    """Enter a kernel, or give one more name to the one that has its code."""
    digest = emit(evaluator.problem, config).digest
    entered.setdefault(digest, (config, []))[1].append(name)


def without_gpu(problem: Problem) -> str:
    """Say what of a journey over a problem can be seen without a GPU."""
    name = "attention-bf16-4096" if problem.attends else "f32-4096"
    return f"show one that comes with the package: --from journey-h200-{name}"


def _presets(evaluator: Evaluator) -> tuple[_Entered, list[Absent]]:
    """Presets of the operator that are legal, each code once; why others of it are not.

    Raises NotFound where a recording lacks some of them.
    """
    entered: _Entered = {}
    left_out = []
    known = PRESETS if evaluator.catalogue else (*PRESETS, *BETWEEN)  # no recording has these
    for preset in (one for one in known if evaluator.problem.op in one.ops):
        fault = preset.fault(evaluator.problem, evaluator.gpu)
        if fault is None:
            _enter(entered, preset.name, preset.config(evaluator.problem, evaluator.gpu), evaluator)
        else:
            left_out.append(Absent(preset.name, fault))
    if evaluator.catalogue is None:
        return entered, left_out
    recorded = {evaluator.identity(config): config for config in evaluator.catalogue}
    lacking = len(entered.keys() - recorded.keys())
    if lacking:
        environment = evaluator.environment
        raise NotFound(
            f"the recording made on {environment.gpu} on {environment.date[:10]} lacks "
            f"{lacking} of the {len(entered)} presets of {evaluator.problem}: a journey needs "
            f"a GPU; {without_gpu(evaluator.problem)}"
        )
    return {digest: (recorded[digest], names) for digest, (_, names) in entered.items()}, left_out


def _in_turn(
    evaluator: PeerBench,
    measured: list[Contender],
    peers: Sequence[Entered],
    left_out: Sequence[Absent],
    found: Entry | None,
    rounds: int,
) -> Journey:
    """Time all of them in turn, the fastest of ours twice."""
    ranked = sorted(measured, key=lambda one: -one.time_us)
    configs = [one.config for one in ranked]
    compared = evaluator.compare([*configs, configs[-1]], rounds)
    contest = Contest.of(ranked, compared, len(ranked) - 1)
    timed, lost = timed_peers(peers, compared)
    steps = (*contest.contenders, *timed)
    return Journey(
        problem=evaluator.problem,
        environment=replace(evaluator.environment, limit_us=contest.limit_time_us),
        steps=tuple(sorted(steps, key=lambda step: -step.time_us)),
        left_out=(*left_out, *lost),
        limit_us=contest.limit_us,
        again_us=contest.again_us,
        twice=ranked[-1].digest,
        best_from=found.origin if found is not None else "",
        interleaved=contest.interleaved,
    )


def _too_few(evaluator: Evaluator, measured: int, left_out: Sequence[Absent]) -> str:
    reasons = "; ".join(f"{entry.name}: {entry.why}" for entry in left_out[:3])
    return (
        f"a journey over {evaluator.problem} would have {measured} of the {FEWEST} kernels that "
        f"it needs{reasons and f' ({reasons})'}; explorer presets says why"
    )
