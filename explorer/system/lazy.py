"""Names of a package that are imported when they are first asked for."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`: `homes` has the module that defines each of its names.

    So a program pays for what it uses: Jinja takes 60 ms to import, and a kernel that was emitted
    before needs none.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(homes[name]), name)
        # Kept, since Python asks here for what a package lacks: 1.3 us of each explorer.softmax(x).
        setattr(sys.modules[package], name, found)
        return found

    return get
