"""A tuned table of one problem, whose best kernel was measured with registers of one's choice."""

from dataclasses import replace

from explorer.choose import config_for
from explorer.evaluate.space_version import space_version, template_version
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Contender, Environment
from explorer.model.problem import Problem
from explorer.model.tuned_table import TimedConfig, TunedProblem, TunedTable, write_table

H200 = known_gpu("NVIDIA H200")
PROBLEM = Problem(7000, 5120, DType.BF16)
"""Its kernel has 384 threads a block. An SM holds 5 blocks with 32 registers, and 4 with 40."""

CONFIG = replace(config_for(PROBLEM, H200), threads=384, threads_per_row=384, min_blocks=5)

OTHER = (
    "of NVIDIA H200 holds 5 of its blocks; it was measured with 40 and 4, by NVRTC 12.0: its time "
    "may differ, so search again with this compiler, or install the other one"
)
"""What is said of it where it was measured with 40 registers."""


def table_of_one(path, registers, **changes):
    """Write the table, with changes to its environment; return its path."""
    environment = Environment(
        gpu=H200.name,
        arch=H200.arch,
        driver="580.1",
        nvrtc="12.0",
        timing="cold",
        date="2026-01-02T03:04:05Z",
        space_version=space_version(PROBLEM),
        template_digest=template_version(PROBLEM),
        explorer="0.2.0",
        limit_us=35.0,
    )
    slower = replace(CONFIG, min_blocks=1)  # another kernel, which takes other registers
    tuned = TunedProblem(
        PROBLEM,
        environment=replace(environment, **changes),
        finalists=(Contender(kernel=CONFIG, samples_us=(36.0,), tied=True),),
        untuned=CONFIG,
        timed=(TimedConfig(slower, 35.9, 64), TimedConfig(CONFIG, 36.0, registers)),
    )
    write_table(TunedTable(H200, (tuned,)), path)
    return path
