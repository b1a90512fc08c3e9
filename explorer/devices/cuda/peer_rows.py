"""What a peer makes of rows that can tell right from wrong: infinities, NaN, offsets, outliers."""

from collections.abc import Callable

from cuda.bindings import driver

from explorer.devices.cuda.bench import Bench
from explorer.devices.cuda.device_check import DeviceCheck
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.tools import Tools
from explorer.reference import Case, pattern_count

Check = Callable[[DeviceCheck], bool]
"""Whether what was found is a fault, and no matter of rounding."""


def wrong_rows(
    bench: Bench,
    tools: Tools,
    seed: int,
    replay: Callable[[], None],
    output: Callable[[int], int],
    is_fault: Check,
) -> tuple[str, ...]:
    """The patterns of verification on which a replayed graph is wrong, in words.

    They take the place of the first rows of set 0 meanwhile: it is the very launch that is timed,
    not one of another shape. All inputs are filled again afterwards.
    """
    problem, sets = bench.problem, bench.sets
    case = Case(problem.resized(rows=min(problem.rows, pattern_count(problem))))
    data = case.arrays(seed)["input"].tobytes()
    checked(driver.cuMemcpyHtoD(sets.input(0), data, len(data)))
    replay()
    one, wrong = problem.resized(rows=1), []
    for row, pattern in enumerate(case.patterns):
        addresses = {
            "input": sets.input(0) + row * problem.row_bytes,
            "output": output(0) + row * problem.cols * problem.output_dtype.itemsize,
        }
        found = tools.check_rows(one, addresses)
        if found.wrong and is_fault(found):
            wrong.append(pattern.name)
    sets.fill(tools, seed)
    return tuple(dict.fromkeys(wrong))
