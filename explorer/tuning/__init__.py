"""Optuna searches the space; finals and ties; studies kept, inspected and recorded.

What is exported here is imported on first use: Optuna takes half a second to import, and plain
data such as `results` must not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.tuning.journey import Found, run_journey, stored_best
    from explorer.tuning.recorder import Selection, choose_configs, record
    from explorer.tuning.search import run_search
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_reader import (
        list_studies,
        list_views,
        load_history,
        load_study,
        load_trial,
        load_trials,
        searching,
        survey,
    )
    from explorer.tuning.study_writer import merge_trials
    from explorer.tuning.unsaved import read_unsaved

__all__ = [
    "Found",
    "Selection",
    "choose_configs",
    "list_studies",
    "list_views",
    "load_history",
    "load_study",
    "load_trial",
    "load_trials",
    "merge_trials",
    "open_storage",
    "read_unsaved",
    "record",
    "run_journey",
    "run_search",
    "searching",
    "stored_best",
    "survey",
]

_HOMES = {
    "Found": "journey",
    "Selection": "recorder",
    "choose_configs": "recorder",
    "list_studies": "study_reader",
    "list_views": "study_reader",
    "load_history": "study_reader",
    "load_study": "study_reader",
    "load_trial": "study_reader",
    "load_trials": "study_reader",
    "merge_trials": "study_writer",
    "open_storage": "storage",
    "read_unsaved": "unsaved",
    "record": "recorder",
    "run_journey": "journey",
    "run_search": "search",
    "searching": "study_reader",
    "stored_best": "journey",
    "survey": "study_reader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
