"""Fixtures of the compiler's tests."""

import pytest

from explorer.compile.compiler import KernelCache


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Kernels that a module has compiled, and nobody before it."""
    return KernelCache(tmp_path_factory.mktemp("kernels"))
