"""The contract between what searches and what evaluates: a GPU, a recording, a test's fake."""

from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Outcome
from explorer.model.problem import Problem


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contenders, timed in turn, round by round, so that drift hits all alike."""

    samples_us: tuple[tuple[float, ...], ...]
    """Microseconds a launch: one row a contender, one column a round."""
    limit_us: tuple[float, ...]
    """The problem's limit, timed in the same rounds; one value, or none, where it was not."""
    interleaved: bool = True
    """False where samples taken one kernel after the other stand in."""
    peers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The rows of the peers that had entered, by name; none without peers."""


class Evaluator(Protocol):
    """Turns configs of one problem on one GPU into outcomes."""

    @property
    def problem(self) -> Problem:
        """What is computed."""

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that times come from."""

    @property
    def environment(self) -> Environment:
        """Of the measurements; complete once something was measured."""

    @property
    def catalogue(self) -> Sequence[Config] | None:
        """The only configs that can be evaluated (a recording's), or None for every legal one."""

    @property
    def compared(self) -> Collection[Config]:
        """The configs of the catalogue that were timed in turn; none where there is none."""

    @property
    def notices(self) -> Sequence[str]:
        """Sentences on what limits the catalogue, for a user to know; mostly none."""

    @property
    def interleaves(self) -> bool:
        """Whether `compare` measures afresh, in turn; a recording gives what it has instead."""

    @property
    def ahead(self) -> int:
        """How many configs should compile while one is evaluated, so that none is waited for."""

    @property
    def workers(self) -> Sequence[str] | None:
        """A line on each GPU of a cluster, which all evaluate at the same time, in words.

        None for a single device, which evaluates in the order of `begin`. A cluster has one
        coordinator, so that no other process searches the study.
        """

    def identity(self, config: Config) -> str:
        """Digest of the code that `config` emits: equal identities have equal outcomes."""

    def submit(self, config: Config) -> None:
        """Start, in the background, what needs no GPU: emit and compile."""

    def compiling(self, config: Config) -> Future[Any] | None:
        """Return a future that is done once a submitted config is compiled; None where none is."""

    def begin(self, config: Config) -> None:
        """Have the GPU go on with a submitted config by itself, if it can; does not wait.

        `evaluate` is to be called for it next, or after the one that was begun before it.
        """

    def evaluating(self, config: Config) -> Future[Any] | None:
        """Return a future that is done once a config that was begun is evaluated.

        None where `evaluate` is to be called in its turn, or need not wait.
        """

    def evaluate(self, config: Config) -> Outcome:
        """Verify and time a config, once it is compiled; a variant's failures are outcomes."""

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        """Time measured configs, the limit and the peers that entered in turn, `rounds` times."""


def width(evaluator: Evaluator) -> int:
    """Return how many kernels are evaluated at the same time, where there are GPUs."""
    return max(1, len(evaluator.workers or ()))


def first_evaluated(evaluator: Evaluator, configs: Sequence[Config]) -> Config:
    """Return the config, of those that were begun in this order, whose outcome is there first."""
    running: dict[Future[Any], Config] = {}
    for config in configs:
        evaluating = evaluator.evaluating(config)
        if evaluating is None or evaluating.done():
            return config
        running[evaluating] = config
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    return running[done.pop()]
