"""softmax-explorer: emit, verify and time CUDA softmax kernels; keep the fastest per problem.

`explorer.softmax` and `explorer.log_softmax` compute with these kernels, on arrays of PyTorch, CuPy
and JAX. `explorer.search`, `emit`, `verify` and `compare` do what the commands of these names do,
and return dataclasses. Names are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from explorer.system.lazy import lazy_names

if TYPE_CHECKING:
    from explorer.api import compare, emit, search, tune, verify
    from explorer.codegen import Launch, Variant
    from explorer.evaluate.emulation import Verdict
    from explorer.evaluate.verify import FinalistCheck
    from explorer.export.emission import Emitted
    from explorer.model.config import Config
    from explorer.model.dtype import DType
    from explorer.model.errors import DeviceLost, ExplorerError, InvalidInput, NotFound, WrongKernel
    from explorer.model.outcome import Contender, Environment, Measured, Resources, TrialRecord
    from explorer.model.problem import Mask, Op, Problem
    from explorer.model.query import ProblemKeywords
    from explorer.model.tuned_table import TunedProblem, TunedTable
    from explorer.ptx_emulator import Finding
    from explorer.runtime.functions import log_softmax, register_torch, softmax
    from explorer.runtime.service import set_options, warm_up
    from explorer.runtime.shapes import log_shapes
    from explorer.tuning.contest import Finals
    from explorer.tuning.peer_comparison import PeerComparison, PeerRun
    from explorer.tuning.results import Progress, SearchResult

__version__ = "0.2.0"

_HOMES = {
    "Environment": "explorer.model.outcome",
    "Config": "explorer.model.config",
    "Contender": "explorer.model.outcome",
    "DType": "explorer.model.dtype",
    "DeviceLost": "explorer.model.errors",
    "Emitted": "explorer.export.emission",
    "ExplorerError": "explorer.model.errors",
    "FinalistCheck": "explorer.evaluate.verify",
    "Finals": "explorer.tuning.contest",
    "Finding": "explorer.ptx_emulator",
    "InvalidInput": "explorer.model.errors",
    "Launch": "explorer.codegen",
    "Mask": "explorer.model.problem",
    "Measured": "explorer.model.outcome",
    "NotFound": "explorer.model.errors",
    "Op": "explorer.model.problem",
    "PeerComparison": "explorer.tuning.peer_comparison",
    "PeerRun": "explorer.tuning.peer_comparison",
    "Problem": "explorer.model.problem",
    "ProblemKeywords": "explorer.model.query",
    "Progress": "explorer.tuning.results",
    "Resources": "explorer.model.outcome",
    "SearchResult": "explorer.tuning.results",
    "TrialRecord": "explorer.model.outcome",
    "TunedProblem": "explorer.model.tuned_table",
    "TunedTable": "explorer.model.tuned_table",
    "Variant": "explorer.codegen",
    "Verdict": "explorer.evaluate.emulation",
    "WrongKernel": "explorer.model.errors",
    "compare": "explorer.api",
    "emit": "explorer.api",
    "log_shapes": "explorer.runtime.shapes",
    "log_softmax": "explorer.runtime.functions",
    "register_torch": "explorer.runtime.functions",
    "search": "explorer.api",
    "set_options": "explorer.runtime.service",
    "softmax": "explorer.runtime.functions",
    "tune": "explorer.api",
    "verify": "explorer.api",
    "warm_up": "explorer.runtime.service",
}

__all__ = [
    "Config",
    "Contender",
    "DType",
    "DeviceLost",
    "Emitted",
    "Environment",
    "ExplorerError",
    "FinalistCheck",
    "Finals",
    "Finding",
    "InvalidInput",
    "Launch",
    "Mask",
    "Measured",
    "NotFound",
    "Op",
    "PeerComparison",
    "PeerRun",
    "Problem",
    "ProblemKeywords",
    "Progress",
    "Resources",
    "SearchResult",
    "TrialRecord",
    "TunedProblem",
    "TunedTable",
    "Variant",
    "Verdict",
    "WrongKernel",
    "compare",
    "emit",
    "log_shapes",
    "log_softmax",
    "register_torch",
    "search",
    "set_options",
    "softmax",
    "tune",
    "verify",
    "warm_up",
]

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
