"""What a study and its trials keep, as attributes of Optuna's, and how it is read back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from explorer.model.config import Config, brief_words
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, TrialRecord
from explorer.model.problem import Problem
from explorer.model.query import command_of
from explorer.system.plain_data import read_text, read_whole, shown
from explorer.tuning.contest import Finals, finals_to_json
from explorer.tuning.objective import Objectives, Where

# ------------------------------------------------------------------ a study, and one of its trials


@dataclass(frozen=True, slots=True)
class StudyIdentity:
    """All that is needed to create a study, and its trials."""

    name: str
    problem: Problem
    objectives: Objectives
    environment: Environment
    seed: int
    distributions: Mapping[str, CategoricalDistribution]
    where: Where = field(default_factory=dict)

    def described(self, environment: Environment | None = None) -> dict[str, Any]:
        """Return the attributes that tell of the environment, its own or another, and the seed."""
        environment = environment or self.environment
        attributes = {"circumstances": environment.as_dict(), "limit_us": environment.limit_us}
        return {**attributes, "seed": self.seed}

    def trial(
        self, config: Config, outcome: Outcome | None, digest: str, origin: str, started: datetime
    ) -> FrozenTrial:
        """Return a new trial: COMPLETE if a kernel was measured, PRUNED if rejected, else RUNNING.

        Each of its attributes is a row of the storage. A dashboard draws those that are numbers: so
        some are kept that could be computed.
        """
        attributes = {"digest": digest, "origin": origin, "config": brief_words(config)}
        attributes["emit"] = _emit_command(config, self.problem)
        measured = outcome if isinstance(outcome, Measured) else None
        ended = TrialState.COMPLETE if measured else TrialState.PRUNED
        trial = create_trial(
            state=ended if outcome else TrialState.RUNNING,
            values=self.objectives.values(measured) if measured else None,
            params=config.as_dict(),
            distributions=dict(self.distributions),
            user_attrs={**attributes, **self._of_outcome(outcome)},
        )
        trial.datetime_start = started
        return trial

    def _of_outcome(self, outcome: Outcome | None) -> dict[str, Any]:
        """Return what a trial keeps of an outcome."""
        if outcome is None:
            return {}
        if isinstance(outcome, Rejected):
            return {"stage": str(outcome.stage), "reason": outcome.reason}
        limit_us, resources = self.environment.limit_us, outcome.resources
        return {
            "samples_us": [round(sample, 4) for sample in outcome.samples_us],
            "spread": round(outcome.spread, 5),
            "error": outcome.error,
            "max_ulp": outcome.max_ulp,
            "mean_ulp": outcome.mean_ulp,
            "registers": resources.registers,
            **({"resident_blocks": blocks} if (blocks := resources.resident_blocks) else {}),
            "spill_bytes": resources.spill_store_bytes + resources.spill_load_bytes,
            "shared_bytes": resources.shared_bytes,
            "gbps": round(self.problem.gbps(outcome.time_us), 1),
            **({"of_limit": round(limit_us / outcome.time_us, 4)} if limit_us else {}),
            "resources": asdict(resources),
        }


def _emit_command(config: Config, problem: Problem, end: str = " ") -> str:
    return command_of("emit", config.to_json(brief=True), problem, end)


_ON_TWO_LINES = " \\\n  "
"""Dashboards do not wrap code, and make a page as wide as its longest line."""


def to_outcome(
    attributes: dict[str, Any], objectives: Objectives = Objectives.TIME
) -> Outcome | None:
    """Return the outcome that a trial kept; None where it has none, or is not one of ours.

    Raises InvalidInput for a damaged one, and for one without what a study minimises.
    """
    if "stage" in attributes:
        return Rejected.from_dict({"reason": "", **attributes})
    if not attributes.get("samples_us"):
        return None
    least = {"error": 0.0, "resources": {"registers": 0}, "digest": ""}
    measured = Measured.from_dict({**least, **attributes})
    if objectives.is_front and measured.max_ulp is None:
        raise InvalidInput("it has no max_ulp, which its study minimises")
    return measured


def read_trials(
    trials: Iterable[FrozenTrial], objectives: Objectives, faults: dict[int, str]
) -> Iterator[tuple[FrozenTrial, Config, Outcome]]:
    """Yield the finished trials, each with its config and its outcome.

    Those that cannot be read are passed over, and `faults` get by number what is wrong with them.
    Raises InvalidInput where a trial has no number.
    """
    for trial in trials:
        number = read_whole(trial.number, "the number of a trial")
        try:
            outcome = to_outcome(trial.user_attrs, objectives)
            if outcome is not None:
                yield trial, Config.from_dict(trial.params), outcome
        except InvalidInput as error:
            faults[number] = str(error)


def passed_over(faults: Mapping[int, str], study: str) -> str:
    """Return a sentence on the trials of a study that cannot be read; empty where there is none.

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


