"""An evaluator with a known optimum: a cost model over the real space, failures of each stage.

And what has a search take one for a GPU.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from explorer.codegen.units import emit
from explorer.codegen.variant import launches
from explorer.compile.resources import resources_on
from explorer.evaluate.space_version import space_version
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.evaluator import Comparison
from explorer.model.gpu_spec import GpuSpec, known_gpu, registers_left
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Resources, Stage
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space

FLOOR_US = 60.0
UNKNOWN_COST = 0.1
"""Of a value that the model does not know."""
GPU = known_gpu("NVIDIA H200")

_COST = {
    "algorithm": {
        "three-pass": 0.0,
        "online": 0.06,
        "online-branchy": 0.12,
        "online-block-max": 0.01,
    },
    "vector_bytes": {16: 0.0, 8: 0.05, 4: 0.15},
    "reduction": {"shuffle": 0.0, "shared-tree": 0.03, "shared-serial": 0.12},
    "cache": {"registers": 0.0, "shared": 0.06, "none": 0.30},
    "cache_holds": {"exp": 0.0, "input": 0.02},
    "exp": {"expf": 0.04, "__expf": 0.012, "exp2f": 0.011, "ex2.approx": 0.0},
    "normalise": {"divide": 0.05, "reciprocal": 0.0},
    "load_hint": {"default": 0.015, "nc": 0.012, "cs": 0.0, "no-allocate": 0.004},
    "store_hint": {"default": 0.02, "cs": 0.0, "cg": 0.013},
    "min_blocks": {1: 0.01, 2: 0.0, 4: 0.008, 8: 0.05},
}


def model_us(config: Config) -> float:
    """Additive costs, and interactions: cache with algorithm and unroll, hint with vectors."""
    cost = sum(costs.get(getattr(config, name), UNKNOWN_COST) for name, costs in _COST.items())
    cost += 0.03 * abs(config.threads.bit_length() - 9)
    cost += 0.04 * abs(config.threads_per_row.bit_length() - 8)
    if config.algorithm == "online-block-max" and config.cache == "registers":
        cost -= 0.02
    if config.cache != "registers":
        cost -= 0.03 * (config.unroll.bit_length() - 1)
    if config.load_hint == "cs" and config.vector_bytes < 16:
        cost += 0.08
    return FLOOR_US * (1.0 + cost)


_ULP = {"expf": 18.0, "__expf": 38.0, "exp2f": 37.0, "ex2.approx": 39.0}


def model_ulp(config: Config) -> float:
    """The exponential's error, and that of sums which are longer the fewer threads share a row."""
    found = _ULP.get(config.exp, 30.0) + (0.5 if config.normalise == "reciprocal" else 0.0)
    return found + 40.0 / config.threads_per_row


def failure(config: Config) -> Rejected | None:
    """A failure of each stage, in corners of the space."""
    if config.exp == "expf" and config.threads == 768:
        return Rejected(Stage.COMPILE, "error: identifier undefined")
    if config.threads == 1024 and config.min_blocks == 2 and config.cache == "shared":
        return Rejected(Stage.RESOURCES, "too many resources requested for launch")
    if config.algorithm == "online-branchy" and config.reduction == "shared-serial":
        return Rejected(Stage.VERIFY, "relative error 0.5 at row 0, col 0; limit 4e-06")
    if config.threads == 96 and config.cache == "none":
        return Rejected(Stage.CRASH, "illegal memory access")
    if config.threads == 32 and config.threads_per_row == 1:
        return Rejected(Stage.TIMEOUT, "no end after 5 s")
    return None


