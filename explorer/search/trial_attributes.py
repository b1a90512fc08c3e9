"""Outcomes as Optuna's user attributes, and back."""

from dataclasses import asdict
from typing import Any

from explorer.outcome import Measured, Outcome, Rejected, Resources, Stage


def to_attributes(outcome: Outcome, digest: str, origin: str) -> dict[str, Any]:
    """What a trial keeps of an outcome. Few entries: each costs Optuna's storage half a ms."""
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


def to_outcome(attributes: dict[str, Any]) -> Outcome | None:
    """The outcome that `to_attributes` kept, or None where a trial is not one of ours."""
    if "stage" in attributes:
        return Rejected(Stage(attributes["stage"]), attributes.get("reason", ""))
    if not attributes.get("samples_us"):
        return None
    return Measured(
        samples_us=tuple(attributes["samples_us"]),
        error=attributes.get("error", 0.0),
        resources=Resources(**attributes.get("resources", {"registers": 0})),
        digest=attributes.get("digest", ""),
        max_ulp=attributes.get("max_ulp"),
        mean_ulp=attributes.get("mean_ulp"),
    )
