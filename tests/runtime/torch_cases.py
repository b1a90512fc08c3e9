"""What tests of PyTorch's tensors share: our kernels for tensors on the CPU, by the emulator."""

import pytest
from emulated_plans import EmulatedPlan

from explorer.runtime import shapes

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")

from explorer.runtime import torch_calls  # noqa: E402


def serve_cpu(monkeypatch):
    """Serve tensors on the CPU by our kernels; return the list of the problems of all launches."""
    launched = []

    def unserved(x, target):
        other = next((t for t in (x.dtype, target) if t not in torch_calls.DTYPE_OF), None)
        if other is not None:
            return f"elements of {other}"
        return "an empty tensor" if x.numel() == 0 else ""

    def plan_of(problem, device):
        shapes.count_call(problem)
        return EmulatedPlan(problem, launched)

    monkeypatch.setattr(torch_calls, "unserved", unserved)
    monkeypatch.setattr(torch_calls, "plan_of", plan_of)
    monkeypatch.setattr(torch_calls, "_current_device", lambda: -1)
    monkeypatch.setattr(torch_calls, "_raw_stream", lambda device: 0)
    monkeypatch.setattr(torch_calls, "_threads", torch_calls._Threads())
    return launched
