"""Small language models of `transformers`, of random weights: their losses and gradients.

Their attention is the eager one, which calls softmax: fused attention has no such operator.
"""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install it")

SIZES = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}

MODELS = {
    "gpt2": lambda **sizes: transformers.GPT2Config(**sizes),
    "llama": lambda **sizes: transformers.LlamaConfig(intermediate_size=128, **sizes),
    "mixtral": lambda **sizes: transformers.MixtralConfig(
        intermediate_size=128, num_key_value_heads=2, num_local_experts=8, **sizes
    ),
}
"""Attention with a mask that is added; with rotary positions; and with a router of experts."""


def model_of(name, device="cpu", **sizes):
    """Return a model of random weights, the same each time, in training without dropout."""
    torch.manual_seed(0)
    config = MODELS[name](**{**SIZES, **sizes})
    config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config).eval().to(device)


def loss_and_gradients(model, tokens):
    """Return the loss of predicting each next token, and the gradient of each parameter."""
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    told = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), told


def assert_same(ours, theirs, rtol):
    """Assert that losses and gradients agree, gradients relative to the largest of a parameter."""
    assert abs(ours[0] - theirs[0]) <= rtol * theirs[0]
    assert ours[1].keys() == theirs[1].keys()
    for name, expected in theirs[1].items():
        off = (ours[1][name] - expected).abs().max()
        assert off <= rtol * max(expected.abs().max().item(), 1e-6), name
