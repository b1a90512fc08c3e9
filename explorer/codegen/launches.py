"""The launches of a config for a problem of any number of rows."""

from explorer.codegen.variant import Launch
from explorer.config import Config
from explorer.problem import Problem
from explorer.work_split import WorkSplit


def entry_name(problem: Problem, config: Config) -> str:
    """The kernel's name: the problem's, so that equal code of two configs is equal throughout."""
    cols = f"_{problem.cols}" if config.static_cols else ""
    return f"{problem.op}_{problem.dtype}{cols}_kernel"


def launches(problem: Problem, config: Config) -> tuple[Launch, ...]:
    """Grid, block, shared bytes and arguments of each launch, in order."""
    blocks = -(-problem.rows // config.rows_per_block)
    arguments = (
        ("input", "output", "rows") if config.static_cols else ("input", "output", "rows", "cols")
    )
    return (
        Launch(
            entry=entry_name(problem, config),
            grid=blocks,
            block=config.threads,
            shared_bytes=WorkSplit(problem, config).cache_bytes,
            arguments=arguments,
        ),
    )
