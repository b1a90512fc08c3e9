"""What a study and its trials keep, as attributes of Optuna's, and how it is read back."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from explorer.asked import AskedProblem
from explorer.config import Config
from explorer.config_words import brief_words
from explorer.errors import InvalidInput
from explorer.outcome import Measured, Outcome, Rejected
from explorer.plain_data import read_text, read_whole, shown
from explorer.problem import Problem
from explorer.tuning.objective import Objectives
from explorer.tuning.results import Finals, TrialRecord, finals_to_json

# --------------------------------------------------- outcomes as Optuna's user attributes, and back


def to_attributes(
    config: Config, outcome: Outcome, digest: str, origin: str, problem: Problem, copy_us: float
) -> dict[str, Any]:
    """What a trial keeps of an outcome; each entry is a row of the storage.

    A dashboard draws those that are numbers: so some are kept that could be computed.
    """
    kept: dict[str, Any] = {"digest": digest, "origin": origin}
    kept |= {"config": brief_words(config), "emit": _emit_command(config, problem)}
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


def finished_trial(
    config: Config,
    outcome: Outcome,
    attributes: dict[str, Any],
    objectives: Objectives,
    distributions: Mapping[str, CategoricalDistribution],
    started: datetime,
    completed: datetime,
) -> FrozenTrial:
    """A trial of Optuna's that can be stored: COMPLETE if it was measured, else PRUNED."""
    measured = isinstance(outcome, Measured)
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=TrialState.COMPLETE if measured else TrialState.PRUNED,
        value=None,
        values=objectives.values(outcome) if measured else None,
        datetime_start=started,
        datetime_complete=completed,
        params=config.as_dict(),
        distributions=dict(distributions),
        user_attrs=attributes,
        system_attrs={},
        intermediate_values={},
    )


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
    share = f", {100 * finals.copy_us / winner.time_us:.1f} % of copy" if finals.copy_us else ""
    lines = [
        f"**{problem}**: the best is trial {winner.trial.number}, {winner.time_us:.2f} µs{share}.",
        f"Its config: {brief_words(winner.trial.config)}.",
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


def trial_note(trial: TrialRecord, problem: Problem) -> str:
    """What a dashboard shows of a measured trial, as Markdown."""
    told = f"{brief_words(trial.config)}: {trial.outcome.time_us:.2f} µs"
    return f"{told}\n\n```\n{_emit_command(trial.config, problem)}\n```"
