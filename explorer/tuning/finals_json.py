"""Finals as one line of JSON, kept with the study, and back."""

import json
from dataclasses import asdict
from typing import Any

from explorer.errors import InvalidInput
from explorer.plain_data import parse_json, read_fields, read_time_us, shown
from explorer.tuning.objectives import Objectives
from explorer.tuning.results import Finals
from explorer.tuning.ties import check_rows


def finals_to_json(finals: Finals) -> str:
    """All of it, the contenders' configs and resources included."""
    return json.dumps(asdict(finals), separators=(",", ":"))


def finals_from_json(text: Any, objectives: Objectives = Objectives.TIME) -> Finals:
    """Read what `finals_to_json` wrote of a study with these objectives; raises InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(f"finals is {shown(text)}; it must be JSON as text")
    finals = read_fields(Finals, parse_json(text, "finals"), "finals")
    if not finals.finalists:
        raise InvalidInput("finalists is empty; finals have a winner")
    check_rows([finalist.samples_us for finalist in finals.finalists])
    for finalist in finals.finalists:
        read_time_us(finalist.time_us, "time_us")
        if objectives is Objectives.TIME_ERROR and finalist.trial.outcome.max_ulp is None:
            raise InvalidInput("finals has a finalist without max_ulp, which its study minimises")
    return finals
