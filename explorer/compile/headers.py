"""The CUDA headers that kernels include: those of the wheel we depend on, never a toolkit's."""

import importlib.util
from functools import cache
from pathlib import Path


@cache
def include_dir() -> Path | None:
    """The folder with cuda_fp16.h in the nvidia-cuda-runtime wheel, or None if it is missing.

    A toolkit in /usr/local is not looked for: mixing its headers with another NVRTC fails late.
    """
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in sorted(Path(root).glob("cu1[3-9]/include"), reverse=True):
            if (folder / "cuda_fp16.h").is_file():
                return folder
    return None
