"""`python -m explorer.evaluate.nsight_child CONFIG PROBLEM INDEX`: one launch on a GPU."""

import json
import sys

from explorer.codegen import emit
from explorer.compile import Compiler
from explorer.config import Config
from explorer.devices.cuda.run_once import run_once
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.reference import normal_inputs


def launch_one(problem: Problem, config: Config, gpu: GpuSpec, index: int) -> None:
    """Compile what is timed, and launch it once on the input that the emulator counts with."""
    variant = emit(problem, config)
    kernel = Compiler(gpu.arch).compile(variant.source)
    arrays = normal_inputs(problem)
    run_once(kernel.cubin, variant.launches, problem, arrays, index, variant.scratch_bytes)


def main(words: list[str]) -> None:
    """Read the command line of one launch."""
    from explorer.devices.cuda.driver import device_spec

    config, problem_json, index = words
    problem = Problem.from_dict(json.loads(problem_json))
    launch_one(problem, Config.from_json(config), device_spec(int(index)), int(index))


if __name__ == "__main__":
    main(sys.argv[1:])
