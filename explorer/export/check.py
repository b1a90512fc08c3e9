"""Checks of a config that a user wrote: is it legal, and does its source compile?"""

from dataclasses import replace

from explorer.codegen import Variant
from explorer.compile import CompileFailure, Compiler
from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Resources
from explorer.problem import Problem
from explorer.space import Space


def checked_config(config: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """The config itself; raises InvalidInput with the sentence of the rule that it breaks."""
    space = Space(problem, gpu)
    foreign = space.foreign_value(config)
    if foreign is not None:
        raise InvalidInput(f"config cannot be emitted: {foreign}")
    rule = space.broken_rule(config)
    if rule is not None:
        raise InvalidInput(
            f"config cannot be emitted for {problem} on {gpu.name}: {rule.reason(config)}"
        )
    return config


def compile_for(arch: str, variant: Variant) -> Resources:
    """What ptxas allots to the variant on `arch`, such as sm_90.

    Raises InvalidInput where the source does not compile, ExplorerError where NVRTC is missing.
    """
    compiler = Compiler(arch)
    try:
        resources = compiler.compile(variant.source).resources
    except CompileFailure as failure:
        raise InvalidInput(
            f"the config's kernel does not compile for {arch}: {failure}; choose another config"
        ) from None
    dynamic = max(launch.shared_bytes for launch in variant.launches)
    return replace(resources, dynamic_shared_bytes=dynamic)
