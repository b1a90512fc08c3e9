"""What torch.compile compiles, compiled where no GPU is: Inductor writes its kernels as for one.

Inductor asks PyTorch for the GPU's properties, and Triton's driver for its target. Here both answer
with what is known of the GPU. Inductor's graphs are not kept: a process that has the GPU traces and
lowers anew, and finds in Triton's cache the kernels whose text is the same. So wrong properties
would cost time alone. These are internals of PyTorch 2.11: where another version names them
otherwise, this raises, and the kernels are compiled when the peer is prepared.
"""

from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config as inductor_config
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses import FakeTensorMode, fake_tensor

from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.peers.registry import EVERY, FOUR, check_scope
from explorer.peers.torch_softmax import ALSO, compiled, read_by
from explorer.peers.triton_softmax import stand_in


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernels that torch.compile would try."""
    check_scope("torch.compile", problem, ops=EVERY, dtypes=FOUR, also=ALSO)
    _pretend(gpu)
    with FakeTensorMode(), suppress(RuntimeError):  # what is compiled cannot be launched here
        compiled(problem)(*(array.empty("cuda:0") for array in read_by(problem)))


@cache
def _pretend(gpu: GpuSpec) -> None:
    """Answer for the GPU wherever Inductor asks."""
    stand_in(gpu)
    major, minor = divmod(int(gpu.arch.removeprefix("sm_").rstrip("af")), 10)
    properties = SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        multi_processor_count=gpu.sm_count,
        regs_per_multiprocessor=gpu.registers_per_sm,
        max_threads_per_multi_processor=gpu.threads_per_sm,
        max_threads_per_block=1024,
        warp_size=32,
        total_memory=gpu.memory_bytes,
        L2_cache_size=gpu.l2_bytes,
        shared_memory_per_block_optin=gpu.shared_per_block_bytes,
    )
    for owner in (CudaInterface, CudaInterface.Worker):
        _answer(owner, "get_device_properties", properties)
        _answer(owner, "current_device", 0)
    _answer(CudaInterface, "is_available", True)
    _answer(CudaInterface, "is_bf16_supported", major >= 8)
    _answer(CudaInterface, "get_compute_capability", 10 * major + minor)
    _answer(torch.cuda, "get_device_properties", properties)
    _answer(torch.cuda, "get_device_capability", (major, minor))
    _answer(torch.cuda, "current_device", 0)
    _answer(fake_tensor, "init_gpu_context", None)
    _answer(triton_helpers, "set_driver_to_gpu", None)
    precompile = CachingAutotuner.precompile
    CachingAutotuner.precompile = lambda kernel, *_, **__: precompile(kernel, warm_cache_only=True)
    inductor_config.fx_graph_cache = False
    inductor_config.compile_threads = 1


def _answer(owner: Any, name: str, value: Any) -> None:
    """Have a function of a class or a module return `value`, whatever it is asked."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    setattr(owner, name, staticmethod(answer) if isinstance(owner, type) else answer)
