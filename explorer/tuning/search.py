"""Search one problem's space on whatever evaluates: propose, compile ahead, evaluate, compare.

`_Search.explore` is the loop. A budget says when it ends; a tally counts its trials.
"""

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import fmean

from explorer.evaluate.space_version import space_version
from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.evaluator import Evaluator, first_evaluated, width
from explorer.model.outcome import Measured, Rejected, Stage, TrialRecord
from explorer.space import Rule, Space
from explorer.space.candidates import residencies
from explorer.tuning.contest import ROUNDS, Finals, front_contenders, run_finals, time_in_turn
from explorer.tuning.objective import (
    LEAST_GAIN,
    Effort,
    Goal,
    Objectives,
    Where,
    study_name,
    where_words,
)
from explorer.tuning.proposer import (
    Candidates,
    Origin,
    Proposal,
    Proposer,
    RecordedCandidates,
    SpaceCandidates,
)
from explorer.tuning.results import Progress, SearchResult
from explorer.tuning.seeds import seeds_of
from explorer.tuning.storage import Storage
from explorer.tuning.study_attributes import StudyIdentity
from explorer.tuning.study_reader import must_be_named
from explorer.tuning.study_writer import UNWRITTEN, Known, Ledger
from explorer.tuning.surrogate import SamplerOf, distributions

# ------------------------------------------------------------------ how long a search may go on


FINALS_SHARE, FINALS_SHARE_MAX = 0.1, 0.4
"""Fractions of the time budget that are left for the finals, at least and at most."""

EVALUATIONS_OF_FINALS = 16.0
"""Cost of the finals, in evaluations: a dozen contenders, the best again, limits, some margin."""


class Budget:
    """Counts evaluated kernels and the time they take, and says when a search ends.

    With a `patience`, it ends once so many kernels improved the best time by less than the noise.
    """

    def __init__(self, trials: int | None, budget_s: float | None, patience: int | None) -> None:
        self._start = time.monotonic()
        self._trials = trials
        self._budget_s = budget_s
        self._patience = patience
        self._evaluated = 0
        self._evaluating_s = 0.0
        self._best_us: list[float] = []
        """The best time since the study began, after each kernel."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._start

    @property
    def remaining_s(self) -> float | None:
        """Seconds that are left, those of the finals included; None without a limit."""
        return None if self._budget_s is None else max(0.0, self._budget_s - self.elapsed_s)

    @property
    def remaining_trials(self) -> int | None:
        """Kernels that may still be evaluated; None without a limit."""
        return None if self._trials is None else max(0, self._trials - self._evaluated)

    @property
    def no_gain(self) -> str:
        """A sentence if the last kernels gained too little for the search to go on; else empty."""
        patience = self._patience
        if patience is None or len(self._best_us) <= patience:
            return ""
        before_us, now_us = self._best_us[-1 - patience], self._best_us[-1]
        if before_us == math.inf or now_us < before_us * (1 - LEAST_GAIN):
            return ""
        least = f"{100 * LEAST_GAIN:g} %"
        return (
            f"the last {patience} kernels improved the best by less than {least}, which is below "
            "the noise"
        )

    def spend(self, seconds: float, best_us: float | None) -> None:
        """Count one evaluated kernel, and the best time after it."""
        self._evaluated += 1
        self._evaluating_s += seconds
        self._best_us.append(math.inf if best_us is None else best_us)

    def allows_another(self, running: int = 0) -> bool:
        """Return whether one more kernel may be evaluated now, beside the `running` ones.

        Each of these takes the mean time; before that is known, one may run beside it.
        """
        if self.no_gain:
            return False
        if self.remaining_trials is not None and self.remaining_trials <= running:
            return False
        if self.remaining_s is None:
            return True
        if not self._evaluated and running > 1:
            return False
        return self.remaining_s > self._finals_s() + running * self._mean_s

    def room(self, pending: int) -> bool:
        """Return whether a proposal beyond the `pending` ones would still be evaluated."""
        return self.remaining_trials is None or pending < self.remaining_trials

    def _finals_s(self) -> float:
        budget_s = self._budget_s or 0.0
        estimate_s = max(FINALS_SHARE * budget_s, EVALUATIONS_OF_FINALS * self._mean_s)
        return min(FINALS_SHARE_MAX * budget_s, estimate_s)

    @property
    def _mean_s(self) -> float:
        return self._evaluating_s / self._evaluated if self._evaluated else 0.0


# ------------------------------------------------------------------ what is counted meanwhile


class Tally:
    """Counts a run's trials, and notes the best of all runs."""

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives
        self.trials = 0
        self.measured_now = 0
        self.rejected: Counter[Stage] = Counter()
        self.best: Known | None = None

    @property
    def best_us(self) -> float | None:
        """The time of the best, of earlier runs too; None where nothing was measured."""
        return _time_us(self.best) if self.best else None

    def recall(self, trial: Known) -> None:
        """Note a trial of an earlier run, or of another process, if it is the best."""
        if self.best is None or self._value(trial) < self._value(self.best):
            self.best = trial if isinstance(trial.outcome, Measured) else self.best

    def count(self, trial: Known) -> None:
        """Count a trial of this run."""
        self.trials += 1
        if isinstance(trial.outcome, Measured):
            self.measured_now += 1
        else:
            self.rejected[trial.outcome.stage] += 1
        self.recall(trial)

    def _value(self, trial: Known) -> float:
        return self._objectives.values(trial.outcome)[0]


