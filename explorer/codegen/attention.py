"""What templates know of a kernel of attention beside its problem and config."""

import math
from dataclasses import dataclass
from typing import Any

from explorer.codegen.variant import HostCall, arguments, entries, namespace, needed_arch
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.key_split import KeySplit
from explorer.model.problem import Mask, Problem

_NUMBERS = {
    "rows": "long long rows",
    "cols": "int cols",
    "key_heads": "long long key_heads",
    "key_stride": "long long key_stride",
    "head_stride": "long long head_stride",
    "sequence_stride": "long long sequence_stride",
    "scale": "float scale",
}
"""The declarations of the numbers that a kernel takes."""


@dataclass(frozen=True, slots=True)
class AttentionTraits:
    """The facts of one kernel of attention."""

    problem: Problem
    config: Config
    overlapped: bool = False
    """The launch may begin before the one before it on its stream has ended, whatever that is."""

    def context(self) -> dict[str, Any]:
        """Return all that templates may name."""
        problem, config = self.problem, self.config
        keys, clustered = KeySplit(problem, config), config.cluster > 1
        element, exp = problem.dtype.cuda, {"ex2.approx": "exp2_approximate"}
        dimensions = "__cluster_dims__(kCluster, 1, 1) " if clustered else ""
        names = {
            "problem": problem,
            "config": config,
            "keys": keys,
            "tensor_cores": config.core == "mma",
            "clustered": clustered,
            "staged": config.staging == "async",
            "skips": problem.mask is Mask.LENGTHS and config.splits_launches,
            "shared": config.cache == "shared",
            "unfused": config.launches == "three",
            "some_heads": config.core == "fma" and not keys.keeps_scores,
            "limited": problem.mask is Mask.LENGTHS,
            "scaled": problem.scale is not None,
            "scale": f"{math.log2(math.e) / math.sqrt(problem.of_head)!r}f",
            "has_lse": bool(problem.also),
            "function": exp.get(config.exp, config.exp),
            "overlapped": config.launches == "two-overlapped",
            "waits_for_others": self.overlapped,
            "run_time": True,
            "per_row": False,
            "f64": False,
            "real": "float",
            "log": False,
            "element_type": element,
            "output_type": element,
            "element": element.as_element,
            "number": element.as_number,
            "load": self._load,
            "name": namespace(problem, config),
            "entries": list(entries(problem, config)),
            "arguments": arguments(problem, config),
            "bounds": f"SOFTMAX_API {dimensions}__global__ void "
            "__launch_bounds__(kThreads, kMinBlocks)",
            "no_template": self._no_template,
        }
        return names | self._declared() | self._host()

    def _load(self, words: str, number: str) -> str:
        """Word `number` from `words` on, by the load that the config asks for."""
        if self.config.load_hint == "default":
            return f"{words}[{number}]"
        return f"load_word({words} + {number})"

    def _arrays(self) -> dict[str, str]:
        """Return the types of the arrays, by their names."""
        read = dict.fromkeys(("query", "key", "value"), "const Element*")
        rest = {"lengths": "const int*", "output": "Element*", "lse": "float*"}
        return {**read, **rest, "scratch": "float*"}

    def _declared(self) -> dict[str, Any]:
        """Return how a kernel declares what it takes, by the names in its launches."""
        # What an earlier launch may still write must not be loaded as a constant.
        restrict = "" if self.overlapped else "__restrict__ "
        own = {"scratch": "", "output": "__restrict__ ", "lse": "__restrict__ "}
        declarations = {
            name: f"{kind} {own.get(name, restrict)}{'lse_of_rows' if name == 'lse' else name}"
            for name, kind in self._arrays().items()
        }
        return {"declarations": declarations | _NUMBERS}

    def _host(self) -> dict[str, Any]:
        """Return what the host's function takes, and what it passes on to the kernels."""
        problem, config, arrays = self.problem, self.config, self._arrays()
        asked = list(HostCall.of(problem, config).names)
        declarations = {name: f"{kind} {name}" for name, kind in arrays.items()} | _NUMBERS
        untyped = {
            name: f"{'const ' if kind.startswith('const') else ''}void* {name}"
            for name, kind in arrays.items()
        }
        return {
            "asked": asked,
            "passed": list(arguments(problem, config)),
            "host_declarations": declarations,
            "c_declarations": declarations | untyped,
            "c_passed": [
                f"static_cast<{arrays[name]}>({name})" if name in arrays else name for name in asked
            ],
            "needed_arch": needed_arch(problem, config, self.overlapped),
        }

    def _no_template(self, parameter: str) -> Any:
        """End a switch of a template that has no text for a value; raises InvalidInput."""
        value = getattr(self.config, parameter)
        raise InvalidInput(
            f"config parameter '{parameter}' is {value!r}; there is no template for it with "
            f"{self.problem.op}"
        )
