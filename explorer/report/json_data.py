"""What `--json` prints: plain data under keys that stay as they are.

Times are microseconds (`_us`), bandwidths 1e9 bytes a second (`gbps`), shares fractions of 1;
what is not known is null. Keys may be added in a later version, never renamed or removed.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from explorer.codegen import Variant
from explorer.codegen.host_call import LIBRARY_MACRO, POINTER, HostCall
from explorer.codegen.variant import needed_arch
from explorer.devices.recorded import Recording
from explorer.evaluate.emulation import Verdict
from explorer.evaluate.verify import FinalistCheck
from explorer.model.operands import inputs, output, scalars
from explorer.model.outcome import Resources, Stage
from explorer.model.parameters import MEANING, REFUTED
from explorer.report.finals import finals_data, trial_data, winner_data
from explorer.report.machine import Check
from explorer.report.main_effects import headlines, unpaired_sentence
from explorer.report.pareto_front import front_data
from explorer.report.space import SpaceView, measured_us
from explorer.report.text import problem_data, reproducing_command
from explorer.report.verification import verdict_data
from explorer.tuning.objective import Objectives
from explorer.tuning.results import SearchResult, StudySummary, StudyView

Data = dict[str, Any]


def search_data(
    result: SearchResult, storage: str | None = None, checked: FinalistCheck | None = None
) -> Data:
    """study, problem, replayed, environment, the tally, finals, best, verified, emit.

    Of a search for time and error `front` lists the members of the Pareto front; else it is null.
    """
    best, goal = result.finals.winner.trial, result.goal
    two = goal.objectives is Objectives.TIME_ERROR
    return {
        "study": result.study,
        "problem": problem_data(result.problem),
        "replayed": result.replayed,
        "circumstances": result.environment.as_dict(),
        "trials": result.trials,
        "measured": result.measured,
        "duplicates": result.duplicates,
        "rejected": _rejected(result.rejected),
        "elapsed_s": result.elapsed_s,
        "stopped": result.stopped or None,
        "seed": result.seed,
        "objectives": str(result.objectives),
        "best": winner_data(result.finals, result.problem),
        "finals": finals_data(result.finals, result.problem),
        "front": front_data(result.finals, result.problem, goal, storage) if two else None,
        "verification": None if checked is None else asdict(checked),
        "emit": reproducing_command(best, result.problem, goal, storage),
    }


def study_data(view: StudyView, storage: str | None = None) -> Data:
    """A study's summary with environment, best, finals (or null), rejections and effects."""
    problem = view.summary.problem
    return {
        **summary_data(view.summary),
        "circumstances": view.environment.as_dict(),
        "best": _best(view),
        "finals": None if view.finals is None else finals_data(view.finals, problem),
        "front": _front(view, storage),
        "ended": view.ended or None,
        "rejected": _rejected(view.rejected),
        "reasons": [
            {"stage": str(stage), "reason": reason, "count": count}
            for stage, reason, count in view.reasons
        ],
        "parameters": [
            {
                "name": effect.name,
                "importance": effect.importance,
                "importance_low": effect.importance_low,
                "importance_high": effect.importance_high,
                "fastest_value": effect.fastest_value,
                "fastest_us": effect.fastest_us,
                "slowest_value": effect.slowest_value,
                "slowest_us": effect.slowest_us,
            }
            for effect in view.effects
        ],
        "main_effects": [asdict(contrast) for contrast in view.contrasts],
        "main_effects_in_words": [
            {"name": name, "sentence": sentence}
            for name, sentence in [
                *headlines(view),
                *((told.name, unpaired_sentence(told, problem)) for told in view.unpaired),
            ]
        ],
        "emit": reproducing_command(view.best, problem, view.summary.goal, storage),
    }


def _best(view: StudyView) -> Data:
    """As a finalist where there were finals; else as the search measured it."""
    problem, finals = view.summary.problem, view.finals
    return trial_data(view.best, problem) if finals is None else winner_data(finals, problem)


def _front(view: StudyView, storage: str | None) -> list[Data] | None:
    """As finalists where there were finals; else as the search measured them."""
    problem = view.summary.problem
    if view.summary.objectives is Objectives.TIME:
        return None
    if view.finals is None:
        return [trial_data(trial, problem) for trial in view.front]
    return front_data(view.finals, problem, view.summary.goal, storage)


def summary_data(summary: StudySummary) -> Data:
    """One study of `explorer studies`."""
    return {
        "study": summary.name,
        "problem": problem_data(summary.problem),
        "gpu": summary.gpu,
        "timing": summary.timing,
        "replayed": summary.replayed,
        "accuracy": str(summary.accuracy),
        "objectives": str(summary.objectives),
        "is_current": summary.is_current,
        "space_version": summary.space_version,
        "trials": summary.trials,
        "measured": summary.measured,
        "best_us": summary.best_us,
        "copy_us": summary.copy_us or None,
        "date": summary.date,
    }