def _time_us(trial: Known) -> float:
    return trial.outcome.time_us if isinstance(trial.outcome, Measured) else math.inf


# ------------------------------------------------------------------ the search


def run_search(
    evaluator: Evaluator,
    storage: Storage,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    effort: Effort = Effort.DEFAULT,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    rounds: int = ROUNDS,
    ahead: int | None = None,
    where: Where | None = None,
    objectives: Objectives = Objectives.TIME,
    sampler: SamplerOf | None = None,
) -> SearchResult:
    """Find the fastest variant of the evaluator's problem, going on with its study if there is one.

    `trials` counts the kernels that this call evaluates, not proposals that a rule excludes or
    whose code is known; `budget_s` covers search and finals, in seconds; where neither is given
    `effort` says how many, and a search for time ends sooner once it gains no more; `ahead`
    proposals compile while one is evaluated; `where` restricts parameters to some of their values,
    and its search has a study of its own. With `objectives` time and error the finalists are the
    Pareto front; an objective of the user's is minimised in place of time. A `sampler` of Optuna's
    kind proposes what comes after the seeds, in place of our mixture. Raises NotFound where no
    kernel could be used, InvalidInput where a recording does not tell errors, where a restriction
    leaves nothing, and for what an objective raises. Ctrl-C keeps all finished trials.
    """
    patience = None
    if trials is None and budget_s is None:
        trials = effort.trials
        patience = effort.patience if objectives == Objectives.TIME else None
    where = where or {}
    if objectives.is_front:
        _check_errors_are_known(evaluator)
    budget = Budget(trials, budget_s, patience)
    search = _Search(evaluator, storage, where, budget, seed, on_progress, objectives, sampler)
    has_failed = False
    try:
        search.explore(ahead)
        return search.conclude(rounds)
    except InvalidInput:  # of an objective or a sampler of the user's
        has_failed = True
        raise
    finally:
        search.close(has_failed=has_failed)


HANDED_OVER = 4
"""Kernels that are handed over at most: the one that the GPU verifies and times, the next one, with
which it goes on while this process learns from an outcome, and two whose turn comes after that.
They are handed over two by two, since each time costs a transaction: 11 ms on an H200's host, of
the 20 ms that the GPU takes for a kernel of 4096 columns."""

