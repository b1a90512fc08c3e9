"""Models of `transformers` come to the same with our kernels behind PyTorch's operators."""

import pytest
from language_models import MODELS, assert_same, loss_and_gradients, model_of
from torch_cases import serve_cpu, torch

import explorer
from explorer.ops import Op
from explorer.runtime import torch_override

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="register_torch needs PyTorch 2.9"
)


@pytest.fixture
def launched(monkeypatch):
    """Operators for the CPU are replaced, of whatever size; kernels run on the emulator."""
    monkeypatch.setattr(torch_override, "DISPATCH_KEY", "CPU")
    monkeypatch.setattr(torch_override, "LEAST_BYTES", 0)
    return serve_cpu(monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_pytorchs(name, launched):
    model, tokens = model_of(name), torch.randint(0, 1000, (2, 33))
    theirs = loss_and_gradients(model, tokens)
    assert not launched
    with explorer.register_torch():
        ours = loss_and_gradients(model, tokens)
    assert_same(ours, theirs, 1e-5)
    ops = {problem.op for problem in launched}
    assert ops == {Op.SOFTMAX, Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX, Op.LOG_SOFTMAX_BACKWARD}
