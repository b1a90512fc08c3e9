"""A config for a problem without any search: rules of thumb from measurements on an H200.

`regimes` says which kind of kernel a problem gets; the other modules, a regime or a question each,
choose its numbers.
"""

from explorer.space.heuristic.regimes import config_for, exact, promising

__all__ = ["config_for", "exact", "promising"]