REOFFERED_AFTER = 16
"""Trials after which a proposal that another process had RUNNING is offered again: that process
may have ended before it evaluated the kernel."""

MOST_AGAIN = 2
"""Finals that are held again at most, since their winner had to be evaluated with other bounds."""


class _Search:
    """One run: its study, its proposer, and its counts."""

    def __init__(
        self,
        evaluator: Evaluator,
        storage: Storage,
        where: Where,
        budget: Budget,
        seed: int,
        on_progress: Callable[[Progress], None] | None,
        objectives: Objectives,
        sampler: SamplerOf | None,
    ) -> None:
        self._evaluator, self._storage, self._budget = evaluator, storage, budget
        self._seed = seed
        self._on_progress = on_progress
        self._objectives = objectives
        self._where = where
        self._tally = Tally(objectives)
        self._pending: deque[Proposal] = deque()
        self._begun: deque[Proposal] = deque()
        """Those that were handed over, in the order in which they are evaluated."""
        self._busy_since = 0.0
        """When the first of them was handed over, or the one before it was done."""
        self._refused: dict[str, tuple[Proposal, int]] = {}
        """By their digests, proposals that other processes had RUNNING, and how many trials this
        one had counted then."""
        self._of_others: set[str] = set()
        """Digests of the code that other processes, or earlier runs, have evaluated."""
        self._exhausted = False
        space = Space.searched(evaluator.problem, evaluator.gpu, dict(where))
        self._candidates = candidates = _candidates(evaluator, space, where)
        goal = Goal(objectives, evaluator.environment.accuracy)
        first = seeds_of(goal, space, random.Random(seed))
        self._proposer = Proposer(
            candidates, evaluator.identity, first, seed, self._add_illegal, objectives, sampler
        )
        study = StudyIdentity(
            name=evaluator_study(evaluator, objectives, where),
            problem=evaluator.problem,
            objectives=objectives,
            environment=evaluator.environment,
            seed=seed,
            distributions=distributions(candidates.values),
            where=where,
        )
        holds, is_alone = candidates.holds, evaluator.workers is not None
        self._ledger = Ledger(storage, study, holds, self._proposer.sampler, is_alone=is_alone)
        self._learn(self._ledger.heard())

    def explore(self, ahead: int | None = None) -> None:
        """Evaluate proposals until the budget, or what there is to try, is used up.

        The next proposals compile while one is evaluated. Of those that are compiled, the one that
        is the most promising by all that is known goes to the GPU next.
        """
        if self._candidates.left() != 0:
            self._tell_progress("search")
        has_more = True
        while self._begun or (self._budget.allows_another() and (bool(self._pending) or has_more)):
            wanted = (self._evaluator.ahead if ahead is None else ahead) + 1
            has_more = self._propose(wanted + self._handed_over - HANDED_OVER)
            self._await_code()
            if self._begun:
                self._finish(self._first_begun())
                self._tell_progress("search", self._on_their_way)
            self._learn(self._ledger.heard())
        self._exhausted = not self._pending and self._budget.allows_another()

    def _propose(self, wanted: int) -> bool:
        """Keep proposals on their way; return whether there may be more.

        What another process has RUNNING ends it, so that its outcome is read first.
        """
        self._hand_over()
        refused = len(self._refused)
        while self._on_their_way < wanted and self._has_room() and len(self._refused) == refused:
            proposal = self._offered_again() or self._proposer.propose()
            if proposal is None:
                return False
            self._evaluator.submit(proposal.config)
            self._pending.append(proposal)
            self._hand_over()
        return True

    def _hand_over(self) -> None:
        """Have the GPU go on with what is compiled; put aside what another process has RUNNING."""
        while len(self._begun) <= self._handed_over // 2:
            chosen = self._next(self._handed_over - len(self._begun))
            if not chosen:
                return
            for one, is_ours in zip(chosen, self._ledger.run(chosen), strict=True):
                if not is_ours:
                    self._refused[one.digest] = one, self._tally.trials
                    continue
                if not self._begun:
                    self._busy_since = time.monotonic()
                self._evaluator.begin(one.config)
                self._begun.append(one)

    @property
    def _handed_over(self) -> int:
        """Kernels that are handed over at most."""
        return HANDED_OVER * width(self._evaluator)

    def _first_begun(self) -> Proposal:
        """Take the kernel that was handed over whose outcome is there first."""
        config = first_evaluated(self._evaluator, [one.config for one in self._begun])
        first = next(one for one in self._begun if one.config == config)
        self._begun.remove(first)
        return first

    def _next(self, most: int) -> list[Proposal]:
        """Take the most promising proposals whose code is there, of which there may be none.

        Kernels take 10 to 700 ms to compile. To wait for a certain one took 1.0 s of the 6.3 s in
        which 200 kernels were evaluated on an H200's host.
        """
        codes = ((one, self._evaluator.compiling(one.config)) for one in self._pending)
        ready = [one for one, code in codes if code is None or code.done()]
        chosen: list[Proposal] = []
        while ready and len(chosen) < most:
            if not self._budget.allows_another(len(self._begun) + len(chosen)):
                break
            chosen.append(self._proposer.most_promising(ready))
            ready.remove(chosen[-1])
            self._pending.remove(chosen[-1])
        return chosen

    def _await_code(self) -> None:
        """Where the GPU has nothing to do, wait for the first kernel that is compiled."""
        while not self._begun and self._pending and self._budget.allows_another():
            self._ledger.flush(0)
            codes = [self._evaluator.compiling(one.config) for one in self._pending]
            wait([code for code in codes if code is not None], return_when=FIRST_COMPLETED)
            refused = len(self._refused)
            self._hand_over()
            if len(self._refused) > refused:
                return

    def _finish(self, one: Proposal) -> None:
        """Evaluate what was handed over; store, count and learn its outcome."""
        outcome = self._evaluator.evaluate(one.config)
        seconds = time.monotonic() - self._busy_since
        self._busy_since += seconds
        started = datetime.now() - timedelta(seconds=seconds)
        trial = self._ledger.add(one, outcome, started)
        self._tally.count(trial)
        if self._tally.best is trial:
            self._proposer.suggest(self._residencies(trial))
        self._budget.spend(seconds, self._tally.best_us)
        self._proposer.learn(one.config, one.digest, self._objectives.values(outcome))
        self._ledger.flush(UNWRITTEN * width(self._evaluator))

    def _residencies(self, trial: Known | TrialRecord) -> list[Config]:
        """Return the residencies to try around a measured kernel's; none where they are fixed."""
        if not isinstance(trial.outcome, Measured):
            return []
        problem, gpu = self._evaluator.problem, self._evaluator.gpu
        found = residencies(trial.config, trial.outcome.resources, problem, gpu)
        return [c for c in found if self._candidates.holds(c) and not self._candidates.is_tried(c)]

    def _state_residency(self, winner: TrialRecord) -> bool:
        """Evaluate a winner with launch bounds for its residency; return whether that was left.

        It may have been proposed, and compiled, but not evaluated.
        """
        resources = winner.outcome.resources
        if resources.is_stated(winner.config) is not False:
            return False
        stated = replace(winner.config, min_blocks=resources.resident_blocks)
        wanted = next((one for one in self._pending if one.config == stated), None)
        if stated in self._residencies(winner):
            wanted = self._proposer.of(stated, Origin.RESIDENCY)
        if wanted is None or not self._ledger.run([wanted])[0]:
            return False
        if wanted in self._pending:
            self._pending.remove(wanted)
        self._busy_since = time.monotonic()
        self._finish(wanted)
        return True

    def _offered_again(self) -> Proposal | None:
        """Return a proposal that another process had RUNNING, and did not finish since."""
        for digest, (proposal, counted) in self._refused.items():
            if digest not in self._of_others and self._tally.trials - counted >= REOFFERED_AFTER:
                del self._refused[digest]
                return proposal
        return None

    def _has_room(self) -> bool:
        """Return whether one more proposal would be evaluated, or compete with those that are.

        As many compete until the end: else the last kernels would be those that were never chosen.
        """
        if self._proposer.chooses:
            return self._budget.room(len(self._begun))
        return self._budget.room(self._on_their_way)

    @property
    def _on_their_way(self) -> int:
        """Proposals that compile, wait for the GPU, or are evaluated."""
        return len(self._pending) + len(self._begun)

    def conclude(self, rounds: int) -> SearchResult:
        """Re-measure the best, and sum up."""
        tally, evaluator = self._tally, self._evaluator
        self._ledger.flush()
        self._learn(self._ledger.heard())
        if not self._ledger.records:
            raise NotFound(_nothing_usable(evaluator, tally))
        self._tell_progress("finals")
        finals = self._finals(rounds)
        environment = replace(evaluator.environment, limit_us=finals.limit_us)
        kept = self._ledger.conclude(finals, environment, self._ended)
        return SearchResult(
            study=self._ledger.name,
            problem=evaluator.problem,
            environment=environment,
            finals=finals,
            trials=tally.trials + self._duplicates,
            measured=tally.measured_now,
            duplicates=self._duplicates,
            rejected=dict(tally.rejected),
            elapsed_s=self._budget.elapsed_s,
            seed=self._seed,
            replayed=is_replay(evaluator),
            exhausted=self._exhausted,
            stopped=self._budget.no_gain,
            objectives=self._objectives,
            attempts=self._ledger.attempts,
            where=self._where,
            ended=self._ended,
            passed_over=self._ledger.passed_over,
            superseded="" if kept else _superseded(self._ledger.name),
            changed=_changed(self._proposer),
            is_one_of_several=must_be_named(
                self._storage,
                self._ledger.name,
                evaluator.problem,
                Goal(self._objectives, environment.accuracy),
            ),
        )

    def _finals(self, rounds: int) -> Finals:
        """Time the best in turn.

        A winner whose launch bounds do not state its residency is evaluated with bounds that do,
        which is one kernel more than was asked for, and the finals are held again.
        """
        if self._objectives.is_front:
            front = front_contenders(self._ledger.records)
            return time_in_turn(self._evaluator, front, rounds)
        finals = run_finals(self._evaluator, self._ledger.records, rounds, self._objectives)
        for _ in range(MOST_AGAIN):
            if not self._state_residency(finals.winner.trial):
                break
            self._ledger.flush()
            finals = run_finals(self._evaluator, self._ledger.records, rounds, self._objectives)
        return finals

    @property
    def _ended(self) -> str:
        """Why no more kernels were evaluated."""
        if self._budget.no_gain:
            return self._budget.no_gain
        if self._exhausted:
            return "there was nothing left to try"
        if self._budget.remaining_trials == 0:
            return "as many kernels as were asked for were evaluated"
        return "the time that was asked for was used up"

    def close(self, *, has_failed: bool) -> None:
        """Store what finished; delete a study in which nothing did, if the search has failed."""
        self._ledger.close()
        if has_failed:
            self._ledger.delete_if_empty()

    def _learn(self, trials: Iterable[Known]) -> None:
        """Learn the trials of earlier runs of the study, or of other processes."""
        for trial in trials:
            self._of_others.add(trial.digest)
            values = self._objectives.values(trial.outcome)
            self._proposer.learn(trial.config, trial.digest, values)
            self._tally.recall(trial)

    @property
    def _duplicates(self) -> int:
        """Number of proposals without a trial: their code was known, or is another process's."""
        return self._proposer.duplicates + len(self._refused)

    def _add_illegal(self, config: Config, rule: Rule, origin: Origin) -> None:
        outcome = Rejected(Stage.INVALID, rule.reason(config))
        self._tally.count(self._ledger.add(Proposal(config, "", origin), outcome, datetime.now()))

    def _tell_progress(self, phase: str, pending: int = 0) -> None:
        if self._on_progress is None:
            return
        tally, budget = self._tally, self._budget
        if tally.best and tally.best.trial.number < 0:  # it is shown by its number
            self._ledger.flush()
        left, remaining = self._candidates.left(), budget.remaining_trials
        if left is not None and remaining is not None:
            remaining = min(remaining, left + pending)
        self._on_progress(
            Progress(
                trials=tally.trials + self._duplicates,
                measured=tally.measured_now,
                rejected=dict(tally.rejected),
                best_trial=tally.best.trial.number if tally.best else None,
                best_us=tally.best_us,
                limit_us=self._evaluator.environment.limit_us,
                elapsed_s=budget.elapsed_s,
                remaining_s=budget.remaining_s,
                remaining_trials=remaining,
                phase=phase,
                workers=tuple(self._evaluator.workers or ()),
            )
        )


