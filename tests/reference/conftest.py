"""NumPy says nothing of NaN that signal, nor of numbers beyond a type, which inputs hold."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(invalid="ignore", over="ignore"):
        yield
