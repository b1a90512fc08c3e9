"""Programs that run an emitted kernel from a framework: the few lines around it, as they stand.

Here are the frameworks, and what their programs are called; the texts are `templates/programs`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from explorer.codegen import Variant, rendered
from explorer.model.errors import InvalidInput
from explorer.system.plain_data import shown
from explorer.wrappers.programs import cupy, jax, program_names, torch

__all__ = ["FRAMEWORKS", "Program", "program_for"]

_FRAMEWORKS: dict[str, tuple[str, str, Callable[[Variant], dict[str, Any]]]] = {
    "torch": ("_torch.py", "torch.py.j2", torch),
    "cupy": ("_cupy.py", "cupy.py.j2", cupy),
    "jax": ("_jax.py", "jax.py.j2", jax),
    "cpp": ("_main.cu", "cpp.cu.j2", lambda _: {}),
}
"""By framework: how the names of its programs end, their template, and what that names besides."""

FRAMEWORKS = tuple(_FRAMEWORKS)


class Program(NamedTuple):
    """A program that runs an emitted kernel, and checks it, as it stands beside the kernel."""

    path: Path
    text: str


def program_for(framework: str, variant: Variant, source: Path) -> Program:
    """Return the program for a framework that runs a variant from its source file.

    Raises InvalidInput for what the framework cannot launch.
    """
    name = source.name
    if source.suffix != ".cu" or not name.isprintable() or '"' in name or "\\" in name:
        raise InvalidInput(
            f"a program cannot build a file of the name {shown(name)}: name an --output that ends "
            "in .cu, without quotation marks and backslashes"
        )
    ending, template, names = _FRAMEWORKS[framework]
    context = program_names(variant, name) | names(variant)
    text = rendered(f"programs/{template}", context) + "\n"
    return Program(source.with_name(f"{source.stem}{ending}"), text)
