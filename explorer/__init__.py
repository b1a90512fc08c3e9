"""softmax-explorer: emit, verify and time CUDA softmax kernels; keep the fastest per problem.

`explorer.softmax`, `log_softmax`, `logsumexp`, `log_prob`, `cross_entropy` and `decode_attention`
compute with these kernels, on arrays of PyTorch, CuPy and JAX. `explorer.search`, `tune`, `emit`,
`verify`, `time`, `compare`, `journey`, `show`, `studies`, `profile`, `diff`, `table`, `cache`,
`write_report`, `describe_space` and `find_presets` do what the commands of these names do, and
return dataclasses. Names are imported when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.api import (
        cache,
        compare,
        describe_space,
        diff,
        emit,
        find_presets,
        journey,
        profile,
        search,
        show,
        side_by_side,
        studies,
        table,
        time,
        tune,
        verify,
        write_report,
    )
    from explorer.codegen.variant import Launch, Variant
    from explorer.compile.compiler import CacheFolder
    from explorer.devices.own_kernel import OwnLaunch
    from explorer.evaluate.verify import FinalistCheck
    from explorer.export.emission import Emitted
    from explorer.model.config import Config
    from explorer.model.element import DType
    from explorer.model.errors import DeviceLost, ExplorerError, InvalidInput, NotFound, WrongKernel
    from explorer.model.outcome import Contender, Environment, Measured, Resources, TrialRecord
    from explorer.model.problem import Mask, Problem
    from explorer.model.query import ProblemKeywords
    from explorer.model.tuned_table import TunedProblem, TunedTable
    from explorer.ops import Op
    from explorer.ptx_emulator import Finding
    from explorer.report.notebook import (
        Journey,
        PeerRun,
        Profile,
        SearchResult,
        StudyHistory,
        TimedFile,
        Tuned,
        Verdict,
    )
    from explorer.report.side_by_side import SideBySide
    from explorer.runtime.attention import decode_attention, merge_states
    from explorer.runtime.functions import (
        LogProbs,
        RowLosses,
        causal_lm_loss,
        cross_entropy,
        cross_entropy_backward,
        cross_entropy_forward,
        log_prob,
        log_softmax,
        logsumexp,
        register_torch,
        softmax,
    )
    from explorer.runtime.service import set_options, warm_up
    from explorer.runtime.shapes import log_shapes
    from explorer.tuning.contest import Finals
    from explorer.tuning.peer_comparison import PeerComparison
    from explorer.tuning.results import Progress, StudySummary

__version__ = "0.2.0"

_MODULES = {
    "explorer.api": (
        "cache",
        "compare",
        "describe_space",
        "diff",
        "emit",
        "find_presets",
        "journey",
        "profile",
        "search",
        "show",
        "side_by_side",
        "studies",
        "table",
        "time",
        "tune",
        "verify",
        "write_report",
    ),
    "explorer.codegen.variant": ("Launch", "Variant"),
    "explorer.compile.compiler": ("CacheFolder",),
    "explorer.devices.own_kernel": ("OwnLaunch",),
    "explorer.evaluate.verify": ("FinalistCheck",),
    "explorer.export.emission": ("Emitted",),
    "explorer.model.config": ("Config",),
    "explorer.model.element": ("DType",),
    "explorer.model.errors": (
        "DeviceLost",
        "ExplorerError",
        "InvalidInput",
        "NotFound",
        "WrongKernel",
    ),
    "explorer.model.outcome": ("Contender", "Environment", "Measured", "Resources", "TrialRecord"),
    "explorer.model.problem": ("Mask", "Problem"),
    "explorer.ops": ("Op",),
    "explorer.model.query": ("ProblemKeywords",),
    "explorer.model.tuned_table": ("TunedProblem", "TunedTable"),
    "explorer.ptx_emulator": ("Finding",),
    "explorer.report.notebook": (
        "Journey",
        "PeerRun",
        "Profile",
        "SearchResult",
        "StudyHistory",
        "TimedFile",
        "Tuned",
        "Verdict",
    ),
    "explorer.report.side_by_side": ("SideBySide",),
    "explorer.runtime.attention": ("decode_attention", "merge_states"),
    "explorer.runtime.functions": (
        "LogProbs",
        "RowLosses",
        "causal_lm_loss",
        "cross_entropy",
        "cross_entropy_backward",
        "cross_entropy_forward",
        "log_prob",
        "log_softmax",
        "logsumexp",
        "register_torch",
        "softmax",
    ),
    "explorer.runtime.service": ("set_options", "warm_up"),
    "explorer.runtime.shapes": ("log_shapes",),
    "explorer.tuning.contest": ("Finals",),
    "explorer.tuning.peer_comparison": ("PeerComparison",),
    "explorer.tuning.results": ("Progress", "StudySummary"),
}
"""Each module, with its names that are public."""

__all__ = [
    "CacheFolder",
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
    "Journey",
    "Launch",
    "LogProbs",
    "Mask",
    "Measured",
    "NotFound",
    "Op",
    "OwnLaunch",
    "PeerComparison",
    "PeerRun",
    "Problem",
    "ProblemKeywords",
    "Profile",
    "Progress",
    "Resources",
    "RowLosses",
    "SearchResult",
    "SideBySide",
    "StudyHistory",
    "StudySummary",
    "TimedFile",
    "TrialRecord",
    "Tuned",
    "TunedProblem",
    "TunedTable",
    "Variant",
    "Verdict",
    "WrongKernel",
    "cache",
    "causal_lm_loss",
    "compare",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "decode_attention",
    "describe_space",
    "diff",
    "emit",
    "find_presets",
    "journey",
    "log_prob",
    "log_shapes",
    "log_softmax",
    "logsumexp",
    "merge_states",
    "profile",
    "register_torch",
    "search",
    "set_options",
    "show",
    "side_by_side",
    "softmax",
    "studies",
    "table",
    "time",
    "tune",
    "verify",
    "warm_up",
    "write_report",
]

_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    # Without this, Python would call this function each time: 1.3 us of each explorer.softmax(x).
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
