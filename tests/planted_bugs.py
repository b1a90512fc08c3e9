"""How many bugs the tests plant in kernels, by what it takes to find them.

    python -m tests.planted_bugs

Each of them is a test of its own: `pytest -m ""` with the files named here plants them all.
"""

import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent

WHOLE_KERNELS = "whole kernels (test_planted_kernels.py): "


def counts() -> Counter[str]:
    """The number of bugs of each class."""
    sys.path[:0] = [str(TESTS / "emulator"), str(TESTS)]  # as pytest does
    from corpus import BUGS
    from kinds import SABOTAGE
    from planted_seams import PLANTS as SEAMS
    from test_far_rows import NARROW
    from test_host_parts import WRONG
    from test_planted_kernels import PLANTS

    found = Counter[str]()
    for bug in BUGS:
        found[f"one launch (test_corpus.py): {', '.join(sorted(bug.shows))}"] += 1
    for plant in (*PLANTS, *SEAMS):
        found[WHOLE_KERNELS + plant.kind] += 1
    found["every op, mask and layout (test_kinds_emulated.py)"] = len(SABOTAGE)
    found["what launches a kernel (test_host_parts.py)"] = len(WRONG)
    found["indices of too few bits (test_far_rows.py)"] = len(NARROW)
    return found


def main() -> None:
    """Print a line for each class, and the sum."""
    found = counts()
    for name, number in sorted(found.items()):
        print(f"{number:5}  {name}")
    print(f"{found.total():5}  bugs")


if __name__ == "__main__":
    main()
