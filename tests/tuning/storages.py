"""Where tests store a search."""

import pytest
from optuna.storages import InMemoryStorage

from explorer.tuning.storage import PublicStorage, open_storage


class Memory(PublicStorage, InMemoryStorage):
    """Optuna's storage in memory."""


STORAGES = ["memory", pytest.param("file", marks=pytest.mark.exhaustive)]
"""Kinds of storage: a file takes longer to create and to read than memory."""


def storage_of(kind, path):
    """An empty storage of a kind; one that is a file lies at `path`."""
    return Memory() if kind == "memory" else open_storage(str(path))
