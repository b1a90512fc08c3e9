"""The commands and programs of the README and the guides that need a GPU, or are faster on one."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from documents import DOCUMENTS, Printed, Runner, blocks

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    block
    for path in DOCUMENTS
    for block in blocks(path)
    if "gpu" in block.needs.split() or block.needs == "torch"
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_of_the_documents_runs(block, tmp_path, monkeypatch):
    for needed in block.needs.split():
        if needed == "nvcc" and shutil.which("nvcc") is None:
            pytest.skip("nvcc is not installed")
        library = {"cluster": "distributed"}.get(needed, needed)
        libraries = ("torch", "cupy", "jax", "distributed")
        if library in libraries and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for earlier in writers(block):
        assert process(tmp_path, ["-c", earlier.body]).code == 0, earlier
    runner = Runner(tmp_path, lambda words: process(tmp_path, ["-m", "explorer", *words]))
    if block.language != "python":
        runner.run(block)
        return
    program = tmp_path / "program.py"
    program.write_text(block.body)
    ran = process(tmp_path, [str(program)])
    assert ran.code == 0, replace(block, body=ran.err)


def writers(block):
    """The programs before a block in its document that write the files which it names."""
    return [
        one
        for one in blocks(block.path)
        if one.line < block.line and one.language == "python" and not one.needs
        if ".write_text(" in one.body
    ]


def process(folder, words):
    """Run Python: a process of its own leaves no context on the GPU."""
    ran = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    return Printed(ran.returncode, ran.stdout, ran.stderr)
