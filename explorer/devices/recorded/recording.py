"""A recording: measurements of many kernels of one problem on one GPU."""

from dataclasses import dataclass

from explorer.circumstances import Circumstances
from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Outcome
from explorer.problem import Problem


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """One kernel: what emits it, and what became of it."""

    config: Config
    digest: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RecordedComparison:
    """The best kernels timed in turn, the very best entered a second time; microseconds."""

    digests: tuple[str, ...]
    samples_us: tuple[tuple[float, ...], ...]
    again_us: tuple[float, ...]
    """The first contender's second entry."""
    copy_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """What a recording is of."""

    problem: Problem
    gpu: GpuSpec
    circumstances: Circumstances
    rule: str
    """How the configs were chosen, in words."""
    kernel_count: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A header, its kernels (one a digest) and the comparison of the best."""

    name: str
    header: RecordingHeader
    kernels: tuple[RecordedKernel, ...]
    comparison: RecordedComparison | None = None
