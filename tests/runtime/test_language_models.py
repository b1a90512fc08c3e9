"""Models of `transformers` come to the same with our kernels behind PyTorch's operators."""

from functools import partial

import pytest
from language_models import MODELS, assert_same, loss_and_gradients, model_of
from torch_cases import serve_cpu, torch
from transformers.loss.loss_utils import ForCausalLMLoss

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
    assert ops == {Op.SOFTMAX, Op.SOFTMAX_BACKWARD, Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD}


@pytest.mark.parametrize("gradient", ["later", "in_place"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_takes_our_loss(name, gradient, launched):
    model, tokens = model_of(name), torch.randint(0, 1000, (2, 33))
    theirs = loss_and_gradients(model, tokens)
    model.loss_function = partial(explorer.causal_lm_loss, gradient=gradient)
    ours = loss_and_gradients(model, tokens)
    assert_same(ours, theirs, 1e-5)
    assert [problem.op for problem in launched] == [Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD]
    assert launched[1].in_place == (gradient == "in_place")


@pytest.mark.parametrize("items", [None, 7, torch.tensor(7)])
def test_a_loss_is_over_the_tokens_that_are_told(items, launched):
    logits, labels = torch.randn(2, 5, 20), torch.randint(0, 20, (2, 5))
    labels[0, 2] = -100
    theirs = ForCausalLMLoss(logits, labels, 20, items)
    assert torch.allclose(explorer.causal_lm_loss(logits, labels, 20, items), theirs)
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
    given = explorer.causal_lm_loss(logits, None, 20, items, shift_labels=shifted.reshape(-1))
    assert torch.allclose(given, theirs)
