"""Under what circumstances something was measured: kept beside every result."""

from dataclasses import asdict, dataclass
from typing import Any

from explorer.accuracy import Accuracy
from explorer.plain_data import read_fields


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a reader needs to judge, and to repeat, a measurement."""

    gpu: str
    arch: str
    driver: str
    nvrtc: str
    timing: str
    """`cold`: launches rotate over buffers of at least 4 x L2; `warm`: they stay on one."""
    date: str
    """UTC, to the second, ISO 8601."""
    space_version: str
    template_digest: str
    explorer: str
    """Version of this package."""
    copy_us: float = 0.0
    """Median microseconds of the fastest plain copy of the same bytes, in the same run."""
    copy_name: str = ""
    """Which plain copy that was."""
    buffers: int = 0
    """Pairs of input and output that launches rotate over."""
    launches_per_sample: int = 0
    sm_clock_mhz: int = 0
    memory_clock_mhz: int = 0
    throttle_reasons: str = ""
    """What held the clocks back while measuring, as the driver names it; empty for nothing."""
    peak_gbps: float = 0.0
    """Datasheet bandwidth, 0 where unknown."""
    accuracy: Accuracy = Accuracy.DEFAULT
    """What kernels had to meet."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Circumstances":
        """Read what `as_dict` wrote; fields of other versions are ignored. Raises InvalidInput."""
        return read_fields(cls, values, "circumstances", ignore_unknown=True)
