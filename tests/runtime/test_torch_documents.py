"""The programs of the README and the guides that need PyTorch, on a machine without a GPU."""

import pytest
from documents import DOCUMENTS, Runner, blocks

pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")

BLOCKS = [block for path in DOCUMENTS for block in blocks(path) if block.needs == "torch"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_program_of_the_documents_runs(block, tmp_path):
    Runner(tmp_path, None).run(block)
