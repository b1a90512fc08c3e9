"""A study in its storage: what is known of a problem's kernels, and where finished trials go."""

import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from explorer.asked import AskedProblem
from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.outcome import Circumstances, Measured, Outcome, Rejected, Stage
from explorer.plain_data import read_text, read_whole, shown
from explorer.problem import Problem
from explorer.tuning.objective import Objectives
from explorer.tuning.results import Finals, finals_to_json
from explorer.tuning.storage import BulkStorage, said_of

# --------------------------------------------------- outcomes as Optuna's user attributes, and back


def to_attributes(
    config: Config, outcome: Outcome, digest: str, origin: str, problem: Problem, copy_us: float
) -> dict[str, Any]:
    """What a trial keeps of an outcome; each entry is a row of the storage.

    A dashboard draws those that are numbers: so some are kept that could be computed.
    """
    kept: dict[str, Any] = {"digest": digest, "origin": origin}
    kept["emit"] = _emit_command(config, problem)
    if isinstance(outcome, Rejected):
        return {**kept, "stage": str(outcome.stage), "reason": outcome.reason}
    return {
        **kept,
        "samples_us": [round(sample, 4) for sample in outcome.samples_us],
        "spread": round(outcome.spread, 5),
        "error": outcome.error,
        "max_ulp": outcome.max_ulp,
        "mean_ulp": outcome.mean_ulp,
        "registers": outcome.resources.registers,
        "spill_bytes": outcome.resources.spill_store_bytes + outcome.resources.spill_load_bytes,
        "shared_bytes": outcome.resources.shared_bytes,
        "gbps": round(problem.gbps(outcome.time_us), 1),
        **({"of_copy": round(copy_us / outcome.time_us, 4)} if copy_us else {}),
        "resources": asdict(outcome.resources),
    }


def _emit_command(config: Config, problem: Problem) -> str:
    words = ["explorer", "emit", config.to_json(brief=True), *AskedProblem.of(problem).options]
    return shlex.join(words)


def to_outcome(
    attributes: dict[str, Any], objectives: Objectives = Objectives.TIME
) -> Outcome | None:
    """The outcome that `to_attributes` kept, or None where a trial is not one of ours.

    Raises InvalidInput for a damaged one, and for one without what a study minimises.
    """
    if "stage" in attributes:
        return Rejected.from_dict({"reason": "", **attributes})
    if not attributes.get("samples_us"):
        return None
    least = {"error": 0.0, "resources": {"registers": 0}, "digest": ""}
    measured = Measured.from_dict({**least, **attributes})
    if objectives is Objectives.TIME_ERROR and measured.max_ulp is None:
        raise InvalidInput("it has no max_ulp, which its study minimises")
    return measured


def passed_over(faults: Mapping[int, str], study: str) -> str:
    """A sentence on the trials of a study that cannot be read; empty where there is none.

    `faults` says by number what is wrong with each.
    """
    if not faults:
        return ""
    first, fault = min(faults.items())
    trials = "1 trial" if len(faults) == 1 else f"{len(faults)} trials"
    return f"{trials} of study '{study}' passed over, which cannot be read: trial {first}: {fault}"


# ------------------------------------------------------------------ finals, as attributes
# No attribute takes more than 2 kB: dashboards list them, and a column of MySQL has 2048 bytes.


MOST_CHARACTERS = 1600
"""Quotation marks within take two each."""


def finals_to_attributes(finals: Finals) -> dict[str, Any]:
    """The finals as JSON, in parts, and how many these are."""
    parts = in_parts(finals_to_json(finals))
    return {**{f"finals:{n}": part for n, part in enumerate(parts)}, "finals_parts": len(parts)}


def finals_text(attributes: Mapping[str, Any]) -> str | None:
    """The JSON that `finals_to_attributes` kept, or an earlier version in one attribute.

    None where there were no finals. Raises InvalidInput where a part is not there.
    """
    if "finals_parts" not in attributes:
        whole = attributes.get("finals")
        return None if whole is None else read_text(whole, "finals")
    number = read_whole(attributes["finals_parts"], "finals_parts", 1)
    if number > len(attributes):
        raise InvalidInput(f"its finals are in {shown(number)} parts, which are not there")
    return "".join(read_text(attributes.get(f"finals:{n}"), f"finals:{n}") for n in range(number))