def is_replay(evaluator: Evaluator) -> bool:
    """Return whether outcomes come from a recording."""
    return evaluator.catalogue is not None


def evaluator_study(
    evaluator: Evaluator, objectives: Objectives = Objectives.TIME, where: Where | None = None
) -> str:
    """Return the name of the study that a search with `evaluator` belongs to."""
    environment, replayed = evaluator.environment, is_replay(evaluator)
    version = environment.space_version
    if replayed and version != space_version(evaluator.problem):
        # Parameters' values may differ between the two: such trials fit no common study.
        version += f" in {space_version(evaluator.problem)}"
    whose = (evaluator.problem, environment, version, objectives, where)
    return study_name(*whose, replayed=replayed)


def _candidates(evaluator: Evaluator, space: Space, where: Where) -> Candidates:
    """Return what may be proposed. Raises InvalidInput where a restriction leaves nothing."""
    if evaluator.catalogue is None:
        return SpaceCandidates(space)
    left = [
        config
        for config in evaluator.catalogue
        if all(getattr(config, name) in values for name, values in where.items())
    ]
    if where and not left:
        raise InvalidInput(
            f"where leaves none of the {len(evaluator.catalogue)} recorded kernels: "
            f"{where_words(where)}; name other values"
        )
    return RecordedCandidates(left, space.parameters)


