"""What became of a config, alone and in a contest, and the environment of its measurement."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from statistics import median, quantiles
from typing import Any

from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.system.plain_data import plain, read_fields, read_object, read_time_us

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
    """Resources that ptxas allotted to a kernel, shared memory of its launch, and residency."""

    registers: int
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    code_bytes: int = 0
    resident_blocks: int = 0
    """Blocks that an SM holds at the same time; 0 where that is not known (`with_residency`)."""
    rests_on_registers: bool = False
    """Whether eight registers a thread more or fewer would change how many blocks are resident, of
    those that the launch has."""

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic shared memory of one block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of registers that are stored to local memory and loaded again."""
        return self.spill_store_bytes + self.spill_load_bytes

    def is_stated(self, config: Config) -> bool | None:
        """Whether the launch bounds of `config` keep its residency, or need not; None if not known.

        One block an SM needs no bounds: any kernel that can be launched has as many.
        """
        if not self.resident_blocks:
            return None
        free = not self.rests_on_registers or self.resident_blocks == 1
        return free or config.min_blocks == self.resident_blocks

    def residency(self, config: Config) -> str:
        """Say how many blocks an SM holds, and whether launch bounds state it; empty if not known.

        `config` is the kernel's, whose launch bounds count.
        """
        blocks = self.resident_blocks
        if not blocks:
            return ""
        if blocks == 1:
            return "An SM holds one of its blocks; launch bounds need not state that."
        held = f"An SM holds {blocks} of its blocks at the same time"
        if config.min_blocks == blocks:
            return f"{held}. Its launch bounds ask other compilers for as many."
        if not self.rests_on_registers:
            return f"{held}. Eight registers a thread more or fewer would not change that."
        return (
            f"{held}. Its launch bounds do not state that: another compiler may give fewer. A "
            f'config with "min_blocks":{blocks} asks for as many; its kernel has a time of its own.'
        )

    def __str__(self) -> str:
        """Return registers a thread, shared memory a block, spills and, if known, residency."""
        spills = f"{self.spilled_bytes} bytes spilled" if self.spilled_bytes else "no spills"
        taken = f"{self.registers} registers, {self.shared_bytes} bytes shared, {spills}"
        blocks = self.resident_blocks
        held = f", {blocks} block{'' if blocks == 1 else 's'} resident on an SM" if blocks else ""
        return taken + held


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

    @property
    def why(self) -> str:
        """The reason, after the stage."""
        return f"{self.stage}: {self.reason}"

    @classmethod
    def from_dict(cls, values: Any) -> "Rejected":
        """Read what recordings and studies keep, among other values. Raises InvalidInput."""
        return read_fields(cls, values, "outcome", ignore_unknown=True)


Outcome = Measured | Rejected


