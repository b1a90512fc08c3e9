"""What `--json` prints of finals: the contenders, the front, a trial."""

from typing import Any

from explorer.outcome import Measured
from explorer.problem import Problem
from explorer.report.commands import reproducing_command
from explorer.report.figures import share_of_copy
from explorer.tuning.goal import Goal
from explorer.tuning.pareto import front_of
from explorer.tuning.results import Finalist, Finals, TrialRecord

Data = dict[str, Any]


def finals_data(finals: Finals, problem: Problem) -> Data:
    """How they were held, copy, and every finalist in order."""
    contenders = enumerate(finals.finalists, start=1)
    return {
        "interleaved": finals.interleaved,
        "rounds": finals.rounds,
        "noise": finals.noise,
        "copy_us": finals.copy_us or None,
        "copy_spread": finals.copy_spread,
        "copy_gbps": problem.gbps(finals.copy_us) if finals.copy_us else None,
        "finalists": [_finalist(rank, f, finals, problem) for rank, f in contenders],
    }


def _finalist(rank: int, finalist: Finalist, finals: Finals, problem: Problem) -> Data:
    return {
        "rank": rank,
        **trial_data(finalist.trial, problem),
        "time_us": finalist.time_us,
        "spread": finalist.spread,
        "gbps": problem.gbps(finalist.time_us),
        "of_copy": share_of_copy(finalist.time_us, finals.copy_us),
        "tied": finalist.tied,
        "ratio_to_best": finalist.ratio_to_best,
        "ratio_low": finalist.ratio_low,
        "ratio_high": finalist.ratio_high,
    }


def trial_data(trial: TrialRecord, problem: Problem) -> Data:
    """A trial as the search measured it."""
    outcome: Measured = trial.outcome
    return {
        "trial": trial.number,
        "time_us": outcome.time_us,
        "spread": outcome.spread,
        "gbps": problem.gbps(outcome.time_us),
        "config": trial.config.as_dict(),
        "registers": outcome.resources.registers,
        "shared_bytes": outcome.resources.shared_bytes,
        "spill_bytes": outcome.resources.spill_store_bytes + outcome.resources.spill_load_bytes,
        "code_bytes": outcome.resources.code_bytes,
        "error": outcome.error,
        "max_ulp": outcome.max_ulp,
        "mean_ulp": outcome.mean_ulp,
        "digest": outcome.digest,
    }


def winner_data(finals: Finals, problem: Problem) -> Data:
    """The winner, as it is among the finalists."""
    return _finalist(1, finals.winner, finals, problem)


def front_data(
    finals: Finals, problem: Problem, goal: Goal, storage: str | None = None
) -> list[Data]:
    """The Pareto front, the fastest first: the finalist, how it compares with the next, emit."""
    return [
        {
            **_finalist(rank, member.finalist, finals, problem),
            "ratio_to_next": member.to_next.median if member.to_next else None,
            "tied_with_next": member.tied,
            "emit": reproducing_command(member.finalist.trial, problem, goal, storage),
        }
        for rank, member in enumerate(front_of(finals), start=1)
    ]
