"""Whatever lies where a compiled kernel is kept costs a compilation, never an error or a wait."""

import io
import os
import random
import zipfile

import pytest

from explorer.compile.compiler import Kernel, KernelCache
from explorer.model.outcome import Resources

KEY = "ab" * 16


@pytest.fixture
def cache(tmp_path):
    cache = KernelCache(tmp_path)
    cache.store(KEY, Kernel(b"no cubin", "ptx", "log", Resources(0)))
    return cache


@pytest.fixture
def path(cache, tmp_path):
    (path,) = tmp_path.rglob("*.zip")
    return path


def test_damaged_bytes(cache, path):
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 9))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        assert cache.load(KEY) is None


def test_another_archive(cache, path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("kernel.cubin", b"\x7fELF")
        archive.writestr("ptxas.log", b"\xff")
    path.write_bytes(made.getvalue())
    assert cache.load(KEY) is None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_no_file(cache, path, make):
    path.unlink()
    make(path)
    assert cache.load(KEY) is None