@dataclass(frozen=True, slots=True)
class Absent:
    """A kernel or a library that has no time in a contest, and why."""

    name: str
    reason: str
    stage: str = ""
    """Where it fell, such as `verify` or `missing`; empty where a rule keeps it out."""

    @property
    def why(self) -> str:
        """The reason, after the stage where there is one."""
        return f"{self.stage}: {self.reason}" if self.stage else self.reason


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A finished trial that measured a kernel."""

    number: int
    config: Config
    outcome: Measured


# ------------------------------------------------------------------ in a contest


_VERDICT = ("samples_us", "ratio_to_best", "ratio_low", "ratio_high", "tied")
"""What finals add to a trial."""

_KEPT = {
    "trial": ("trial", "time_us", "spread", *_VERDICT),
    "names": ("names", "config", "digest", "error", "registers", "samples_us"),
    "name": ("name", "version", "note", "error", "max_ulp", "inexact", "samples_us"),
}
"""What files keep of a finalist, a published kernel and a library: the key that tells them apart,
and all that are needed."""

_KEPT_SINCE = ("wrong_rows", "form", "other_forms")
"""What files of the first versions lack of a library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender(Timed):
    """A kernel or a library that is timed in turn with others, and what became of it.

    A kernel has a config, and where a study found it a `trial`; a library has a version.
    """

    names: tuple[str, ...] = ()
    """What it is called; several names where published kernels have the same code."""
    samples_us: tuple[float, ...] = ()
    """Microseconds a launch, one a round; the median alone where a table keeps no more."""
    kernel: Config | None = field(default=None, metadata={"key": "config"})
    """The config of a kernel of ours; None for a library."""
    digest: str = ""
    error: float = 0.0
    """Largest relative error against float64, in the verification."""
    max_ulp: float | None = None
    registers: int = 0
    code_bytes: int = 0
    states_residency: bool = True
    """Whether its launch bounds keep its residency, without spills, or need not."""
    record: TrialRecord | None = field(default=None, metadata={"key": "trial"})
    ratio_to_best: float = 1.0
    """Median over the rounds of its sample over that of the best in the same round."""
    ratio_low: float = 1.0
    """Lower end of that median's confidence interval: 95 % for all contenders together."""
    ratio_high: float = 1.0
    tied: bool = False
    """Whether its time cannot be told from that of the best."""
    value: float | None = None
    """Median over the rounds of what an objective of the user's makes of it; None without one.

    The ratios and ties are then of these values, and not of times.
    """
    version: str = ""
    note: str = ""
    inexact: str = ""
    """Why a library would not pass as a kernel of ours, if rounding alone is the reason."""
    wrong_rows: tuple[str, ...] = ()
    """Rows on which a library is wrong all the same, such as those with infinities, in words."""
    form: str = ""
    """Which of its forms a library is; empty for one that has a single form."""
    other_forms: str = ""
    """The slower forms and their times, in words."""

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        config: Config,
        outcome: Measured,
        record: TrialRecord | None = None,
    ) -> "Contender":
        """Return a verified kernel with the samples that it took by itself."""
        return cls(
            names=names,
            samples_us=outcome.samples_us,
            kernel=config,
            digest=outcome.digest,
            error=outcome.error,
            max_ulp=outcome.max_ulp,
            registers=outcome.resources.registers,
            code_bytes=outcome.resources.code_bytes,
            states_residency=bool(outcome.resources.is_stated(config))
            and not outcome.resources.spilled_bytes,
            record=record,
        )

    @classmethod
    def of_trial(cls, trial: TrialRecord) -> "Contender":
        """Return the kernel of a study's trial with the samples that it took by itself."""
        return cls.of((f"trial {trial.number}",), trial.config, trial.outcome, trial)

    @property
    def name(self) -> str:
        """The first of its names; empty where it has none."""
        return self.names[0] if self.names else ""

    @property
    def config(self) -> Config:
        """The config of a kernel of ours."""
        assert self.kernel is not None
        return self.kernel

    @property
    def trial(self) -> TrialRecord:
        """The trial of the study that found it."""
        assert self.record is not None
        return self.record

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON: what files keep of such a contender."""
        kind = "trial" if self.record else "name" if self.kernel is None else "names"
        keys = [*_KEPT[kind], *(_KEPT_SINCE if kind == "name" else ())]
        keys += [] if self.value is None else ["value"]
        return {key: plain(getattr(self, key)) for key in keys}

    @classmethod
    def from_dict(cls, values: Any) -> "Contender":
        """Read what `as_dict` wrote, whatever else is there. Raises InvalidInput."""
        given = read_object(values, "contender")
        kind = next((kind for kind in _KEPT if kind in given), "name")
        missing = next((key for key in _KEPT[kind] if key not in given), None)
        if missing:
            raise InvalidInput(f"it has no {missing}")
        names = {"names": [given["name"]]} if kind == "name" else {}
        read = read_fields(cls, {**given, **names}, "contender", ignore_unknown=True)
        if read.record is None:
            if not read.names:
                raise InvalidInput("names is empty; a contender has a name")
            return read
        read_time_us(given["time_us"], "time_us")
        known = cls.of_trial(read.record)
        return replace(known, **{name: getattr(read, name) for name in (*_VERDICT, "value")})


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
    limit_us: float = 0.0
    """Median microseconds of the problem's limit (`Problem.limit`), in the same run."""
    limit_name: str = ""
    """How the kernel that was the limit moves its bytes."""
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