def in_parts(text: str) -> list[str]:
    """A text in parts of MOST_CHARACTERS at most; one at least."""
    starts = range(0, max(1, len(text)), MOST_CHARACTERS)
    return [text[start : start + MOST_CHARACTERS] for start in starts]


def verdict_of(finals: Finals) -> dict[int, dict[str, Any]]:
    """By the number of a finalist's trial, what the finals say of it."""
    return {
        finalist.trial.number: {
            "finals_rank": rank,
            "finals_us": round(finalist.time_us, 4),
            "finals_of_best": round(finalist.ratio_to_best, 5),
            "finals_tied": finalist.tied,
        }
        for rank, finalist in enumerate(finals.finalists, 1)
    }


def note_of(finals: Finals, problem: Problem, fastest: int) -> str:
    """What a dashboard shows of a study, as Markdown: the verdict, and why it may seem another.

    `fastest` is the number of the trial whose own time is least, which a dashboard calls the best.
    """
    winner = finals.winner
    command = _emit_command(winner.trial.config, problem)
    ties = sum(finalist.tied for finalist in finals.finalists) - 1
    share = f", {finals.copy_us / winner.time_us:.1%} of copy" if finals.copy_us else ""
    lines = [
        f"**{problem}**: the best is trial {winner.trial.number}, {winner.time_us:.2f} µs{share}.",
        f"{ties} other finalists are tied with it. Ties are ordered by registers, then code size.",
        f"```\n{command}\n```",
    ]
    if fastest != winner.trial.number:
        lines.append(
            f"A dashboard's best is trial {fastest}, whose time in the search was the least. The "
            "finals timed the fastest trials again, in turn: their verdict counts, and stands on "
            "the trials as finals_rank, finals_us and finals_tied."
        )
    return "\n\n".join(lines)


# ------------------------------------------------------------------ the study


_REMEDY = "mend the storage or name another with --storage, and run the same command again"

UNWRITTEN = 1
"""Trials that wait to be stored at most, so that hardly more than what is measured is ever lost."""

UNWRITTEN_OF_REPLAYS = 8
"""A replay's trials can be had again, and it would wait for the disk: 7 ms a trial."""

NOTE_VERSION, NOTE_PART = "dashboard:note_ver", "dashboard:note_str:"
"""Where optuna-dashboard keeps the note of a study, in parts."""

METRIC_NAMES = "study:metric_names"
"""Where Optuna keeps what a study's values are called."""


