"""The launches of a config for a problem of any number of rows."""

from explorer.codegen.variant import Launch
from explorer.config import Config
from explorer.problem import Problem
from explorer.work_split import WorkSplit


def entry_name(problem: Problem, config: Config) -> str:
    """The kernel's name: the problem's, so that equal code of two configs is equal throughout."""
    out = "" if problem.output_dtype is problem.dtype else f"_{problem.output_dtype}"
    cols = f"_{problem.cols}" if config.static_cols else ""
    return f"{problem.op}_{problem.dtype}{out}{cols}_kernel"


def arguments(problem: Problem, config: Config) -> tuple[str, ...]:
    """The names of what a kernel takes, in order: what its problem needs and no more."""
    return (
        "input",
        "output",
        "rows",
        *(() if config.static_cols else ("cols",)),
        *(() if problem.is_dense else ("input_stride", "output_stride")),
    )


def launches(problem: Problem, config: Config) -> tuple[Launch, ...]:
    """Grid, block, shared bytes and arguments of each launch, in order."""
    blocks = -(-problem.rows // config.rows_per_block)
    return (
        Launch(
            entry=entry_name(problem, config),
            grid=blocks,
            block=config.threads,
            shared_bytes=WorkSplit(problem, config).cache_bytes,
            arguments=arguments(problem, config),
        ),
    )


def scratch_bytes(problem: Problem, config: Config) -> int:
    """Bytes of the array `scratch` that the launches for a problem of any rows share."""
    return 0
