"""`explorer profile`: what a kernel does and takes, counted, not timed."""

from typing import TYPE_CHECKING, Annotated

from explorer.cli import completions
from explorer.cli.options import (
    AccuracyOrNone,
    BatchInvariant,
    Gpu,
    Json,
    Minimised,
    Storage,
    Study,
    argument,
    option,
)
from explorer.cli.output import say
from explorer.cli.problem import with_problem
from explorer.model.asked import AskedProblem
from explorer.tuning.objective import Goal, Objectives

if TYPE_CHECKING:
    from explorer.codegen import Variant
    from explorer.evaluate.nsight import NsightFigures

What = Annotated[
    str,
    argument(
        "WHAT",
        "best, a trial's number, heuristic, a preset, or a config as JSON.",
        completions.variants,
    ),
]
ProfileDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "emulated; cuda:N adds Nsight Compute's figures; auto: cuda:0 if there is one.",
        complete=completions.among("auto", "cuda:0", "emulated"),
    ),
]


@with_problem
def profile(
    what: What,
    asked: AskedProblem | None,
    device: ProfileDevice = "auto",
    gpu: Gpu = None,
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    batch_invariant: BatchInvariant = False,
    storage: Storage = None,
    study: Study = None,
    json: Json = False,
) -> None:
    """Count what a kernel does: traffic, conflicts, instructions, occupancy."""
    from explorer.devices.names import gpu_limits, gpu_or_emulator
    from explorer.evaluate.profile import profile as profile_variant
    from explorer.export.choice import Scope, chosen_variant
    from explorer.model.gpu_spec import known_gpu_for
    from explorer.report.profile import print_profile, profile_data
    from explorer.report.table import results
    from explorer.report.text import as_json

    index = gpu_or_emulator(device)
    goal = Goal.of(objectives, accuracy, study)
    chosen = chosen_variant(what, Scope(asked, gpu, storage, goal, say, batch_invariant))
    limits = chosen.gpu or known_gpu_for(chosen.arch)
    if index is not None:
        limits = gpu_limits(None)
    counted = profile_variant(chosen.variant, limits)
    nsight = None if index is None else _nsight(chosen.variant, index)
    if json:
        print(as_json(profile_data(counted, nsight)))
    else:
        print_profile(counted, nsight, results())


def _nsight(variant: "Variant", index: int) -> "NsightFigures | str":
    from explorer.evaluate.nsight import nsight_figures

    return nsight_figures(variant.problem, variant.config, index)
