"""Outcomes as Optuna's user attributes, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from explorer.errors import InvalidInput
from explorer.outcome import Measured, Outcome, Rejected
from explorer.tuning.objectives import Objectives


def to_attributes(outcome: Outcome, digest: str, origin: str) -> dict[str, Any]:
    """What a trial keeps of an outcome; each entry is a row of the storage."""
    kept: dict[str, Any] = {"digest": digest, "origin": origin}
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
        "resources": asdict(outcome.resources),
    }


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
