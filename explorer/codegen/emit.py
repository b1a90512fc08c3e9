"""Render a config's variant for a problem: a pure function of the two."""

from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from explorer.codegen.launches import launches
from explorer.codegen.templates import template_dir
from explorer.codegen.variant import Variant
from explorer.config import Config
from explorer.problem import Problem


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(template_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def emit(problem: Problem, config: Config) -> Variant:
    """The variant of a legal config; an illegal one may emit code that does not compile."""
    source = _environment().get_template("softmax.cu.j2").render(problem=problem, config=config)
    return Variant(problem, config, source, launches(problem, config))
