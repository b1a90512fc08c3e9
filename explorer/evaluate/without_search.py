"""A config without a search: the best of the GPU's tuned table, else what rules choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from explorer.choose import config_for
from explorer.evaluate.residency import MeasuredWith
from explorer.evaluate.space_version import is_of_today
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.model.tuned_table import best_in_table, tables_of
from explorer.space import Space


@dataclass(frozen=True, slots=True)
class WithoutSearch:
    """A config that no search was needed for, and where it comes from."""

    config: Config
    table: Path | None
    """The tuned table whose best it is; None for the heuristic's."""
    measured: MeasuredWith | None = None
    """What the table measured it with; None for the heuristic's."""

    @property
    def origin(self) -> str:
        """Which of the two answered, as a clause."""
        if self.table is None:
            return "the heuristic's config"
        return f"the best config of the tuned table {self.table.stem}"


def without_search(
    problem: Problem,
    gpu: GpuSpec,
    *,
    batch_invariant: bool = False,
    accuracy: Accuracy = Accuracy.DEFAULT,
    tables: Sequence[Path] | None = None,
) -> WithoutSearch:
    """Return the config that is taken without a search.

    A table answers for exactly the problem, at whatever scale, on a GPU of its name, if it was
    measured with this version's templates and space. None answers where rows must not count or
    `strict` accuracy is asked for. `tables` are those to look into, the first that has the problem
    counts; None stands for the GPU's own. Raises InvalidInput for a file that is no tuned table.
    """
    if not batch_invariant and accuracy is not Accuracy.STRICT:
        for path in tables_of(gpu) if tables is None else tables:
            found = best_in_table(path, gpu, problem)
            if found is None or not is_of_today(found.environment, problem):
                continue
            if Space(problem, gpu).is_legal(found.config):
                measured = MeasuredWith(found.environment.nvrtc, found.registers)
                return WithoutSearch(found.config, path, measured if found.registers else None)
    config = config_for(problem, gpu, batch_invariant=batch_invariant, accuracy=accuracy)
    return WithoutSearch(config, None)
