"""Evaluate by looking up a recording: no GPU, no times but those it holds."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from explorer.devices.recorded import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    find_recording,
    load_recording,
)
from explorer.model.accuracy import Accuracy
from explorer.model.asked import AskedProblem
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.model.evaluator import Comparison
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Stage
from explorer.model.problem import Problem
from explorer.space import Space


class ReplayEvaluator:
    """An Evaluator whose catalogue is what was recorded; errors are judged as recorded.

    What a recording made under a stricter accuracy rejected stays rejected. Kernels whose config
    the installed space does not allow are passed over. Raises InvalidInput where none is left, and
    for a stricter accuracy than the recording's where it does not tell errors in ulps.
    """

    interleaves = False

    ahead = 8
    """As a live search has on an H200's host, of which a replay is to be an example: there a kernel
    takes 165 ms to compile and 20 ms to evaluate. It is one number on every machine, so that one
    seed gives the same trials."""

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
            found = find_recording(AskedProblem.of(problem), passed_over.append)
            return cls(found, accuracy, passed_over)
        recording = load_recording(name)
        recorded = recording.header.problem
        if recorded != problem:
            raise InvalidInput(
                f"recording '{name}' is of {recorded}, not of {problem}; ask for "
                f"{' '.join(AskedProblem.of(recorded).options)}"
            )
        return cls(recording, accuracy)

    @property
    def notices(self) -> list[str]:
        """What a search must know of the recording, and of those passed over; mostly empty."""
        said = list(self._passed_over)
        left_out = len(self.recording.kernels) - len(self._kernels)
        if left_out:
            said.append(
                f"{left_out} of {len(self.recording.kernels)} recorded kernels are passed over: "
                "the installed space does not allow their configs"
            )
        if self._recorded_accuracy.is_stricter_than(self._accuracy):
            said.append(
                f"the recording was made under --accuracy {self._recorded_accuracy}: what that "
                f"rejected stays rejected, though {self._accuracy} might let it pass"
            )
        return said

    @property
    def problem(self) -> Problem:
        """The recorded problem."""
        return self.recording.header.problem

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that was recorded."""
        return self.recording.header.gpu

    @property
    def environment(self) -> Environment:
        """Of the recording, with the accuracy that is asked for now."""
        return replace(self.recording.header.environment, accuracy=self._accuracy)

    @property
    def catalogue(self) -> Sequence[Config]:
        """The recorded configs."""
        return self._catalogue

    @property
    def compared(self) -> Collection[Config]:
        """The configs that the recording timed in turn."""
        return self._compared

    def identity(self, config: Config) -> str:
        """Return the recorded digest; raises InvalidInput for a config that was not recorded."""
        return self._kernel(config).digest

    def submit(self, config: Config) -> None:
        """Nothing is compiled."""

    def compiling(self, config: Config) -> None:
        """Return None: proposals are evaluated in their order, and a seed gives the same trials."""

    def begin(self, config: Config) -> None:
        """Do nothing: an outcome is there at once."""

    def evaluate(self, config: Config) -> Outcome:
        """Return the recorded outcome; raises InvalidInput for a config that was not recorded.

        A kernel that was measured under a looser accuracy is rejected where its recorded errors are
        beyond the limits.
        """
        outcome = self._kernel(config).outcome
        if not isinstance(outcome, Measured) or not self._is_stricter:
            return outcome
        fault = _fault(outcome, self.problem.output_dtype, self._accuracy)
        return Rejected(Stage.VERIFY, fault) if fault else outcome

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        """Return the recorded comparison where it has all of them, else samples of the evaluations.

        The comparison says which: those samples are not interleaved.
        """
        kernels = [self._kernel(config) for config in configs]
        recorded = self.recording.comparison
        if recorded is not None and self._compared.issuperset(configs):
            return _from_comparison(recorded, [kernel.digest for kernel in kernels])
        return self._from_samples(kernels, rounds)

    def _from_samples(self, kernels: Sequence[RecordedKernel], rounds: int) -> Comparison:
        """Return rows of samples that were taken of one kernel after the other, in no rounds.

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
        copy_us = (self.environment.copy_us,) if self.environment.copy_us else ()
        return Comparison(tuple(row[:shortest] for row in rows), copy_us, interleaved=False)

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
    """Return rows in the order asked for.

    The recording's best alone was entered twice; another's second entry is its first, changed
    round by round as the best's changed.
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
    return Comparison(tuple(rows), recorded.copy_us)
