"""Optuna searches the space; finals and ties; studies kept, inspected and recorded.

What is exported here is imported on first use: Optuna takes half a second to import, and plain
data such as `results` must not wait for it.
"""

from typing import TYPE_CHECKING

from explorer.system.lazy import lazy_names

if TYPE_CHECKING:
    from explorer.tuning.journey import run_journey, stored_best
    from explorer.tuning.recorder import Selection, choose_configs, record
    from explorer.tuning.search import run_search
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_reader import (
        list_studies,
        list_views,
        load_history,
        load_study,
        load_trial,
        searching,
        survey,
    )
    from explorer.tuning.study_writer import merge_trials


__all__ = [
    "Selection",
    "choose_configs",
    "list_studies",
    "list_views",
    "load_history",
    "load_study",
    "load_trial",
    "merge_trials",
    "open_storage",
    "record",
    "run_journey",
    "run_search",
    "searching",
    "stored_best",
    "survey",
]

_HOMES = {
    "Selection": "explorer.tuning.recorder",
    "choose_configs": "explorer.tuning.recorder",
    "list_studies": "explorer.tuning.study_reader",
    "list_views": "explorer.tuning.study_reader",
    "load_history": "explorer.tuning.study_reader",
    "load_study": "explorer.tuning.study_reader",
    "load_trial": "explorer.tuning.study_reader",
    "merge_trials": "explorer.tuning.study_writer",
    "open_storage": "explorer.tuning.storage",
    "record": "explorer.tuning.recorder",
    "run_journey": "explorer.tuning.journey",
    "run_search": "explorer.tuning.search",
    "searching": "explorer.tuning.study_reader",
    "stored_best": "explorer.tuning.journey",
    "survey": "explorer.tuning.study_reader",
}

__getattr__ = lazy_names(__name__, _HOMES)