class FakeEvaluator:
    """Evaluates by the model, with a little noise; counts what it is asked."""

    catalogue: Sequence[Config] | None = None
    compared = frozenset()
    notices = ()
    interleaves = True
    ahead = 8
    workers = None

    def __init__(
        self,
        problem: Problem | None = None,
        *,
        noise: float = 0.001,
        seed: int = 0,
        identity: Callable[[Config], str] | None = None,
        version: str | None = None,
        gpu: GpuSpec = GPU,
        accuracy: Accuracy = Accuracy.DEFAULT,
        knows_ulps: bool = True,
    ) -> None:
        self.problem = problem or Problem(8192, 4096)
        self.gpu = gpu
        self.evaluated: list[Config] = []
        self.submitted: list[Config] = []
        self._accuracy = accuracy
        self._knows_ulps = knows_ulps
        self._noise = noise
        self._rng = random.Random(seed)
        self._identity = identity
        self._version = version or space_version(self.problem)

    @property
    def environment(self) -> Environment:
        return Environment(
            gpu=self.gpu.name,
            arch=self.gpu.arch,
            driver="580.1",
            nvrtc="13.0",
            timing="cold",
            date="2026-01-02T03:04:05Z",
            space_version=self._version,
            template_digest="0" * 12,
            explorer="0.1.0",
            limit_us=FLOOR_US * 0.98,
            accuracy=self._accuracy,
        )

    def identity(self, config: Config) -> str:
        return self._identity(config) if self._identity else emit(self.problem, config).digest

    def submit(self, config: Config) -> None:
        self.submitted.append(config)

    def compiling(self, config: Config) -> Future[Any] | None:
        return None

    def begin(self, config: Config) -> None:
        pass

    def evaluating(self, config: Config) -> Future[Any] | None:
        return None

    def evaluate(self, config: Config) -> Outcome:
        self.evaluated.append(config)
        return failure(config) or self.measured(config)

    def measured(self, config: Config) -> Measured:
        registers = 24 + config.threads_per_row % 7
        return Measured(
            samples_us=tuple(self._sample(config) for _ in range(20)),
            error=1e-7,
            resources=Resources(registers=registers, code_bytes=2000 + config.threads),
            digest=self.identity(config),
            max_ulp=model_ulp(config) if self._knows_ulps else None,
            mean_ulp=model_ulp(config) / 12 if self._knows_ulps else None,
        )

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        drift = [1.0 + 0.02 * i / rounds for i in range(rounds)]
        return Comparison(
            samples_us=tuple(tuple(self._sample(c) * d for d in drift) for c in configs),
            limit_us=tuple(FLOOR_US * 0.98 * d for d in drift),
        )

    def _sample(self, config: Config) -> float:
        return round(model_us(config) * (1.0 + self._rng.gauss(0.0, self._noise)), 4)


class RestsOnRegisters(FakeEvaluator):
    """Its compiler gives the share of a row and 20 registers more, or what launch bounds leave.

    Times rest on residency: more than four blocks an SM do not help, and fewer cost 2 % each.
    `min_blocks` costs nothing by itself.
    """

    def measured(self, config: Config) -> Measured:
        outcome = super().measured(config)
        return replace(outcome, resources=self.resources(config))

    def resources(self, config: Config) -> Resources:
        """What the compiler gives a config's kernel."""
        left = registers_left(config.threads, config.min_blocks, self.gpu)
        rows = config.rows_per_thread if config.cache == "registers" else 0
        kept = rows and WorkSplit(self.problem, config).cached_registers + 4 * (rows - 1)
        compiled = Resources(min(kept + 20, left), code_bytes=2000 + config.threads)
        return resources_on(self.gpu, launches(self.problem, config), compiled)

    def _sample(self, config: Config) -> float:
        fewer = max(0, 4 - self.resources(config).resident_blocks)
        return round(super()._sample(replace(config, min_blocks=1)) * (1 + 0.02 * fewer), 4)


class Disturbed(FakeEvaluator):
    """Something happens before its sixth kernel; all configs emit other code."""

    def __init__(self, problem: Problem, happens: Callable[[], object]) -> None:
        super().__init__(problem, identity=Config.to_json)
        self._happens = happens

    def evaluate(self, config: Config) -> Outcome:
        if len(self.evaluated) == 5:
            self._happens()
        return super().evaluate(config)


def as_replay(evaluator: FakeEvaluator) -> FakeEvaluator:
    """Return the evaluator, which has the outcomes of 600 configs that were drawn at random."""
    space, rng = Space(evaluator.problem, evaluator.gpu), random.Random(5)
    evaluator.catalogue = list(dict.fromkeys(space.sample(rng) for _ in range(600)))
    return evaluator


def instead_of_a_gpu(monkeypatch, device: str = "cuda:0") -> None:
    """Have searches take every device's name for `device`, and a FakeEvaluator for what it is."""

    @contextmanager
    def for_search(problem: Problem, *_: Any) -> Iterator[FakeEvaluator]:
        yield FakeEvaluator(problem, identity=Config.to_json)

    monkeypatch.setattr("explorer.devices.names.gpu_or_recording", lambda _: device)
    monkeypatch.setattr("explorer.api._for_search", for_search)