def _check_errors_are_known(evaluator: Evaluator) -> None:
    """Raise InvalidInput for a recording whose kernels have no error in ulps."""
    outcomes = map(evaluator.evaluate, evaluator.catalogue or ())
    if any(isinstance(o, Measured) and o.max_ulp is None for o in outcomes):
        raise InvalidInput(
            f"the recording of {evaluator.problem} has no errors in ulps, which are to be "
            "minimised; make it again with explorer record, or search for time alone"
        )


def _superseded(study: str) -> str:
    return (
        f"study '{study}' keeps the finals of another process, which knew of more trials: explorer "
        "show prints them, and these are printed alone"
    )


def _changed(proposer: Proposer) -> str:
    """Say how many configs of the user's sampler were repaired, and how far."""
    far = [changes for changes in proposer.repaired if changes]
    if not far:
        return ""
    return (
        f"of the {len(proposer.repaired)} configs that sampler {proposer.sampler} proposed, "
        f"{len(far)} broke a rule or had been tried before: each was repaired to the nearest one "
        f"that is left, which differs in {fmean(far):.1f} values in the mean, {max(far)} at most"
    )


def _nothing_usable(evaluator: Evaluator, tally: Tally) -> str:
    stages = ", ".join(f"{count} {stage}" for stage, count in tally.rejected.most_common())
    return (
        f"no kernel for {evaluator.problem} could be used: {tally.trials} tried "
        f"({stages or 'none rejected'}); give the search more trials or a larger "
        "budget"
    )
