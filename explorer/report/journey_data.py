"""A journey as JSON: what was measured, and for readers what follows from it; read back as well."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.errors import InvalidInput
from explorer.plain_data import parse_json
from explorer.presets import REPORTED, ReportedRatio, find_preset
from explorer.report.figures import share_of_copy
from explorer.tuning.journey_results import BEST, Journey, Step
from explorer.user_files import read_text


@dataclass(frozen=True, slots=True)
class Beside:
    """A published ratio and ours."""

    reported: ReportedRatio
    ours: float


def beside_reported(journey: Journey) -> list[Beside]:
    """The published ratios of which the journey has both kernels, as steps of their own."""
    found = []
    for reported in REPORTED:
        slower, faster = journey.find(reported.slower), journey.find(reported.faster)
        if slower is not None and faster is not None and slower is not faster:
            found.append(Beside(reported, journey.speedup(slower, faster).median))
    return found


def source_words(journey: Journey, step: Step) -> str:
    """Where a step's kernel is from: the publication, or the study."""
    return journey.best_from if step.name == BEST else str(find_preset(step.name).source)


def pairs(journey: Journey) -> Iterator[tuple[Step | None, Step]]:
    """Each step with the one before it; the first with None."""
    return zip((None, *journey.steps), journey.steps, strict=False)


def journey_data(journey: Journey) -> dict[str, Any]:
    """What `Journey.as_dict` has, with times, ratios and ties for each step, and reported ratios.

    Times are microseconds (`_us`), bandwidths 1e9 bytes a second, shares fractions of 1.
    """
    data = journey.as_dict()
    for entry, (before, step) in zip(data["steps"], pairs(journey), strict=True):
        entry |= _derived(journey, before, step)
    return {
        **data,
        "noise": journey.noise,
        "copy_time_us": journey.copy_time_us or None,
        "reported": [
            {
                "slower": beside.reported.slower,
                "faster": beside.reported.faster,
                "low": beside.reported.low,
                "high": beside.reported.high,
                "where": beside.reported.where,
                "publication": beside.reported.publication,
                "ours": beside.ours,
            }
            for beside in beside_reported(journey)
        ],
    }


def _derived(journey: Journey, before: Step | None, step: Step) -> dict[str, Any]:
    first, best = journey.steps[0], journey.steps[-1]
    changed = {} if before is None else before.config.differences(step.config)
    return {
        "time_us": step.time_us,
        "spread": step.spread,
        "gbps": journey.problem.gbps(step.time_us),
        "of_copy": share_of_copy(step.time_us, journey.copy_time_us),
        "over_first": journey.speedup(first, step).median,
        "over_previous": None if before is None else journey.speedup(before, step).median,
        "tied_with_previous": before is not None and journey.is_tie(before, step),
        "tied_with_fastest": journey.is_tie(step, best),
        "changed": {name: list(values) for name, values in changed.items()},
        "source": source_words(journey, step),
    }


def read_journey(path: Path) -> Journey:
    """The journey that a file keeps; raises InvalidInput for a file that keeps none."""
    text = read_text(path, remedy="name a kept journey")
    try:
        return Journey.from_dict(parse_json(text, "its text"))
    except InvalidInput as error:
        raise InvalidInput(
            f"{path} keeps no journey of this version: {error}; name a file that "
            "explorer journey --save wrote"
        ) from None
