"""Tests on a GPU: skipped, with the reason, where there is none."""

import pytest

from explorer.devices.cuda import driver_problem


def pytest_collection_modifyitems(items):
    problem = driver_problem()
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.gpu)
            if problem is not None:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {problem}"))
