"""Evaluate configs by their outcomes in a recording, without a GPU."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from explorer.codegen.variant import launches
from explorer.devices.recorded import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    find_recording,
    load_recording,
)
from explorer.evaluate.residency import resources_on
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.evaluator import Comparison
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Stage
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.space import Space


class ReplayEvaluator:
    """An Evaluator whose catalogue is the recorded configs.

    A kernel that was rejected under a recording's stricter accuracy stays rejected. Kernels whose
    config the installed space does not allow are skipped. Raises InvalidInput if all are, and if
    `accuracy` is stricter than the recording's, which has no errors in ulps.
    """

    interleaves = False

    ahead = 8
    """Kernels that compile while one is evaluated, as in a live search on an H200's host, where a
    kernel takes 165 ms to compile and 20 ms to evaluate. The number is the same on every machine,
    so that one seed gives the same trials."""

    def __init__(
        self,
        recording: Recording,
        accuracy: Accuracy = Accuracy.DEFAULT,
        passed_over: Sequence[str] = (),
    ) -> None:
        self.recording = recording
        self._accuracy = accuracy
        self._passed_over = passed_over
        space = Space(recording.header.problem, recording.header.gpu)
        self._kernels = {k.config: k for k in recording.kernels if space.is_legal(k.config)}
        self._catalogue = tuple(self._kernels)
        compared = set(recording.comparison.digests) if recording.comparison else set()
        self._compared = {k.config for k in self._kernels.values() if k.digest in compared}
        self._check_some_are_legal()
        self._check_errors_are_known()

    @classmethod
    def open(
        cls, problem: Problem, name: str | None = None, accuracy: Accuracy = Accuracy.DEFAULT
    ) -> "ReplayEvaluator":
        """Replay recording `name`, or the latest of `problem`; raises NotFound, InvalidInput."""
        if name is None:
            passed_over: list[str] = []
            recording = find_recording(ProblemQuery.of(problem), passed_over.append)
            return cls(recording, accuracy, passed_over)
        recording = load_recording(name)
        recorded = recording.header.problem
        if recorded != problem:
            raise InvalidInput(
                f"recording '{name}' is of {recorded}, not of {problem}; ask for "
                f"{' '.join(ProblemQuery.of(recorded).options)}"
            )
        return cls(recording, accuracy)

    @property
    def notices(self) -> list[str]:
        """Sentences on limitations of the recording, and on damaged ones; mostly empty."""
        notices = list(self._passed_over)
        left_out = len(self.recording.kernels) - len(self._kernels)
        if left_out:
            notices.append(
                f"{left_out} of {len(self.recording.kernels)} recorded kernels are passed over: "
                "the installed space does not allow their configs"
            )
        if self._recorded_accuracy.is_stricter_than(self._accuracy):
            notices.append(
                f"the recording was made under --accuracy {self._recorded_accuracy}: what that "
                f"rejected stays rejected, though {self._accuracy} might let it pass"
            )
        return notices

    @property
    def problem(self) -> Problem:
        """The recorded problem."""
        return self.recording.header.problem

    @property
    def gpu(self) -> GpuSpec:
        """The recording's GPU."""
        return self.recording.header.gpu

    @property
    def environment(self) -> Environment:
        """The recording's environment, with the accuracy of this replay."""
        return replace(self.recording.header.environment, accuracy=self._accuracy)

    @property
    def catalogue(self) -> Sequence[Config]:
        """The recorded configs."""
        return self._catalogue

    @property
    def compared(self) -> Collection[Config]:
        """The configs that were timed in turn."""
        return self._compared

    def identity(self, config: Config) -> str:
        """Return the recorded digest; raises InvalidInput for a config that was not recorded."""
        return self._kernel(config).digest

    def submit(self, config: Config) -> None:
        """Do nothing, because a replay does not compile."""

    def compiling(self, config: Config) -> None:
        """Return None: proposals are evaluated in order, so that a seed fixes the trials."""

    def begin(self, config: Config) -> None:
        """Do nothing, because every outcome is known."""

    def evaluate(self, config: Config) -> Outcome:
        """Return the recorded outcome; raises InvalidInput for a config that was not recorded.

        A kernel that was measured under a looser accuracy is rejected if its recorded errors exceed
        the limits. Its residency follows from its resources, where it was not recorded.
        """
        outcome = self._kernel(config).outcome
        if not isinstance(outcome, Measured):
            return outcome
        if not outcome.resources.resident_blocks:
            launched = launches(self.problem, config)
            outcome = replace(
                outcome, resources=resources_on(self.gpu, launched, outcome.resources)
            )
        if not self._is_stricter:
            return outcome
        fault = _fault(outcome, self.problem.output_dtype, self._accuracy)
        return Rejected(Stage.VERIFY, fault) if fault else outcome

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        """Return the recorded comparison if it has all configs, else samples of their evaluations.

        These are not interleaved, and the result says so.
        """
        kernels = [self._kernel(config) for config in configs]
        recorded = self.recording.comparison
        if recorded is not None and self._compared.issuperset(configs):
            return _from_comparison(recorded, [kernel.digest for kernel in kernels])
        return self._from_samples(kernels, rounds)

    def _from_samples(self, kernels: Sequence[RecordedKernel], rounds: int) -> Comparison:
        """Return rows of samples that were timed one kernel after the other, not in turn.

        A kernel's second entry is its samples shifted by half, so that it differs by their noise.
        """
        seen: set[str] = set()
        rows: list[tuple[float, ...]] = []
        for kernel in kernels:
            samples = kernel.outcome.samples_us if isinstance(kernel.outcome, Measured) else ()
            shift = len(samples) // 2 if kernel.digest in seen else 0
            seen.add(kernel.digest)
            rows.append(samples[shift:] + samples[:shift])
        shortest = min(rounds, *map(len, rows))
        limit_us = (self.environment.limit_us,) if self.environment.limit_us else ()
        return Comparison(tuple(row[:shortest] for row in rows), limit_us, interleaved=False)

    @property
    def _recorded_accuracy(self) -> Accuracy:
        return self.recording.header.environment.accuracy

    @property
    def _is_stricter(self) -> bool:
        return self._accuracy.is_stricter_than(self._recorded_accuracy)

    def _check_some_are_legal(self) -> None:
        if not self._kernels:
            raise InvalidInput(
                f"recording {self.recording.name} has {len(self.recording.kernels)} kernels, of "
                "which the installed space allows no config; make it again on a GPU with "
                "explorer record"
            )

    def _check_errors_are_known(self) -> None:
        outcomes = [k.outcome for k in self.recording.kernels]
        known = all(o.max_ulp is not None for o in outcomes if isinstance(o, Measured))
        if self._is_stricter and not known:
            raise InvalidInput(
                f"the recording of {self.problem} has no errors in ulps, so that none of its "
                f"kernels is known to meet --accuracy {self._accuracy}; make it again on a GPU "
                "with explorer record, or leave --accuracy out"
            )

    def _kernel(self, config: Config) -> RecordedKernel:
        if config not in self._kernels:
            raise InvalidInput(
                f"config {config.to_json(brief=True)} is not in recording {self.recording.name}; "
                "evaluate it on a GPU"
            )
        return self._kernels[config]


