"""The heuristic beside blocks of narrow words, which the tables' candidates do not include."""

import json
import math

import pytest

from explorer.choose import config_for
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from tests.narrow_words import FOLDER, PROBLEMS, blocks

TIMED = {
    gpu: json.loads((FOLDER / f"narrow-words-{gpu}.json").read_text()) for gpu in ("h100", "h200")
}
MAX_MEAN_LOSS = 1.0156
MAX_LOSS = 1.068


def loss(one, gpu):
    """The time of what the heuristic takes over the least; None if it was not among them."""
    problem = Problem(one["rows"], one["cols"], one["dtype"])
    config = config_for(problem, known_gpu(gpu))
    chosen = [config.threads_per_row, config.vector_bytes, config.reduction]
    times = [us for *kernel, us in one["kernels"] if kernel == chosen]
    return min(times) / min(us for *_, us in one["kernels"]) if times else None


@pytest.mark.parametrize("gpu", TIMED)
def test_it_loses_little_where_rows_are_few_and_16_bytes_do_not_divide_them(gpu):
    timed = TIMED[gpu]
    losses = [x for one in timed["problems"] if (x := loss(one, timed["gpu"])) is not None]
    assert len(losses) >= len(timed["problems"]) - 3
    assert math.exp(sum(map(math.log, losses)) / len(losses)) <= MAX_MEAN_LOSS
    assert max(losses) <= MAX_LOSS


@pytest.mark.parametrize(
    ("gpu", "cols", "words"),
    [("h100", 1153, 2), ("h100", 2501, 2), ("h100", 2502, 4), ("h200", 1153, 2), ("h200", 3554, 4)],
)
def test_words_that_divide_a_row_take_less_time_than_wider_ones(gpu, cols, words):
    problems = TIMED[gpu]["problems"]
    (one,) = (x for x in problems if (x["rows"], x["cols"], x["dtype"]) == (1, cols, "bf16"))
    least = {
        width: min(us for _, w, _, us in one["kernels"] if w == width) for width in (words, 16)
    }
    assert least[words] < 0.9 * least[16]


@pytest.mark.parametrize("name", TIMED)
def test_the_file_has_what_the_command_times(name):
    gpu = known_gpu(TIMED[name]["gpu"])
    found = TIMED[name]["problems"]
    kept = {Problem(one["rows"], one["cols"], one["dtype"]): one for one in found}
    assert set(kept) == set(PROBLEMS)
    for problem, one in kept.items():
        ideas = blocks(problem, config_for(problem, gpu))
        now = {(idea.threads_per_row, idea.vector_bytes, idea.reduction) for idea in ideas}
        _, *others = ((threads, width, name) for threads, width, name, _ in one["kernels"])
        assert set(others) <= now
