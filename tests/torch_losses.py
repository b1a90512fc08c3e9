"""PyTorch's own samples of nn.CrossEntropyLoss and functional.cross_entropy, of its test suite."""

import warnings
from functools import partial

import torch


def samples(device, dtype):
    """Yield functions of logits, with their logits and targets, as PyTorch's tests call them."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    (loss,) = (one for one in module_db if one.name == "nn.CrossEntropyLoss")
    for told in loss.module_inputs_func(loss, device, dtype, True, training=False):
        made = told.constructor_input
        module = loss.module_cls(*made.args, **made.kwargs).to(device)
        yield module, *told.forward_input.args
    (function,) = (one for one in op_db if one.name == "nn.functional.cross_entropy")
    for told in function.sample_inputs(device, dtype, requires_grad=True):
        call = torch.nn.functional.cross_entropy
        yield lambda x, y, of=told.kwargs, call=call: call(x, y, **of), told.input, told.args[0]


def results(device, dtype):
    """Return loss and gradient of each sample, and whether its target is of class indices."""
    found = []
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, x, target in samples(device, dtype):
            leaf = x.detach().clone().requires_grad_()
            loss = call(leaf, target)
            loss.backward(torch.ones_like(loss))
            found.append((loss.detach(), leaf.grad, not target.is_floating_point()))
    return found


def assert_same(ours, theirs, rtol, atol):
    """Assert that losses and gradients agree; return how many are of class indices."""
    close = partial(torch.testing.assert_close, rtol=rtol, atol=atol, equal_nan=True)
    for (loss, grad, _), (own_loss, own_grad, _) in zip(ours, theirs, strict=True):
        close(loss, own_loss)
        close(grad, own_grad)
    return sum(is_index for *_, is_index in ours)
