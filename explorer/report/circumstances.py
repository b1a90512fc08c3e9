"""The line that says under what circumstances something was measured."""

from explorer.accuracy import Accuracy
from explorer.circumstances import Circumstances


def circumstances_line(circumstances: Circumstances) -> str:
    """GPU, driver, NVRTC, clocks, throttling, timing mode, accuracy, date: what is known."""
    c = circumstances
    parts = [c.gpu, f"driver {c.driver}", f"NVRTC {c.nvrtc}", _clocks(c)]
    parts += [_throttling(c)]
    parts += [f"{c.timing} L2" if c.timing in ("cold", "warm") else c.timing]
    parts += [] if c.accuracy is Accuracy.DEFAULT else [f"{c.accuracy} accuracy"]
    parts += [short_date(c.date)]
    return " · ".join(part for part in parts if part)


def copy_line(circumstances: Circumstances) -> str:
    """Which plain copy is the limit, and how launches are timed; empty where that is not known."""
    c = circumstances
    if not c.copy_name:
        return ""
    sample = f", {c.launches_per_sample} a sample" if c.launches_per_sample else ""
    if c.buffers > 1:
        return f"{c.copy_name}; launches rotate over {c.buffers} pairs of buffers{sample}"
    return f"{c.copy_name}; launches stay on one pair of buffers{sample}"


def measurement_lines(circumstances: Circumstances, *, replayed: bool) -> list[tuple[str, str]]:
    """Notes, with their labels: where and when it was measured; the copy beside it."""
    origin = "replayed" if replayed else "measured"
    copy = copy_line(circumstances)
    return [(origin, circumstances_line(circumstances)), *([("copy", copy)] if copy else [])]


def replay_notice(circumstances: Circumstances, why: str | None = None) -> str:
    """The first line of a replay: whose times these are, and `why` no GPU is used."""
    origin = f"a recording made on {circumstances.gpu} on {circumstances.date[:10]}"
    return f"{why + ': ' if why else ''}replaying {origin}; nothing is timed here"


def short_date(date: str) -> str:
    """Day and minute of an ISO 8601 date in UTC."""
    return f"{date[:10]} {date[11:16]} UTC" if len(date) >= 16 else date


def _clocks(c: Circumstances) -> str:
    clocks = [f"SM {c.sm_clock_mhz} MHz"] if c.sm_clock_mhz else []
    clocks += [f"memory {c.memory_clock_mhz} MHz"] if c.memory_clock_mhz else []
    return ", ".join(clocks)


def _throttling(c: Circumstances) -> str:
    if c.throttle_reasons:
        return f"held back by {c.throttle_reasons}"
    return "not throttled" if c.sm_clock_mhz else ""
