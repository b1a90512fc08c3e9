"""Render a config's variant for a problem: a pure function of the two."""

import shlex
from functools import cache, partial
from typing import NoReturn

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from explorer.asked import AskedProblem
from explorer.codegen.half_words import borrows_ends, keeps_packed
from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.launches import launches, namespace, scratch_bytes
from explorer.codegen.templates import template_dir
from explorer.codegen.variant import Variant
from explorer.codegen.wrap import wrap
from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.problem import Problem
from explorer.work_split import WorkSplit


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(template_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["wrap"] = wrap
    environment.filters["renamed"] = lambda names, new: [new.get(name, name) for name in names]
    environment.filters["each_of"] = lambda names, texts: [texts[name] for name in names]
    return environment


def _no_template(problem: Problem, config: Config, parameter: str) -> NoReturn:
    """End a switch of the templates that has no text for a value; raises InvalidInput."""
    raise InvalidInput(
        f"config parameter '{parameter}' is {getattr(config, parameter)!r}; there is no template "
        f"for it with {problem.op}, algorithm {config.algorithm} and inner {problem.inner}"
    )


def emit(problem: Problem, config: Config) -> Variant:
    """Return the variant of a config; one that a rule excludes may not compile.

    Raises InvalidInput for a value that no template knows.
    """
    config.check_known()
    steps = launches(problem, config)
    source = (
        _environment()
        .get_template("softmax.cu.j2")
        .render(
            problem=problem,
            config=config,
            split=WorkSplit(problem, config),
            packed=keeps_packed(problem, config),
            borrows=borrows_ends(problem, config),
            name=namespace(problem, config),
            entries=[step.entry for step in steps],
            arguments=steps[0].arguments,
            options=shlex.join(AskedProblem.of(problem).options),
            launch_lines=LaunchPlan.of(problem, config).lines,
            no_template=partial(_no_template, problem, config),
        )
    )
    return Variant(problem, config, source, steps, scratch_bytes(problem, config))
