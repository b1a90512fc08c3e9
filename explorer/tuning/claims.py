"""Several processes on one study: each claims the code that it is about to evaluate.

A claim is a system attribute of the study, named after the digest of the code: Optuna's tables hold
one attribute of a name. It is dropped once its trial is stored. Each process says from time to time
that it is alive; the claims of one that is not are free.
"""

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from optuna.storages._rdb.models import (
    StudySystemAttributeModel,
    TrialModel,
    TrialUserAttributeModel,
)
from sqlalchemy import delete, insert, select, update
from sqlalchemy.engine import Connection

from explorer.tuning.storage import BulkStorage, kept_json

LEASE_S = 300.0
"""Seconds without a sign of life after which a process is taken to have ended. It gives one with
every kernel that it proposes: one that hangs until it is given up is no reason."""

SIGN_EVERY_S = 1.0
"""Seconds between two signs of life, each of which is one more statement of the database."""

_CLAIM, _PROCESS = "softmax-explorer:claim:", "softmax-explorer:process:"

_ATTRIBUTE = StudySystemAttributeModel


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What came of one exchange with a study."""

    granted: frozenset[str]
    """The digests that this process may evaluate, of those that it wanted."""
    trials: tuple[int, ...]
    """The ids of the study's trials after the one that was asked for."""


class Claims:
    """The claims of one process on one study. Its methods raise what the database raises."""

    def __init__(self, storage: BulkStorage, study_id: int) -> None:
        self._storage = storage
        self._study_id = study_id
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._name = f"{self._host}:{self._pid}:{token_hex(4)}"
        self._signed_at = -SIGN_EVERY_S

    def exchange(self, wanted: Sequence[str], done: Sequence[str], after: int) -> Exchanged:
        """Drop the claims of what is `done`, claim what is `wanted`, and say that we are alive,
        unless that was said just now.

        What another process has claimed, or has evaluated, is not granted. Also gives the trials
        that came `after` the one of this id. Raises NotFound where the study is gone.
        """
        now = time.monotonic()
        signs = now - self._signed_at >= SIGN_EVERY_S
        with self._storage.alone(self._study_id) as connection:
            self._drop(connection, [_CLAIM + digest for digest in done])
            if signs:
                self._put(connection, _PROCESS + self._name, self._sign_of_life())
            granted = self._claimed(connection, wanted) if wanted else frozenset()
            trials = select(TrialModel.trial_id).where(
                TrialModel.study_id == self._study_id, TrialModel.trial_id > after
            )
            exchanged = Exchanged(granted, tuple(connection.execute(trials).scalars()))
        self._signed_at = now if signs else self._signed_at  # once it is committed
        return exchanged

    def withdraw(self) -> None:
        """Drop all claims of this process, and what those have left that have ended."""
        with self._storage.alone(self._study_id) as connection:
            alive = self._alive(connection) - {self._name}
            held = self._owners(connection)
            self._drop(connection, [key for key, owner in held.items() if owner not in alive])
            ended = self._attributes(connection, _PROCESS)
            names = (key for key in ended if key.removeprefix(_PROCESS) not in alive)
            self._drop(connection, list(names))

    def _claimed(self, connection: Connection, wanted: Sequence[str]) -> frozenset[str]:
        """Claim what is neither evaluated nor claimed by a process that is alive."""
        held = self._owners(connection)
        is_shared = any(owner != self._name for owner in held.values())
        alive = self._alive(connection) if is_shared else frozenset()
        evaluated = self._evaluated(connection, wanted)
        granted = []
        for digest in wanted:
            key = _CLAIM + digest
            owner = held.get(key, "")
            if digest not in evaluated and (owner == self._name or owner not in alive):
                put = self._put if key in held else self._add
                put(connection, key, self._name)
                held[key] = self._name  # it may be wanted twice
                granted.append(digest)
        return frozenset(granted)

    def _evaluated(self, connection: Connection, digests: Sequence[str]) -> frozenset[str]:
        """Return those of the digests that a trial of the study has."""
        attribute = TrialUserAttributeModel
        found = connection.execute(
            select(attribute.value_json)
            .join(TrialModel, TrialModel.trial_id == attribute.trial_id)
            .where(
                TrialModel.study_id == self._study_id,
                attribute.key == "digest",
                attribute.value_json.in_([json.dumps(digest) for digest in digests]),
            )
        )
        return frozenset(json.loads(text) for text in found.scalars())

    def _owners(self, connection: Connection) -> dict[str, str]:
        """Return the name of the process that has made each claim; empty where it is damaged."""
        found = self._attributes(connection, _CLAIM)
        return {key: name if isinstance(name, str) else "" for key, name in found.items()}

    def _alive(self, connection: Connection) -> frozenset[str]:
        """Return the names of the processes that are alive, this one among them."""
        found = self._attributes(connection, _PROCESS)
        alive = (key.removeprefix(_PROCESS) for key, sign in found.items() if self._lives(sign))
        return frozenset(alive) | {self._name}

    def _lives(self, sign: Any) -> bool:
        """Whether a process that gave this sign of life is alive, as far as can be told."""
        if not isinstance(sign, dict) or not isinstance(seen := sign.get("seen"), int | float):
            return False
        pid = sign.get("pid")
        if sign.get("host") == self._host and isinstance(pid, int) and not _runs(pid):
            return False
        return time.time() - seen < LEASE_S

    def _sign_of_life(self) -> dict[str, Any]:
        return {"host": self._host, "pid": self._pid, "seen": round(time.time(), 1)}

    def _attributes(self, connection: Connection, prefix: str) -> dict[str, Any]:
        """Return the study's attributes whose names begin so; one that is no JSON is None."""
        found = connection.execute(
            select(_ATTRIBUTE.key, _ATTRIBUTE.value_json).where(
                _ATTRIBUTE.study_id == self._study_id, _ATTRIBUTE.key.startswith(prefix)
            )
        )
        return {key: kept_json(text) for key, text in found}

    def _put(self, connection: Connection, key: str, value: Any) -> None:
        here = (_ATTRIBUTE.study_id == self._study_id, _ATTRIBUTE.key == key)
        text = json.dumps(value)
        if not connection.execute(update(_ATTRIBUTE).where(*here).values(value_json=text)).rowcount:
            self._add(connection, key, value)

    def _add(self, connection: Connection, key: str, value: Any) -> None:
        """Put an attribute that is not there."""
        row = {"study_id": self._study_id, "key": key, "value_json": json.dumps(value)}
        connection.execute(insert(_ATTRIBUTE), [row])

    def _drop(self, connection: Connection, keys: Sequence[str]) -> None:
        if keys:
            here = (_ATTRIBUTE.study_id == self._study_id, _ATTRIBUTE.key.in_(keys))
            connection.execute(delete(_ATTRIBUTE).where(*here))


def _runs(pid: int) -> bool:
    """Whether a process of this host runs; one of another user's does."""
    if not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
