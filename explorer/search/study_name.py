"""One study a problem, GPU, timing mode and space version; a replay is a study of its own."""

from explorer.circumstances import Circumstances
from explorer.problem import Problem

REPLAY_SUFFIX = " | replay"


def study_name(
    problem: Problem, circumstances: Circumstances, version: str, *, replayed: bool
) -> str:
    """Such as `softmax f32 8192x4096 | NVIDIA H200 | cold | 1a2b3c4d`, ` | replay` at its end."""
    parts = (str(problem), circumstances.gpu, circumstances.timing, version)
    return " | ".join(parts) + (REPLAY_SUFFIX if replayed else "")
