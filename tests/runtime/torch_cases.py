"""What tests of PyTorch's tensors share: our kernels for tensors on the CPU, by the emulator."""

import pytest
from emulated_plans import EmulatedPlan

from explorer.runtime import recipes, shapes

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")

from explorer.runtime import torch_calls  # noqa: E402


def serve_cpu(monkeypatch):
    """Serve tensors on the CPU by our kernels; return the list of the problems of all launches."""
    launched = []

    def plan_of(library, problem, device):
        shapes.count_call(problem)
        return EmulatedPlan(problem, launched)

    monkeypatch.setattr(torch_calls.Tensors, "is_on_gpu", lambda self, x: True)
    monkeypatch.setattr(torch_calls.Tensors, "is_capturing", lambda self, device: False)
    monkeypatch.setattr(recipes, "plan_of", plan_of)
    monkeypatch.setattr(torch_calls, "_current_device", lambda: -1)
    monkeypatch.setattr(torch_calls, "_raw_stream", lambda device: 0)
    monkeypatch.setattr(torch_calls, "_threads", torch_calls._Threads())
    return launched
