"""The problem of the recording that is made by hand."""

from pathlib import Path

from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem

PROBLEM = Problem(256, 512, DType.F32)
SHAPE = ("--cols", "512", "--rows", "256")
RECORDING = Path("studies") / "recorded" / "by-hand.json.gz"
SEARCH = ("search", *SHAPE, "--trials", "200")
GPU = known_gpu("NVIDIA H200")
KERNELS = 60
EXACT = {"threads_per_row": (32, 64, 128, 256), "reduction": ("shuffle",)}
"""Parameters whose values keep sums short, so that every kernel is exact enough."""
