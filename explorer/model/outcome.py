"""The outcome of evaluating a config, and the environment in which it was measured."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median, quantiles
from typing import Any

from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.system.plain_data import read_fields

# ------------------------------------------------------------------ outcome


class Stage(StrEnum):
    """The stage of the evaluation at which a variant was rejected, in order."""

    INVALID = "invalid"
    COMPILE = "compile"
    RESOURCES = "resources"
    VERIFY = "verify"
    CRASH = "crash"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that ptxas allocated to a kernel, and the dynamic shared memory of its launch."""

    registers: int
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    code_bytes: int = 0

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic shared memory of one block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    def __str__(self) -> str:
        """Return a sentence with registers a thread, shared memory a block, and spills."""
        spilled = self.spill_store_bytes + self.spill_load_bytes
        spills = f"{spilled} bytes spilled" if spilled else "no spills"
        return f"{self.registers} registers, {self.shared_bytes} bytes shared, {spills}"


def spread(samples: Sequence[float]) -> float:
    """Return the samples' interquartile range divided by their median; 0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


class Timed:
    """A base of classes with `samples_us`: times of one kernel, in microseconds a launch."""

    __slots__ = ()
    samples_us: tuple[float, ...]

    @property
    def time_us(self) -> float:
        """Median microseconds of a launch."""
        return median(self.samples_us)

    @property
    def spread(self) -> float:
        """Interquartile range of the samples over their median."""
        return spread(self.samples_us)


@dataclass(frozen=True, slots=True)
class Measured(Timed):
    """A variant that was verified, then timed."""

    samples_us: tuple[float, ...]
    """Microseconds a launch, one sample a graph replay."""
    error: float
    """Largest relative error of the output against float64, in the verification."""
    resources: Resources
    digest: str
    """Digest of the emitted code and its launches."""
    max_ulp: float | None = None
    """Largest error in ulps of the output's type; None where it was not recorded."""
    mean_ulp: float | None = None
    """Mean error in ulps, of all elements that were checked."""

    @classmethod
    def from_dict(cls, values: Any) -> "Measured":
        """Read what recordings and studies keep, among other values. Raises InvalidInput."""
        read = read_fields(cls, values, "outcome", ignore_unknown=True)
        if not read.samples_us:
            raise InvalidInput("samples_us is empty; a measured kernel has a sample")
        return read


@dataclass(frozen=True, slots=True)
class Rejected:
    """A variant that cannot be used, and why."""

    stage: Stage
    reason: str

    @classmethod
    def from_dict(cls, values: Any) -> "Rejected":
        """Read what recordings and studies keep, among other values. Raises InvalidInput."""
        return read_fields(cls, values, "outcome", ignore_unknown=True)


Outcome = Measured | Rejected


# ------------------------------------------------------------------ environment


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything that a reader needs to judge and repeat a measurement."""

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
    """Name of that plain copy."""
    buffers: int = 0
    """Pairs of input and output that launches rotate over."""
    launches_per_sample: int = 0
    sm_clock_mhz: int = 0
    memory_clock_mhz: int = 0
    throttle_reasons: str = ""
    """The driver's reasons for lowered clocks during the measurement; empty for none."""
    peak_gbps: float = 0.0
    """Datasheet bandwidth, 0 where unknown."""
    accuracy: Accuracy = Accuracy.DEFAULT
    """The accuracy that kernels had to meet."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Environment":
        """Read what `as_dict` wrote; fields of other versions are ignored. Raises InvalidInput."""
        return read_fields(cls, values, "circumstances", ignore_unknown=True)
