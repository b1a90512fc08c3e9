"""How many variants were rejected, and where."""

from collections.abc import Mapping

from explorer.outcome import Stage


def rejected_by_stage(rejected: Mapping[Stage, int]) -> str:
    """`41 invalid, 3 compile`, in the order of the stages; empty where nothing was rejected."""
    counted = ((stage, rejected.get(stage, 0)) for stage in Stage)
    return ", ".join(f"{count} {stage}" for stage, count in counted if count)
