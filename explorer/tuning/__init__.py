"""Optuna searches the space; finals and ties; studies kept, inspected and recorded.

What is exported here is imported on first use: Optuna takes half a second to import, and plain
data such as `results` must not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.tuning.choice import Choice, choose_configs
    from explorer.tuning.inspect import (
        find_trial,
        list_studies,
        list_views,
        load_study,
        survey,
    )
    from explorer.tuning.journey import Found, run_journey, stored_best
    from explorer.tuning.recorder import record
    from explorer.tuning.run import run_search
    from explorer.tuning.storage import open_storage

__all__ = [
    "Choice",
    "Found",
    "choose_configs",
    "find_trial",
    "list_studies",
    "list_views",
    "load_study",
    "open_storage",
    "record",
    "run_journey",
    "run_search",
    "stored_best",
    "survey",
]

_HOMES = {
    "Choice": "choice",
    "Found": "journey",
    "choose_configs": "choice",
    "find_trial": "inspect",
    "list_studies": "inspect",
    "list_views": "inspect",
    "load_study": "inspect",
    "open_storage": "storage",
    "record": "recorder",
    "run_journey": "journey",
    "run_search": "run",
    "stored_best": "journey",
    "survey": "inspect",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
