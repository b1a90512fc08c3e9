"""Sizes that halve evenly: of warps, blocks and clusters."""


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`; 1 for none."""
    return 1 << (max(1, count) - 1).bit_length()
