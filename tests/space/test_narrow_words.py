"""The heuristic beside blocks of narrow words, which the tables' candidates do not include."""

import json
import math

import pytest

from explorer.gpu_spec import known_gpu
from explorer.problem import Problem
from explorer.space import config_for
from tests.narrow_words import FOLDER, PROBLEMS, blocks

TIMED = json.loads((FOLDER / "narrow-words-h100.json").read_text())
MAX_MEAN_LOSS = 1.012
MAX_LOSS = 1.068


def loss(one):
    """The time of what the heuristic takes over the least; None if it was not among them."""
    problem = Problem(one["rows"], one["cols"], one["dtype"])
    config = config_for(problem, known_gpu(TIMED["gpu"]))
    chosen = [config.threads_per_row, config.vector_bytes, config.reduction]
    times = [us for *kernel, us in one["kernels"] if kernel == chosen]
    return min(times) / min(us for *_, us in one["kernels"]) if times else None


def test_it_loses_little_where_rows_are_few_and_16_bytes_do_not_divide_them():
    losses = [found for one in TIMED["problems"] if (found := loss(one)) is not None]
    assert len(losses) >= len(TIMED["problems"]) - 2
    assert math.exp(sum(map(math.log, losses)) / len(losses)) <= MAX_MEAN_LOSS
    assert max(losses) <= MAX_LOSS


@pytest.mark.parametrize(("cols", "words"), [(1153, 2), (2501, 2), (2502, 4)])
def test_words_that_divide_a_row_take_less_time_than_wider_ones(cols, words):
    (one,) = (
        x for x in TIMED["problems"] if (x["rows"], x["cols"]) == (1, cols) and x["dtype"] == "bf16"
    )
    least = {
        width: min(us for _, w, _, us in one["kernels"] if w == width) for width in (words, 16)
    }
    assert least[words] < 0.9 * least[16]


def test_the_file_has_what_the_command_times():
    gpu = known_gpu(TIMED["gpu"])
    kept = {Problem(one["rows"], one["cols"], one["dtype"]): one for one in TIMED["problems"]}
    assert set(kept) == set(PROBLEMS)
    for problem, one in kept.items():
        ideas = blocks(problem, config_for(problem, gpu))
        now = {(idea.threads_per_row, idea.vector_bytes, idea.reduction) for idea in ideas}
        _, *others = ((threads, width, name) for threads, width, name, _ in one["kernels"])
        assert set(others) <= now
