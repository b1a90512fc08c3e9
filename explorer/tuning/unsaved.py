"""Finished trials that a storage did not take: a file keeps them, `explorer merge` stores them.

The file has lines of JSON: what their study is, then a trial a line.
"""

import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Environment, Rejected, Stage
from explorer.model.problem import Problem
from explorer.system.plain_data import parse_json, read_text, read_whole, shown
from explorer.system.user_files import MAX_TEXT_BYTES
from explorer.system.user_files import read_text as read_file
from explorer.tuning.objective import Objectives
from explorer.tuning.study_attributes import finished_trial, to_outcome

_KIND = "softmax-explorer: trials of a study"

_REMEDY = "name a file that explorer search wrote when its storage went away"


@dataclass(frozen=True, slots=True)
class StudyIdentity:
    """All that is needed to make a study anew."""

    name: str
    problem: Problem
    objectives: Objectives
    environment: Environment
    seed: int
    distributions: Mapping[str, CategoricalDistribution]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return {
            "kind": _KIND,
            "study": self.name,
            "problem": self.problem.as_dict(),
            "objectives": str(self.objectives),
            "circumstances": self.environment.as_dict(),
            "seed": self.seed,
            "parameters": {name: list(d.choices) for name, d in self.distributions.items()},
        }

    @classmethod
    def from_dict(cls, values: Any) -> "StudyIdentity":
        """Read a study's line. Raises InvalidInput."""
        if not isinstance(values, dict) or values.get("kind") != _KIND:
            raise InvalidInput("it does not begin with a study")
        parameters = values.get("parameters")
        if not isinstance(parameters, dict) or not all(_is_choices(v) for v in parameters.values()):
            raise InvalidInput("its parameters are no lists of values")
        name = read_text(values.get("study"), "study")
        problem = Problem.from_dict(values.get("problem"))
        environment = Environment.from_dict(values.get("circumstances"))
        if not name.startswith(f"{problem} | {environment.gpu} | {environment.timing} | "):
            raise InvalidInput(f"its study is {shown(name)}, which is not of {problem}")
        return cls(
            name=name,
            problem=problem,
            objectives=Objectives.parse(read_text(values.get("objectives"), "objectives")),
            environment=environment,
            seed=read_whole(values.get("seed"), "seed"),
            distributions={n: CategoricalDistribution(tuple(v)) for n, v in parameters.items()},
        )


def _is_choices(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) in _PLAIN for v in value)


_PLAIN = (str, int, bool)


class UnsavedTrials:
    """Appends trials to a file of this folder, which is made for the first of them."""

    def __init__(self, study: StudyIdentity) -> None:
        self._study = study
        self.paths: list[Path] = []
        """The files; the second is of trials for which there was no room in the first."""
        self.number = self.lost = 0
        """Trials that were kept, and that could not be."""

    @property
    def told(self) -> str:
        """Where they are and what to do; empty where there was nothing to keep."""
        if not self.paths:
            lost = f"none is kept, {self.lost} lost: once the storage can be written, run the same "
            return f"{lost}search again" if self.lost else ""
        trials = "1 finished trial is" if self.number == 1 else f"{self.number} finished trials are"
        lost = f", {self.lost} lost" if self.lost else ""
        return (
            f"{trials} kept in {' and '.join(map(str, self.paths))}{lost}: once the storage can be "
            f"written, run {' and '.join(f'explorer merge {path}' for path in self.paths)} with "
            "the --storage of the search, and then the same search again"
        )

    def keep(self, trial: FrozenTrial) -> None:
        """Append a finished trial; in the folder for temporary files where this one is no place.

        Raises InvalidInput where that cannot be written either.
        """
        name = f"unsaved-trials-{token_hex(4)}.jsonl"
        new = [Path(name), Path(tempfile.gettempdir()) / name]
        for path in [*self.paths[-1:], *new]:
            lines = [] if path in self.paths else [self._study.as_dict()]
            lines.append(_trial_data(trial))
            try:
                _append(path, "".join(f"{json.dumps(line)}\n" for line in lines))
            except OSError as error:
                failure = error
            else:
                self.number += 1
                self.paths += [] if path in self.paths else [path]
                return
        self.lost += 1
        raise InvalidInput(
            f"a finished trial is lost: neither the storage nor a file takes it: {failure}"
        )


def _append(path: Path, text: str) -> None:
    """Append all of a text to a file, or nothing. Raises OSError."""
    with path.open("ab") as file:
        before = file.tell()
        try:
            file.write(text.encode())
            file.flush()
        except OSError:
            with suppress(OSError):
                file.truncate(before)
                if not before:
                    path.unlink()
            raise


def _trial_data(trial: FrozenTrial) -> dict[str, Any]:
    assert trial.datetime_start is not None and trial.datetime_complete is not None
    return {
        "params": trial.params,
        "started": trial.datetime_start.isoformat(),
        "completed": trial.datetime_complete.isoformat(),
        "attributes": trial.user_attrs,
    }


# ------------------------------------------------------------------ reading


class Unsaved(NamedTuple):
    """What a file holds."""

    study: StudyIdentity
    trials: list[FrozenTrial]
    is_cut: bool
    """Whether its last line was cut off, as by a full disk, and is left out."""


def read_unsaved(path: Path) -> Unsaved:
    """Read what `UnsavedTrials` wrote. Raises InvalidInput for anything else, naming the line."""
    text = read_file(path, most_bytes=MAX_TEXT_BYTES, remedy=_REMEDY)
    whole, _, rest = text.rpartition("\n")
    lines = whole.splitlines()
    if not text.strip():
        raise InvalidInput(f"{path} is empty; {_REMEDY}")
    trials: list[FrozenTrial] = []
    line = 1
    try:
        study = StudyIdentity.from_dict(parse_json(lines[0] if lines else rest, "it", of="line"))
        while line < len(lines):
            line += 1
            trials.append(_trial_from(parse_json(lines[line - 1], "it", of="line"), study))
    except InvalidInput as error:
        raise InvalidInput(
            f"{path} holds no trials of this version: line {line}: {error}; {_REMEDY}"
        ) from None
    return Unsaved(study, trials, bool(rest))


def _trial_from(data: Any, study: StudyIdentity) -> FrozenTrial:
    """Read a trial's line. Raises InvalidInput."""
    if not isinstance(data, dict) or not isinstance(data.get("attributes"), dict):
        raise InvalidInput("it is no trial")
    attributes, config = data["attributes"], Config.from_dict(data.get("params"))
    for name, distribution in study.distributions.items():
        if (value := getattr(config, name, None)) not in distribution.choices:
            raise InvalidInput(f"its {name} is {shown(value)}, which the study does not have")
    outcome = to_outcome(attributes, study.objectives)
    if outcome is None:
        raise InvalidInput("it tells of no outcome")
    is_illegal = isinstance(outcome, Rejected) and outcome.stage is Stage.INVALID
    if not is_illegal and not read_text(attributes.get("digest"), "digest"):
        raise InvalidInput("its code has no digest")
    return finished_trial(
        config,
        outcome,
        attributes,
        study.objectives,
        study.distributions,
        _date(data.get("started")),
        _date(data.get("completed")),
    )


def _date(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(read_text(text, "a date"))
    except ValueError:
        raise InvalidInput(f"{shown(text)} is no date") from None
