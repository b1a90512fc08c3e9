"""`explorer record`: measure a whole sub-space, or a sample of it, and keep it as a file."""

from explorer.cli.options import Cols, Device, Dtype, Json, Rows, Seed, Timing
from explorer.problem import DType


def record(
    cols: Cols,
    rows: Rows = None,
    dtype: Dtype = DType.F32,
    device: Device = "auto",
    timing: Timing = "cold",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure a sample of the space, for replays."""
