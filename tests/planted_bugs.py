"""How many bugs the tests plant in kernels, by what it takes to find them.

    python -m tests.planted_bugs

Each of them is a test of its own: `pytest -m ""` with the files named here plants them all.
"""

import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent

KINDS, HOST, INDICES = "kinds of kernels", "what launches a kernel", "indices of too few bits"


GROUPS = {
    "a barrier, a fence or a wait that is missing, races in shared and global memory": (
        "barrier",
        "shared-race",
        "global-race",
        "global-race, uninitialised-global",
        "shared-race, wrong numbers",
        "warp-mask",
        "readers",
        "cache",
    ),
    "results that depend on which thread comes first": ("order", "order of arrival"),
    "asynchronous copies: a phase, a wait or a slot of a ring that is wrong": (
        "late copies",
        "strides of a ring",
    ),
    "reads of what nobody wrote": (
        "uninitialised-global",
        "uninitialised-shared",
        "unassigned",
    ),
    "addresses: out of bounds, less aligned than promised, written though read-only": (
        "out-of-bounds",
        "out-of-bounds, written-twice",
        "misaligned",
        "read-only",
        "alignment",
        "alignment as promised",
    ),
    "elements that are never written, or twice": (
        "never-written",
        "never-written, written-twice",
        "written-twice",
        "written-twice, wrong numbers",
    ),
    "indices of too few bits, and rows far from the first ones": (INDICES, "far", "far keys"),
    "an element or a thread that a sum or a maximum leaves out": (
        "influence",
        "maximum",
        "behind a maximum",
        "left out of a maximum",
    ),
    "NaN, infinities, zeros, and results beyond the type": (
        "special values",
        "bits of NaN",
        "results beyond the type",
        "scales at special rows",
        "start",
        "zeros",
        "signs of zeros",
        "subnormal results",
    ),
    "precision, and inputs of some magnitudes, offsets or numbers of terms": (
        "exponents",
        "magnitudes",
        "offsets beside a dominating maximum",
        "inputs",
        "caps of logits",
        "exact rows of few terms",
    ),
    "attention: parts, lengths, heads, scores, fragments, stages and waits": (
        "parts of keys",
        "lengths of sequences",
        "heads and strides",
        "scores",
        "kept scores",
        "fragments of tiles",
        "waits of parts",
        "stages of keys",
    ),
    "columns, rows, lengths and slices of some sizes only": (
        "sizes",
        "run-time columns",
        "rows left for a block",
        "lengths at seams",
        "slices of other widths",
    ),
    "arguments of the kernel, and what an earlier launch left": ("arguments", "second launches"),
    "the launch: its grid, arguments, shared and scratch memory": ("deadlock", "launch", HOST),
    "other wrong numbers, in each op, mask and layout": ("wrong numbers", KINDS),
}
"""Classes of bugs by what a reader calls them."""


def counts() -> Counter[str]:
    """The number of bugs of each class."""
    sys.path[:0] = [str(TESTS / "emulator"), str(TESTS)]  # as pytest does
    from corpus import BUGS
    from kinds import SABOTAGE
    from planted_seams import PLANTS as SEAMS
    from test_far_rows import NARROW
    from test_host_parts import WRONG
    from test_planted_kernels import PLANTS

    found = Counter[str](", ".join(sorted(bug.shows)) for bug in BUGS)
    found.update(plant.kind for plant in (*PLANTS, *SEAMS))
    found.update({KINDS: len(SABOTAGE), HOST: len(WRONG), INDICES: len(NARROW)})
    return found


def grouped() -> dict[str, int]:
    """The number of bugs of each group. Raises ValueError for a class that has none."""
    found = counts()
    if without := set(found) - {name for names in GROUPS.values() for name in names}:
        raise ValueError(f"classes of planted bugs without a group: {sorted(without)}")
    return {group: sum(found[name] for name in names) for group, names in GROUPS.items()}


def main() -> None:
    """Print a line for each class, and the sum."""
    found = counts()
    for name, number in sorted(found.items()):
        print(f"{number:5}  {name}")
    print(f"{found.total():5}  bugs")


if __name__ == "__main__":
    main()
