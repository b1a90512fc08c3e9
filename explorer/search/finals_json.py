"""Finals as one line of JSON, kept with the study, and back."""

import json
from dataclasses import asdict
from typing import Any

from explorer.config import Config
from explorer.outcome import Measured, Resources
from explorer.search.results import Finalist, Finals, TrialRecord


def finals_to_json(finals: Finals) -> str:
    """All of it, the contenders' configs and resources included."""
    return json.dumps(asdict(finals), separators=(",", ":"))


def finals_from_json(text: str) -> Finals:
    """Read what `finals_to_json` wrote."""
    values = json.loads(text)
    return Finals(**{**values, "finalists": tuple(map(_finalist, values["finalists"]))})


def _finalist(values: dict[str, Any]) -> Finalist:
    changed = {"trial": _trial(values["trial"]), "samples_us": tuple(values["samples_us"])}
    return Finalist(**{**values, **changed})


def _trial(values: dict[str, Any]) -> TrialRecord:
    outcome = values["outcome"]
    measured = Measured(
        samples_us=tuple(outcome["samples_us"]),
        error=outcome["error"],
        resources=Resources(**outcome["resources"]),
        digest=outcome["digest"],
        max_ulp=outcome.get("max_ulp"),
        mean_ulp=outcome.get("mean_ulp"),
    )
    return TrialRecord(values["number"], Config.from_dict(values["config"]), measured)
