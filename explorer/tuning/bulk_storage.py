"""A database of studies, to which many rows are written in one transaction.

Before every row that Optuna writes it reads the trial, and an earlier value of the parameter: some
hundred statements for a trial of ours. Here a table takes one statement, and the rows are those
that Optuna writes. This is the one file that uses Optuna's private modules.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Engine, create_engine, delete, event, func, insert, inspect, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from explorer.model.errors import InvalidInput, NotFound
from explorer.system.plain_data import shown

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)

ABANDONED_AFTER = timedelta(minutes=10)
"""Age of a RUNNING trial from which its process is taken to have ended without an outcome."""

KNOWN_BEFORE = ("digest", "origin", "config", "emit")
"""The attributes of a RUNNING trial; its outcome adds the others."""


def place_of(trial: FrozenTrial, same_code: Sequence[Any]) -> Any:
    """Return which of a study's trials with its code is a trial that has a number, or keeps it out.

    A finished one keeps out all others, a RUNNING one another that would run as well, for ten
    minutes. It is None where another program ended our RUNNING trial: its outcome needs another.
    """
    for other in same_code:
        is_ended = other.state not in (TrialState.RUNNING, *FINISHED)
        if other.number == trial.number and not (is_ended and trial.state in FINISHED):
            return other
    return next((other for other in same_code if _keeps_out(other, trial)), None)


def _keeps_out(other: Any, new: FrozenTrial) -> bool:
    if other.state is not TrialState.RUNNING or new.state is not TrialState.RUNNING:
        return other.state in FINISHED
    started = other.datetime_start
    return started is not None and datetime.now() - started < ABANDONED_AFTER


Rows = dict[type[models.BaseModel], list[dict[str, Any]]]


class BulkStorage(RDBStorage):
    """RDBStorage that also writes many rows in one transaction.

    Its user sees to it that all trials of a study have the same distributions.
    """

    def put(self, study_id: int, trials: Sequence[FrozenTrial]) -> list[bool]:
        """Store trials, whose codes differ, in one transaction, in their order.

        One that has a number is our RUNNING trial, which gets its outcome. Another one is new, and
        left out if a trial of the study keeps it out. Each gets the id and the number of the trial
        of the study that has its code by now. Returns which of them are those that were given.
        Raises NotFound where the study is gone.
        """
        stored, rows = [], defaultdict[Any, list[dict[str, Any]]](list)
        with self._alone(study_id) as session:
            same_code = _same_code(session, study_id, trials)
            count = select(func.count()).where(models.TrialModel.study_id == study_id)
            number = session.execute(count).scalar_one()
            for trial in trials:
                row = place_of(trial, same_code[trial.user_attrs.get("digest")])
                stored.append(row is None or row.number == trial.number)
                if is_whole := row is None:
                    row = models.TrialModel(study_id=study_id, number=number)
                    row.state = TrialState.RUNNING
                    number += 1
                if stored[-1] and row.state is TrialState.RUNNING:
                    row.state = trial.state
                    row.datetime_start = trial.datetime_start
                    row.datetime_complete = trial.datetime_complete
                    session.add(row)
                    session.flush()  # by which a new row gets its id
                    _add_rows(rows, trial, row.trial_id, is_whole=is_whole)
                trial._trial_id, trial.number = row.trial_id, row.number
            for model, some in rows.items():
                session.execute(insert(model), some)
        return stored

    def put_attributes(
        self,
        study_id: int,
        user: Mapping[str, Any],
        system: Mapping[str, Any],
        trials: Mapping[int, Mapping[str, Any]],
    ) -> bool:
        """Set attributes of a study, and of trials by their ids, in one transaction.

        Those of finals, whose names begin with `finals`, take the place of all there were, also of
        finished trials, which Optuna does not change. Finals know of the trials up to
        `finals_through`: where the study has some that know of more, nothing is set. Returns
        whether it was set.
        """
        of_study, of_trial = models.StudyUserAttributeModel, models.TrialUserAttributeModel
        of_system = models.StudySystemAttributeModel
        with self._alone(study_id) as session:
            if "finals_through" in user:
                here = (of_study.study_id == study_id, of_study.key == "finals_through")
                known = session.execute(select(of_study.value_json).where(*here)).scalar()
                if known and known.isdecimal() and int(known) > user["finals_through"]:
                    return False
                ids = select(models.TrialModel.trial_id).where(
                    models.TrialModel.study_id == study_id
                )
                for table, place in (
                    (of_study, of_study.study_id == study_id),
                    (of_trial, of_trial.trial_id.in_(ids)),
                ):
                    session.execute(delete(table).where(place, table.key.startswith("finals")))
            _set(session, of_study, of_study.study_id, study_id, user)
            _set(session, of_system, of_system.study_id, study_id, system)
            for trial_id, given in trials.items():
                _set(session, of_trial, of_trial.trial_id, trial_id, given)
        return True

    def rename(self, study_id: int, name: str) -> None:
        """Give a study another name. Raises NotFound where it is gone."""
        here = models.StudyModel.study_id == study_id
        with self._alone(study_id) as session:
            session.execute(update(models.StudyModel).where(here).values(study_name=name))

    def finished(self, study_id: int) -> set[int]:
        """Return the ids of the finished trials."""
        wanted = select(models.TrialModel.trial_id).where(models.TrialModel.study_id == study_id)
        with Session(self.engine) as session:
            return set(session.scalars(wanted.where(models.TrialModel.state.in_(FINISHED))))

    def lacking(self, study_id: int, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials whose code no finished trial of the study has."""
        with Session(self.engine) as session:
            rows = _same_code(session, study_id, trials)
            known = {digest for digest in rows if any(r.state in FINISHED for r in rows[digest])}
        return [trial for trial in trials if trial.user_attrs["digest"] not in known]

    @contextmanager
    def _alone(self, study_id: int) -> Iterator[Session]:
        """Begin a transaction in which no other process changes the study, if it comes this way.

        It begins by a write to the study's row, which changes nothing: a server then locks the row,
        as it does for each new trial, and SQLite the file. Raises NotFound where the study is gone.
        """
        same = update(models.StudyModel).where(models.StudyModel.study_id == study_id)
        same = same.values(study_name=models.StudyModel.study_name)
        with Session(self.engine) as session, session.begin():
            result: Any = session.execute(same.execution_options(synchronize_session=False))
            if not result.rowcount:
                raise NotFound("the study was deleted while it was searched")
            yield session


