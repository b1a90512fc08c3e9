"""Numbers as text: how many digits, which unit."""


def microseconds(time_us: float) -> str:
    """Four significant digits or more, without an exponent; the unit is the caller's."""
    return f"{time_us:.{_decimals(time_us)}f}"


def with_spread(time_us: float, spread: float) -> str:
    """A median in microseconds and, to as many decimals, half its interquartile range."""
    half_us = time_us * spread / 2
    return f"{microseconds(time_us)} ± {half_us:.{_decimals(time_us)}f}"


def ulps(error: float | None) -> str:
    """Three significant digits of an error in ulps; a dash where it was not recorded."""
    return "-" if error is None else f"{error:.3g}"


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as a percentage: 0.973 is 97.3 %."""
    return f"{100 * fraction:.{digits}f} %"


def seconds(duration_s: float) -> str:
    """A duration, rounded for the eye: 8 s, 2 min 05 s, 1 h 20 min."""
    whole = round(duration_s)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def times_as_fast(ratio: float) -> str:
    """A ratio of times, to three digits or more: 1.08, 30.4, 1019."""
    decimals = next((i for i, limit in enumerate((100, 10)) if ratio >= limit), 2)
    return f"{ratio:.{decimals}f}"


def share_of_copy(time_us: float, copy_us: float) -> float | None:
    """Copy's time over this one's: 1 at the speed of copy; None where copy was not measured."""
    return copy_us / time_us if copy_us > 0 else None


def _decimals(time_us: float) -> int:
    return next((i for i, limit in enumerate((1000, 100, 10)) if time_us >= limit), 3)


def counted(number: int, noun: str) -> str:
    """A count with its noun: 1 kernel, 2 kernels."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def count(number: int) -> str:
    """A count with thin groups of three digits: 11 199 744."""
    return f"{number:,}".replace(",", " ")
