"""What `explorer record` prints."""

from pathlib import Path

from explorer.devices.recorded.recording import Recording
from explorer.outcome import Measured
from explorer.report.figures import counted, microseconds


def recording_sentence(recording: Recording, path: Path) -> str:
    """The file, how many kernels it holds, the best of them."""
    times = measured_us(recording)
    header = recording.header
    kernels = counted(header.kernel_count, "kernel")
    return (
        f"{path}: {header.problem} on {header.gpu.name}, {len(times)} of "
        f"{kernels} measured, the best {microseconds(min(times))} µs, "
        f"copy {microseconds(header.circumstances.copy_us)} µs"
    )


def measured_us(recording: Recording) -> list[float]:
    """The times of all kernels that were measured, microseconds."""
    outcomes = (kernel.outcome for kernel in recording.kernels)
    return [outcome.time_us for outcome in outcomes if isinstance(outcome, Measured)]