def _fault(outcome: Measured, dtype: DType, accuracy: Accuracy) -> str:
    """Return why a kernel that met a looser accuracy does not meet this one, or an empty string."""
    assert outcome.max_ulp is not None and outcome.mean_ulp is not None  # checked when opened
    tolerance = accuracy.tolerance(dtype)
    if outcome.error > tolerance.relative and outcome.max_ulp > tolerance.steps + 0.5:
        error, limit = tolerance.error_and_limit(outcome.error, outcome.max_ulp)
        return f"too inexact: {error}, the limit under {accuracy} is {limit}"
    return accuracy.excess(dtype, outcome.max_ulp, outcome.mean_ulp)


def _from_comparison(recorded: RecordedComparison, digests: Sequence[str]) -> Comparison:
    """Return the recorded rows of samples in the order of `digests`.

    Only the recording's best was entered twice. The second row of another kernel is its first one,
    changed in each round as the best's was.
    """
    changes = [b / a for a, b in zip(recorded.samples_us[0], recorded.again_us, strict=True)]
    rows: list[tuple[float, ...]] = []
    seen: set[str] = set()
    for digest in digests:
        first = recorded.samples_us[recorded.digests.index(digest)]
        if digest not in seen:
            rows.append(first)
        elif digest == recorded.digests[0]:
            rows.append(recorded.again_us)
        else:
            rows.append(tuple(us * change for us, change in zip(first, changes, strict=True)))
        seen.add(digest)
    return Comparison(tuple(rows), recorded.limit_us)