def space_data(view: SpaceView) -> Data:
    """problem, gpu, arch, parameters with values and meaning, counts, rules.

    `not_searched` are the values that a search does not propose, `searched` counts what it may.
    """
    space = view.space
    return {
        "problem": problem_data(space.problem),
        "gpu": space.gpu.name,
        "arch": space.gpu.arch,
        "parameters": [
            {
                "name": name,
                "values": list(values),
                "not_searched": list(REFUTED.get(name, ())),
                "meaning": MEANING[name],
            }
            for name, values in view.parameters.items()
        ],
        "points": space.point_count,
        "legal": space.legal_count(),
        "searched": view.searched_count,
        "rules": [
            {
                "name": rule.name,
                "sentence": rule.sentence,
                "excluded_share": space.excluded_share(rule),
            }
            for rule in view.rules
        ],
    }


def _rejected(rejected: dict[Stage, int]) -> dict[str, int]:
    return {str(stage): rejected.get(stage, 0) for stage in Stage}


def emission_data(
    variant: Variant,
    path: Path,
    written: str,
    arch: str,
    resources: Resources | None,
    verdict: Verdict | None = None,
    program: tuple[Path, str] | None = None,
) -> Data:
    """What was written, how it is launched, resources and verification (null: neither).

    `launches` and `arguments` are all that a program needs that compiles the file by NVRTC, and
    `library` all that one needs that calls it as nvcc has compiled it. `program` is the file that
    runs it from a framework, and whether that was written (null: none was asked for).
    """
    needed = needed_arch(variant.config, overlapped=variant.launches[0].overlaps)
    return {
        "file": str(path),
        "written": str(written),
        "problem": problem_data(variant.problem),
        "config": variant.config.as_dict(),
        "digest": variant.digest,
        "arch": arch,
        "resources": None if resources is None else asdict(resources),
        "verification": None if verdict is None else verdict_data(verdict),
        "launches": [asdict(launch) for launch in variant.launches],
        "arguments": _arguments(variant),
        "scratch_bytes": variant.scratch_bytes,
        "needed_arch": None if needed is None else f"sm_{needed.number}",
        "library": _library(variant),
        "program": None
        if program is None
        else {"file": str(program[0]), "written": str(program[1])},
    }


def _arguments(variant: Variant) -> dict[str, Data]:
    """By the names that launches pass: kind, and an array's dtype and bytes or a number's value.

    Lengths are int32, scratch memory has no dtype. A launch's grid is `grid` blocks, or, where
    `blocks_per_sm` is not 0, at most so many on each SM. Its cluster is declared in the kernel.
    """
    problem = variant.problem
    arrays = {array.name: array for array in (*inputs(problem), output(problem))}
    numbers = scalars(problem)
    told: dict[str, Data] = {}
    for name in dict.fromkeys(name for launch in variant.launches for name in launch.arguments):
        if name in numbers:
            told[name] = {"kind": str(numbers[name].kind), "value": numbers[name].value}
        elif name in arrays:
            dtype = arrays[name].dtype
            element = "int32" if dtype is None else str(dtype)
            told[name] = {"kind": POINTER, "dtype": element, "bytes": arrays[name].bytes}
        else:
            told[name] = {"kind": POINTER, "dtype": None, "bytes": variant.scratch_bytes}
    return told


def _library(variant: Variant) -> Data:
    """The C functions that nvcc makes of the file with a macro, and the C++ namespace."""
    call = HostCall.of(variant.problem, variant.config)
    stream = {"name": "stream", "kind": POINTER}
    scratch = call.scratch_arguments
    return {
        "macro": LIBRARY_MACRO,
        "namespace": call.namespace,
        "function": call.function,
        "arguments": [*(asdict(argument) for argument in call.arguments), stream],
        "scratch_function": call.scratch_function,
        "scratch_arguments": None if scratch is None else [asdict(a) for a in scratch],
    }


def machine_data(checks: Sequence[Check]) -> Data:
    """ok (all that is required is there) and the checks."""
    return {
        "ok": all(check.ok for check in checks if check.required),
        "checks": [asdict(check) for check in checks],
    }


def recording_data(recording: Recording, path: Path) -> Data:
    """file, problem, environment, rule, kernels, measured, best_us."""
    times = measured_us(recording)
    return {
        "file": str(path),
        "problem": problem_data(recording.header.problem),
        "circumstances": recording.header.environment.as_dict(),
        "rule": recording.header.rule,
        "kernels": recording.header.kernel_count,
        "measured": len(times),
        "best_us": min(times),
    }
