"""Covering arrays that exhaustive tests draw, kept as data: each takes up to a second to draw.

    python -m tests.covering [ASKED ...]

draws those that are kept anew, which is due when parameters or rules have changed, and those that
a run of the tests has asked for in vain, which writes them down if `EXPLORER_NOTE_ARRAYS=ASKED`.
An array that is not kept, or has a config that is legal no longer, is drawn where it is asked for.
"""

import gzip
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from explorer.model.config import DRAWN_MIN_BLOCKS, Config, parameters
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.space import Space
from explorer.space.covering import covering_array

FILE = Path(__file__).with_name("covering_arrays.json.gz")
NOTES = "EXPLORER_NOTE_ARRAYS"


def covering(space: Space, strength: int = 1) -> list[Config]:
    """Return what `covering_array` returns, from the kept arrays if they have it."""
    if space.parameters["min_blocks"] == parameters(space.problem.dtype)["min_blocks"]:
        drawn_values = {**space.parameters, "min_blocks": DRAWN_MIN_BLOCKS}
        space = Space(space.problem, space.gpu, drawn_values)
    asked = _asked(space, strength)
    kept = _kept().get(asked)
    if kept is not None and all(map(space.is_legal, kept)):
        return kept
    if os.environ.get(NOTES):
        with Path(os.environ[NOTES]).open("a") as notes:
            notes.write(asked + "\n")
    return covering_array(space, strength)


def drawn(asked: str) -> list[Config]:
    """Return the array that a line asks for, drawn anew."""
    space, strength = space_of(asked)
    return covering_array(space, strength)


def space_of(asked: str) -> tuple[Space, int]:
    """Return the space and the strength that a line asks for."""
    data = json.loads(asked)
    fixed = {name: tuple(values) for name, values in data["fixed"].items()}
    fixed = {"min_blocks": DRAWN_MIN_BLOCKS, **fixed}  # most of the 32 values are of few kernels
    problem = Problem.from_dict(data["problem"])
    return Space(problem, known_gpu(data["gpu"]), fixed), data["strength"]


def kept_arrays() -> Iterator[tuple[str, list[Config]]]:
    """Yield each line that asks for a kept array, and the array."""
    yield from _kept().items()


def _asked(space: Space, strength: int) -> str:
    """A line of JSON by which an array is found: what the space has that is not its type's own."""
    every = {**parameters(space.problem.dtype), "min_blocks": DRAWN_MIN_BLOCKS}
    fixed = {name: vs for name, vs in space.parameters.items() if tuple(vs) != tuple(every[name])}
    data = {
        "problem": space.problem.as_dict(),
        "gpu": space.gpu.name,
        "fixed": fixed,
        "strength": strength,
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


@cache
def _kept() -> dict[str, list[Config]]:
    if not FILE.exists():
        return {}
    data: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return {asked: [Config.from_dict(one) for one in configs] for asked, configs in data.items()}


def _write(asked: set[str]) -> None:
    arrays = {
        one: [json.loads(config.to_json(brief=True)) for config in drawn(one)]
        for one in sorted(asked)
    }
    text = json.dumps(arrays, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    noted = {line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()}
    _write({*_kept(), *noted})
