"""Programs that run an emitted kernel from a framework: the few lines around it, as they stand.

Here are the frameworks, and what the program for each is called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from explorer.codegen import Variant
from explorer.model.errors import InvalidInput
from explorer.system.plain_data import shown
from explorer.wrappers.cpp_program import cpp_program
from explorer.wrappers.cupy_program import cupy_program
from explorer.wrappers.jax_program import jax_program
from explorer.wrappers.torch_program import torch_program

__all__ = ["FRAMEWORKS", "Program", "program_for"]

_WRITERS: dict[str, tuple[str, Callable[[Variant, str], str]]] = {
    "torch": ("_torch.py", torch_program),
    "cupy": ("_cupy.py", cupy_program),
    "jax": ("_jax.py", jax_program),
    "cpp": ("_main.cu", cpp_program),
}
"""By framework: how the names of its programs end, and what writes one for a file of a name."""

FRAMEWORKS = tuple(_WRITERS)


@dataclass(frozen=True, slots=True)
class Program:
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
    ending, write = _WRITERS[framework]
    return Program(source.with_name(f"{source.stem}{ending}"), write(variant, name))
