"""Render a config's variant for a problem: a pure function of the two."""

import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from explorer.asked import AskedProblem
from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.traits import Traits
from explorer.codegen.units import Assembly, constants, heading, library, words
from explorer.codegen.variant import Variant, launches, scratch_bytes
from explorer.config import Config
from explorer.problem import Problem

MACROS = ("counted", "counted_slot", "await_phase")
"""Macros that units share."""


KEPT = 512
"""Variants that are kept, of 30 KB each: a search asks for each of them several times."""


@lru_cache(maxsize=KEPT)
def emit(problem: Problem, config: Config) -> Variant:
    """Return the variant of a config; one that a rule excludes may not compile.

    Raises InvalidInput for a value that no template knows.
    """
    return Variant(
        problem,
        config,
        assembled(problem, config).program(),
        launches(problem, config),
        scratch_bytes(problem, config),
    )


def assembled(problem: Problem, config: Config) -> "Assembled":
    """Return a config's program in its parts. Raises InvalidInput as `emit` does."""
    config.check_known()
    context = Traits(problem, config).context() | {
        "options": shlex.join(AskedProblem.of(problem).options),
        "launch_lines": LaunchPlan.of(problem, config).lines,
    }
    macros = library().environment.get_template("fragments.cu.j2").make_module(context)
    context |= {name: getattr(macros, name) for name in MACROS}
    host = {name: _rendered(f"host/{name}.cu.j2", context) for name in ("launch", "main")}
    device = Assembly(context)
    strides = config.persistent or config.staging == "span"
    device.require(["launched_kernel" if strides else "kernel", *words("".join(host.values()))])
    return Assembled(context, _rendered("header/header.cu.j2", context), device, host)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a program."""

    context: dict[str, Any]
    header: str
    device: Assembly
    host: dict[str, str]
    """The functions that a program calls, and the main program of the file's own."""

    def program(self) -> str:
        """Return the file: its header, what the GPU runs, and the host's part."""
        lines = "\n".join(line.removeprefix("//") for line in self.context["launch_lines"])
        named = self.device.names | words("".join(self.host.values())) | words(lines)
        defined = constants(_rendered("parameters/parameters.cu.j2", self.context), named)
        units = self.device.text()
        title = f"{heading('parameters')}\n\n" if "\n// ---" in f"\n{units}" else ""
        device = f"{title}{defined}\n\n{units}"
        parts = {"header": self.header, "device": device, **self.host}
        return _rendered("program.cu.j2", self.context | parts) + "\n"


def _rendered(name: str, context: dict[str, Any]) -> str:
    return library().environment.get_template(name).render(context).strip("\n")