class Ledger:
    """Opens or creates the study `name`; a trial enters in one transaction, finished.

    So no trial is ever left running, whenever the process ends; one that another program left
    running is told FAIL.
    """

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        problem: Problem,
        distributions: dict[str, CategoricalDistribution],
        objectives: Objectives = Objectives.TIME,
        most_unwritten: int = UNWRITTEN,
    ) -> None:
        self.name = name
        self._most_unwritten = most_unwritten
        self._storage = storage
        self._distributions = distributions
        self._objectives = objectives
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._unwritten: deque[Future[int]] = deque()
        self._faults: dict[int, str] = {}
        self._problem = problem
        self._copy_us = 0.0
        described = problem.as_dict()
        with _writing():
            self._study_id = _open_study(storage, name, objectives)
            self._set(problem=described, objectives=str(objectives))
            storage.set_study_system_attr(self._study_id, METRIC_NAMES, objectives.metrics)
            self._fail_running()

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be used; empty where there is none."""
        return passed_over(self._faults, self.name)

    def known(self, holds: Callable[[Config], bool]) -> Iterator[tuple[int, Config, str, Outcome]]:
        """Number, config, digest and outcome of the trials that evaluated a kernel.

        What cannot be read, and a config that the search does not hold, is passed over.
        """
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        with said_of(f"study '{self.name}' cannot be read", _REMEDY):
            found = self._storage.get_all_trials(self._study_id, deepcopy=False, states=states)
        for trial in found:
            number = read_whole(trial.number, f"study '{self.name}': the number of a trial")
            try:
                outcome = to_outcome(trial.user_attrs, self._objectives)
                digest = read_text(trial.user_attrs.get("digest", ""), "digest")
                if outcome is not None and digest:
                    config = Config.from_dict(trial.params)
                    if not holds(config):
                        raise InvalidInput(
                            f"its config {shown(config.to_json(brief=True))} is none of those "
                            "that are searched"
                        )
                    yield number, config, digest, outcome
            except InvalidInput as error:
                self._faults[number] = str(error)

    def add(
        self, config: Config, outcome: Outcome, *, digest: str, origin: str, started: datetime
    ) -> Future[int]:
        """Store a finished trial in the background, COMPLETE or PRUNED; gives its number.

        Raises what an earlier trial met, so at most `most_unwritten` evaluated trials are lost if
        the storage fails. What a rule excludes is not waited for: it cost nothing to find.
        """
        if not (isinstance(outcome, Rejected) and outcome.stage is Stage.INVALID):
            self._wait(self._most_unwritten - 1)
        trial = self._trial(config, outcome, digest, origin, started)
        self._unwritten.append(self._writer.submit(self._store, trial))
        return self._unwritten[-1]

    def flush(self) -> None:
        """Wait until every trial is stored; raises InvalidInput if one could not be."""
        self._wait(0)

    def _wait(self, most: int) -> None:
        """Wait until no more than `most` trials are to be stored."""
        while self._unwritten and (len(self._unwritten) > most or self._unwritten[0].done()):
            self._unwritten.popleft().result()

    def close(self) -> None:
        """Wait for what is being stored, and end the background thread."""
        self._writer.shutdown()

    def _store(self, trial: FrozenTrial) -> int:
        with _writing():
            trial_id = self._storage.create_new_trial(self._study_id, template_trial=trial)
            return self._storage.get_trial_number_from_id(trial_id)

    def _trial(
        self, config: Config, outcome: Outcome, digest: str, origin: str, started: datetime
    ) -> FrozenTrial:
        measured = isinstance(outcome, Measured)
        return FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.COMPLETE if measured else TrialState.PRUNED,
            value=None,
            values=self._objectives.values(outcome) if measured else None,
            datetime_start=started,
            datetime_complete=datetime.now(),
            params=config.as_dict(),
            distributions=self._distributions,  # type: ignore[arg-type]
            user_attrs=to_attributes(config, outcome, digest, origin, self._problem, self._copy_us),
            system_attrs={},
            intermediate_values={},
        )

    def begin(self, circumstances: Circumstances, seed: int) -> None:
        """Keep when a run began, and its circumstances, unless those of finals are kept."""
        self._copy_us = circumstances.copy_us
        with _writing():
            self._set(searched_at=_now())
            if finals_text(self._storage.get_study_user_attrs(self._study_id)) is None:
                self._describe(circumstances, seed)

    def conclude(
        self, finals: Finals, circumstances: Circumstances, seed: int, fastest: int
    ) -> None:
        """Keep the finals, with the circumstances under which they were held.

        Their verdict stands on the trials as well, and in the note that a dashboard shows.
        `fastest` is the number of the trial of least time in the search.
        """
        note = in_parts(note_of(finals, self._problem, fastest))
        with _writing():
            self._keep_finals(finals)
            self._set(searched_at=_now())
            self._describe(circumstances, seed)
            before = self._storage.get_study_system_attrs(self._study_id).get(NOTE_VERSION, 0)
            for number, part in enumerate(note):
                self._storage.set_study_system_attr(self._study_id, f"{NOTE_PART}{number}", part)
            self._storage.set_study_system_attr(self._study_id, NOTE_VERSION, before + 1)

    def _keep_finals(self, finals: Finals) -> None:
        """Keep the finals on the study and on the trials; in a database all of it, or none."""
        attributes = finals_to_attributes(finals)
        if isinstance(self._storage, BulkStorage):
            self._storage.put_finals(self._study_id, attributes, verdict_of(finals))
        else:
            self._set(**attributes)

    def _describe(self, circumstances: Circumstances, seed: int) -> None:
        values = circumstances.as_dict()
        self._set(circumstances=values, copy_us=circumstances.copy_us, seed=seed)

    def _set(self, **attributes: Any) -> None:
        for key, value in attributes.items():
            self._storage.set_study_user_attr(self._study_id, key, value)

    def _fail_running(self) -> None:
        running = self._storage.get_all_trials(
            self._study_id, deepcopy=False, states=(TrialState.RUNNING,)
        )
        for trial in running:
            self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _open_study(storage: BaseStorage, name: str, objectives: Objectives) -> int:
    try:
        return storage.create_new_study([StudyDirection.MINIMIZE] * objectives.number, name)
    except DuplicatedStudyError:
        return storage.get_study_id_from_name(name)


def _writing() -> AbstractContextManager[None]:
    """A full disk, a lock held too long or a read-only file is the user's to mend."""
    return said_of("the study cannot be written", f"what finished before is kept: {_REMEDY}")