def finals_to_attributes(finals: Finals, problem: Problem) -> dict[str, Any]:
    """Return the finals as JSON, in parts, how many these are, and the verdict in words."""
    parts, winner = _in_parts(finals_to_json(finals)), finals.winner
    time = _time(winner.time_us, finals.limit_us, problem)
    verdict = f"trial {winner.trial.number}: {time}, by the finals"
    numbered = {f"finals:{n}": part for n, part in enumerate(parts)}
    return {**numbered, "finals_parts": len(parts), "best": verdict}


def finals_text(attributes: Mapping[str, Any]) -> str | None:
    """Return the JSON that `finals_to_attributes` kept, or an earlier version in one attribute.

    None where there were no finals. Raises InvalidInput where a part is not there.
    """
    if "finals_parts" not in attributes:
        whole = attributes.get("finals")
        return None if whole is None else read_text(whole, "finals")
    number = read_whole(attributes["finals_parts"], "finals_parts", 1)
    if number > len(attributes):
        raise InvalidInput(f"its finals are in {shown(number)} parts, which are not there")
    return "".join(read_text(attributes.get(f"finals:{n}"), f"finals:{n}") for n in range(number))


def _in_parts(text: str) -> list[str]:
    """Return a text in parts of MOST_CHARACTERS at most; one at least."""
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


def _time(time_us: float, limit_us: float, problem: Problem) -> str:
    told = f"{time_us:.2f} µs a launch", problem.of_limit(time_us, limit_us)
    return ", ".join(filter(None, told))


def why_finals_count(finals: Finals) -> str:
    """Return two sentences: why the finals say which kernel is the best, and no first time does."""
    how = "timed the fastest kernels again, in turn"
    if not finals.interleaved:
        how = "compare more samples of the fastest kernels"
    return f"A single time may be luck. The finals {how}, so that their verdict counts."


def note_of(finals: Finals, problem: Problem, fastest: TrialRecord) -> str:
    """Write what a dashboard shows of a study, as Markdown: the verdict, and why it may seem wrong.

    `fastest` is the trial whose own time is least, which a dashboard calls the best.
    """
    winner, others = finals.winner.trial, len(finals.ties) - 1
    more = []
    if others:
        many = "1 other finalist ties" if others == 1 else f"{others} other finalists tie"
        more.append(
            f"{many} with it: their times cannot be told apart. Of kernels that tie, one of "
            "which other compilers give an SM no fewer blocks is the best, then the one with fewer "
            "registers, then the one with shorter code."
        )
    if fastest.number != winner.number:
        more.append(
            f"The dashboard calls trial {fastest.number} the best, because its time in the "
            f"search is the least: {fastest.outcome.time_us:.2f} µs. {why_finals_count(finals)} "
            "Trials have it as `finals_rank`, `finals_us` and `finals_tied`."
        )
    time = _time(finals.winner.time_us, finals.limit_us, problem)
    head = f"**{problem}**: the best is trial {winner.number}, {time}."
    return _kernel_note(head, winner.config, problem, more)


def _kernel_note(head: str, config: Config, problem: Problem, more: Sequence[str]) -> str:
    config_words, command = brief_words(config), _emit_command(config, problem, _ON_TWO_LINES)
    last = ("This command writes its source:", f"```\n{command}\n```")
    return "\n\n".join((head, f"Its config: {config_words}.", *more, *last))


def notes_of(
    finals: Finals,
    study: StudyIdentity,
    records: Sequence[TrialRecord],
    ids: Mapping[int, int],
    existing: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the notes that optuna-dashboard shows of a study and its trials, as it keeps them.

    `ids` are those of the trials by their numbers. A trial that has a note `there` keeps it.
    """
    fastest = min(records, key=lambda trial: trial.outcome.time_us)
    parts = _in_parts(note_of(finals, study.problem, fastest))
    notes: dict[str, Any] = {f"dashboard:note_str:{n}": part for n, part in enumerate(parts)}
    notes["dashboard:note_ver"] = existing.get("dashboard:note_ver", 0) + 1
    for trial in records:
        place = f"dashboard:{ids[trial.number]}:note_"
        if f"{place}ver" not in existing:
            notes[f"{place}ver"] = 1
            notes[f"{place}str:0"] = trial_note(trial, study.problem, study.environment.limit_us)
    return notes


def trial_note(trial: TrialRecord, problem: Problem, limit_us: float) -> str:
    """Return what a dashboard shows of a measured trial, as Markdown."""
    outcome, resources = trial.outcome, trial.outcome.resources
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    ulp = outcome.max_ulp
    more = [
        f"It takes {resources.registers} registers a thread and {resources.shared_bytes} bytes of "
        f"shared memory a block, and spills {spilled or 'no'} bytes.",
        *filter(None, [resources.residency(trial.config)]),
    ]
    if ulp is not None:
        more.append(f"Its largest error is {ulp:.3g} units in the last place.")
    head = f"**{_time(outcome.time_us, limit_us, problem)}**, in the search."
    return _kernel_note(head, trial.config, problem, more)
