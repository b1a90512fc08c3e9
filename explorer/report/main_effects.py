"""What each parameter did, as sentences with figures and how sure they are."""

from collections.abc import Callable
from typing import Any

from explorer.model.parameters import Value
from explorer.model.problem import Problem
from explorer.report.table import Table, numbers, prose, words
from explorer.report.text import count, microseconds
from explorer.tuning.main_effects import BLOCK_OF_A_ROW, LEAST_PAIRS, NEAR
from explorer.tuning.results import Contrast, StudyView, Unpaired

FIRST_TIMES = (
    "times here are first times, each kernel by itself; the finals above timed the fastest again"
)

METHOD = (
    "matched pairs: two kernels of the study that differ in this parameter alone, the faster of "
    f"which takes at most {100 * (NEAR - 1):.0f} % more than the study's fastest. The figure is "
    "the median over the pairs of the slower's time over the faster's, with its 95 % confidence "
    "interval. For each parameter, the two values with the most pairs are compared"
)

UNPAIRED = (
    f"fewer than {LEAST_PAIRS} pairs of fast kernels differ in one of these parameters alone, so "
    "that it is not known what the parameter does by itself. For its two most frequent values, and "
    "for that of the best kernel, the table has the fastest kernel that was seen; these kernels "
    "differ in other parameters, too"
)

_PHRASES: dict[str, Callable[[Any], str]] = {
    "algorithm": "the {} algorithm".format,
    "threads": "blocks of {} threads".format,
    "threads_per_row": lambda value: f"{value} thread{'' if value == 1 else 's'} a row",
    BLOCK_OF_A_ROW: "blocks of {} threads with one row each".format,
    "reduction": "the {} reduction".format,
    "cache": lambda value: {
        "none": "reading the row again",
        "output": "keeping exponentials in the output",
    }.get(value, f"keeping the row in {value}{' memory' if value == 'shared' else ''}"),
    "cache_holds": lambda value: (
        "keeping the exponentials" if value == "exp" else "keeping the input as it came"
    ),
    "exp": str,
    "normalise": lambda value: (
        "a division for each element" if value == "divide" else "one reciprocal a row"
    ),
    "unroll": lambda value: f"{value} vector{'' if value == 1 else 's'} loaded at a time",
    "load_hint": lambda value: "plain loads" if value == "default" else f"loads with hint {value}",
    "store_hint": lambda value: (
        "plain stores" if value == "default" else f"stores with hint {value}"
    ),
    "min_blocks": "min_blocks {}".format,
    "static_cols": lambda value: (
        "columns known at compile time" if value else "columns as a run-time argument"
    ),
    "rows_per_thread": lambda value: f"{value} row{'' if value == 1 else 's'} a thread",
    "launches": lambda value: {"one": "one launch"}.get(value, f"{value} launches"),
    "persistent": lambda value: (
        f"{value} blocks an SM that stride over the rows" if value else "a block for every tile"
    ),
    "staging": lambda value: {
        "direct": "rows loaded straight to their threads",
        "span": "rows staged as a span",
        "async": "asynchronous copies",
        "bulk": "bulk copies",
    }[value],
    "sum": "the {} sum".format,
    "cluster": lambda value: f"clusters of {value} blocks" if value > 1 else "no clusters",
    "exchange": lambda value: f"an exchange by {value}",
    "row_order": "{} row order".format,
    "stages": lambda value: f"{value} stage{'' if value == 1 else 's'}",
    "arrangement": "the {} arrangement".format,
}


def value_phrase(name: str, value: Value, problem: Problem) -> str:
    """Return a parameter's value as a noun phrase: 16-byte accesses, no clusters, plain loads."""
    if name == "vector_bytes":
        scalar = value == problem.dtype.itemsize
        return "scalar accesses" if scalar else f"{value}-byte accesses"
    return _PHRASES[name](value)


def contrast_sentence(contrast: Contrast, problem: Problem) -> str:
    """Return what pairs of kernels say of two values of a parameter."""
    faster = value_phrase(contrast.name, contrast.faster, problem)
    slower = value_phrase(contrast.name, contrast.slower, problem)
    pairs = f"{contrast.pairs} pairs that differ in nothing else"
    interval = f"{_times(contrast.low)} to {_times(contrast.high)} ×"
    if not contrast.is_sure:
        return f"{faster} and {slower}: no measurable difference in {pairs} ({interval})"
    all_agree = contrast.agreeing == contrast.pairs
    how_many = "every one" if all_agree else str(contrast.agreeing)
    return (
        f"{faster}: {_times(contrast.ratio)} × faster than {slower}, in {how_many} of {pairs} "
        f"({interval})"
    )


def unpaired_sentence(told: Unpaired, problem: Problem) -> str:
    """Return what is known of a parameter that too few pairs tell apart."""
    seen = ", ".join(
        f"{microseconds(us)} µs with {value_phrase(told.name, value, problem)}"
        for value, us, _ in told.seen
    )
    return (
        f"not known: fewer than {LEAST_PAIRS} pairs of fast kernels differ in {told.name} alone. "
        f"Fastest seen: {seen}; these kernels differ in other parameters, too"
    )


def unpaired_table(view: StudyView) -> Table:
    """Return the fastest kernels of parameters that too few pairs tell apart; it may be empty."""
    columns = [*words("parameter"), prose("value"), *numbers("best µs", "kernels")]
    table = Table(columns, title="Parameters that few pairs tell apart", keys=2)
    for told in view.unpaired:
        for value, time_us, kernels in told.seen:
            phrase = value_phrase(told.name, value, view.summary.problem)
            table.add(told.name, phrase, microseconds(time_us), count(kernels))
    return table


def headlines(view: StudyView) -> list[tuple[str, str]]:
    """Return each parameter that pairs compare, with one sentence: sure ones first, then by size.

    The values are those of most pairs, which does not depend on the times: so each interval misses
    with 5 % at most, as if no other had been looked at.
    """
    most: dict[str, Contrast] = {}
    for contrast in view.contrasts:
        most.setdefault(contrast.name, contrast)
    ordered = sorted(most.values(), key=lambda found: (not found.is_sure, -found.ratio))
    problem = view.summary.problem
    return [(found.name, contrast_sentence(found, problem)) for found in ordered]


def _times(ratio: float) -> str:
    """Three decimals below 1.1, where most effects are; else two."""
    return f"{ratio:.3f}" if ratio < 1.1 else f"{ratio:.2f}"
