"""Ratios that publications report between two of their kernels, to set beside ours."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportedRatio:
    """How many times as fast one preset was as another, where it was published."""

    slower: str
    faster: str
    low: float
    high: float
    """Greater than `low` where several shapes were measured."""
    where: str
    """Shapes, dtype and GPU."""
    publication: str


_T4 = "f16 kernels of one thread a row"

REPORTED = (
    ReportedRatio("unfused", "thread-per-row", 1.58, 1.58, "f16 32x4096, Tesla T4", _T4),
    ReportedRatio(
        "unfused",
        "thread-per-row-online",
        1.86,
        1.97,
        "f16, 32 and 64 rows x 512 to 8192, Tesla T4",
        _T4,
    ),
    ReportedRatio(
        "thread-per-row", "thread-per-row-online", 1.19, 1.19, "f16 32x4096, Tesla T4", _T4
    ),
    ReportedRatio(
        "llm.c-8",
        "llm.c-9",
        1.10,
        1.10,
        "f32 8192x50257, RTX 4060 Laptop",
        "llm.c pull request 841",
    ),
)
"""Computed from the published times: 1.063, 0.672 and 0.567 ms; 22.82 and 20.76 ms."""
