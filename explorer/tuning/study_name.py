"""One study a problem, GPU, timing mode, space version, accuracy and objectives.

A replay is a study of its own.
"""

from explorer.circumstances import Circumstances
from explorer.problem import Problem
from explorer.tuning.goal import Goal
from explorer.tuning.objectives import Objectives

REPLAY_SUFFIX = " | replay"


def study_name(
    problem: Problem,
    circumstances: Circumstances,
    version: str,
    objectives: Objectives = Objectives.TIME,
    *,
    replayed: bool,
) -> str:
    """Such as `softmax f32 8192x4096 | NVIDIA H200 | cold | 1a2b3c4d`, ` | replay` at its end.

    Accuracy and objectives are named where they are not as usual.
    """
    parts = [str(problem), circumstances.gpu, circumstances.timing, version]
    parts += [] if objectives is Objectives.TIME else [str(objectives)]
    goal = Goal(objectives, circumstances.accuracy)
    parts += [] if goal.is_usually_exact else [str(goal.accuracy)]
    return " | ".join(parts) + (REPLAY_SUFFIX if replayed else "")
