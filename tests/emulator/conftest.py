"""Fixtures of the emulator's tests."""

import pytest
from run_kernel import Out, run_kernel


@pytest.fixture
def run():
    """The function that launches a kernel."""
    return run_kernel


@pytest.fixture
def out():
    """The class of output arguments."""
    return Out
