"""Fixtures of the emulator's tests."""

import pytest
from run_kernel import Out, run_kernel
from virtual_arch import ARCH

from explorer.devices.emulated.emulator import Emulator


@pytest.fixture
def run():
    """The function that launches a kernel."""
    return run_kernel


@pytest.fixture
def out():
    """The class of output arguments."""
    return Out


@pytest.fixture(scope="session")
def emulator():
    """The emulator of all configs that are not of one architecture."""
    return Emulator(ARCH)
