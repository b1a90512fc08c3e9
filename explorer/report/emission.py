"""An emitted kernel as data: everything that a program needs that compiles and launches it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from explorer.codegen import Variant
from explorer.codegen.host_call import LIBRARY_MACRO, POINTER, HostCall
from explorer.codegen.variant import needed_arch
from explorer.evaluate.emulation import Verdict
from explorer.model.outcome import Resources
from explorer.model.problem import inputs, output, scalars
from explorer.report.text import problem_data
from explorer.report.verification import verdict_data

Data = dict[str, Any]


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