def _same_code(
    session: Session, study_id: int, trials: Sequence[FrozenTrial]
) -> dict[Any, list[models.TrialModel]]:
    """Return the rows of a study with the digests that trials have, by these."""
    rows = defaultdict[Any, list[models.TrialModel]](list)
    attribute = models.TrialUserAttributeModel
    digests = {trial.user_attrs.get("digest") for trial in trials}
    texts = [json.dumps(digest) for digest in digests if digest]
    wanted = select(attribute.value_json, models.TrialModel).join(models.TrialModel)
    wanted = wanted.where(models.TrialModel.study_id == study_id, attribute.key == "digest")
    for text, row in session.execute(wanted.where(attribute.value_json.in_(texts))):
        rows[json.loads(text)].append(row)
    return rows


def _add_rows(rows: Rows, trial: FrozenTrial, trial_id: int, *, is_whole: bool) -> None:
    """Add a trial's rows of other tables: all of them, or those of its outcome."""
    own = {"trial_id": trial_id}
    for objective, value in enumerate(trial.values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        row = {**own, "objective": objective, "value": stored, "value_type": kind}
        rows[models.TrialValueModel].append(row)
    for name, value in trial.params.items() if is_whole else ():
        distribution = trial.distributions[name]
        parameter = {"param_name": name, "param_value": distribution.to_internal_repr(value)}
        parameter |= {"distribution_json": distribution_to_json(distribution)}
        rows[models.TrialParamModel].append({**own, **parameter})
    known = () if is_whole else KNOWN_BEFORE
    new = {key: value for key, value in trial.user_attrs.items() if key not in known}
    rows[models.TrialUserAttributeModel] += _attribute_rows(own, new)


def _set(session: Session, table: Any, column: Any, owner: int, given: Mapping[str, Any]) -> None:
    """Set attributes of what has that id in the column; those that are there keep their places."""
    existing = {row.key: row for row in session.scalars(select(table).where(column == owner))}
    for row in _attribute_rows({column.key: owner}, given):
        if there := existing.get(row["key"]):
            there.value_json = row["value_json"]
        else:
            session.add(table(**row))


def _attribute_rows(owner: dict[str, int], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**owner, "key": key, "value_json": json.dumps(value)} for key, value in given.items()]


# ------------------------------------------------------------------ opening one

ATTEMPTS = 4
"""How often the tables of a new database are tried to be created. Another process may create the
same ones: then each finds some that were not there before."""


def open_database(url: URL, name: str, remedy: str, missing: str | None) -> BulkStorage:
    """Open a database, creating its tables unless they are to be there.

    `missing` is what to do where they are not. Raises NotFound then, InvalidInput, which ends in
    `remedy`, for a file with tables of another program, and what SQLAlchemy raises, as for a
    database without some of Optuna's tables or columns.
    """
    engine = create_engine(url, poolclass=NullPool)
    is_new = _is_new(engine, name, remedy, missing)
    full = url.render_as_string(hide_password=False)
    for attempt in range(ATTEMPTS):
        try:
            if is_new:
                _create_tables(engine)
            storage = BulkStorage(full, skip_table_creation=not is_new)
            break
        except SQLAlchemyError as error:  # a lock was waited for
            if not is_new or attempt + 1 == ATTEMPTS or "locked" in str(error):
                raise
        time.sleep(random.uniform(0.0, 0.2))
    with storage.engine.connect() as connection:
        for table in models.BaseModel.metadata.tables.values():
            connection.execute(select(table).limit(0))
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        event.listen(storage.engine, "connect", _set_pragmas)
        storage.engine.dispose()
    return storage


def _is_new(engine: Engine, name: str, remedy: str, missing: str | None) -> bool:
    """Return whether Optuna's tables are to be created, or completed: there is no study yet.

    Half of them are there where the process that created them was killed. A file with the tables
    of another program is refused; a server may hold them beside Optuna's.
    """
    tables, ours = set(inspect(engine).get_table_names()), set(models.BaseModel.metadata.tables)
    if models.StudyModel.__tablename__ in tables:
        with Session(engine) as session:
            if session.scalars(select(models.StudyModel.study_id).limit(1)).first():
                return False
    if tables and not tables & ours and engine.dialect.name == "sqlite":
        raise InvalidInput(
            f"storage {name} is a database of another program: it has the table "
            f"{shown(min(tables))} and none of Optuna's; {remedy}"
        )
    if missing is not None and not tables >= ours:
        raise NotFound(f"no study yet: storage {name} is empty; {missing}")
    return missing is None


def _create_tables(engine: Engine) -> None:
    """Create the tables and indices that a database lacks, in one transaction: all or none."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":  # Python would commit each statement by itself
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        models.BaseModel.metadata.create_all(connection)
        for table in models.BaseModel.metadata.tables.values():
            for index in table.indexes:
                index.create(connection, checkfirst=True)


def _set_pragmas(connection: Any, _record: Any) -> None:
    """One fsync less a commit, and patience with readers; the file's format stays plain."""
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA busy_timeout=30000")
