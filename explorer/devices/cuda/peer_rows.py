"""What a peer makes of rows that can tell right from wrong: infinities, NaN, offsets, outliers."""

from collections.abc import Callable

from cuda.bindings import driver

from explorer.devices.cuda.bench import Bench
from explorer.devices.cuda.device_check import DeviceCheck
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.tools import Tools
from explorer.reference import PATTERN_COUNT, pattern_name, verification_inputs

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
    rows = min(problem.rows, PATTERN_COUNT)
    data = verification_inputs(problem.resized(rows=rows), seed)["input"].tobytes()
    checked(driver.cuMemcpyHtoD(sets.input(0), data, len(data)))
    replay()
    one, wrong = problem.resized(rows=1), []
    for row in range(rows):
        addresses = {
            "input": sets.input(0) + row * problem.row_bytes,
            "output": output(0) + row * problem.cols * problem.output_dtype.itemsize,
        }
        found = tools.check_rows(one, addresses)
        if found.wrong and is_fault(found):
            wrong.append(pattern_name(row, rows))
    sets.fill(tools, seed)
    return tuple(wrong)
