"""The launches of a config for a problem of any number of rows."""

from explorer.codegen.variant import Launch
from explorer.config import Config
from explorer.op import Mask
from explorer.problem import Problem
from explorer.work_split import WorkSplit


def namespace(problem: Problem, config: Config) -> str:
    """The namespace of what is emitted: the problem's, so that equal code is equal throughout.

    One program can include files of several problems.
    """
    out = "" if problem.output_dtype is problem.dtype else f"_{problem.output_dtype}"
    cols = f"_{problem.cols}" if config.static_cols else ""
    middle = "_middle" if problem.inner > 1 else ""
    kinds = {
        str(problem.mask): problem.mask is not Mask.NONE,
        "scaled": problem.scale is not None,
        "strided": not problem.is_dense,
        "in_place": problem.in_place,
    }
    kind = "".join(f"_{name}" for name, is_so in kinds.items() if is_so)
    return f"{problem.op}{middle}_{problem.dtype}{out}{cols}{kind}"


def entries(problem: Problem, config: Config) -> tuple[str, ...]:
    """The kernels' names, in the order of their launches."""
    name = namespace(problem, config)
    steps = {"three": ("_max", "_exp", "_sum"), "one": ("",)}
    return tuple(f"{name}{step}_kernel" for step in steps.get(config.launches, ("_part", "_row")))


def arguments(problem: Problem, config: Config) -> tuple[str, ...]:
    """The names of what a kernel takes, in order: what its problem needs and no more."""
    masks: dict[Mask, tuple[str, ...]] = {
        Mask.LENGTHS: ("lengths",),
        Mask.ADDITIVE: ("mask",),
    }
    return (
        "input",
        *(("grad",) if problem.op.is_backward else ()),
        *masks.get(problem.mask, ()),
        "output",
        *(("scratch",) if config.launches != "one" else ()),
        "rows",
        *(() if config.static_cols else ("cols",)),
        *(("mask_rows",) if problem.mask_rows else ()),
        *(("inner",) if problem.inner > 1 else ()),
        *(() if problem.is_dense else ("input_stride", "output_stride")),
        *(() if problem.scale is None else ("scale",)),
    )


def launches(problem: Problem, config: Config) -> tuple[Launch, ...]:
    """Grid, block, shared bytes and arguments of each launch, in order."""
    split = WorkSplit(problem, config)
    blocks = -(-problem.rows // split.block_rows) * config.cluster * split.parts
    return tuple(
        Launch(
            entry=entry,
            grid=blocks,
            block=config.threads,
            shared_bytes=split.cache_bytes,
            arguments=arguments(problem, config),
            blocks_per_sm=config.persistent,
            cluster=config.cluster,
            overlaps=config.launches == "two-overlapped" and number > 0,
        )
        for number, entry in enumerate(entries(problem, config))
    )


def scratch_bytes(problem: Problem, config: Config) -> int:
    """Bytes of the array `scratch` that the launches for a problem share.

    A kernel of run-time cols may have been emitted for others: rows may start anywhere.
    """
    if config.launches == "one":
        return 0
    split = WorkSplit(problem, config)
    if config.launches != "three":
        return problem.rows * split.parts * 2 * problem.dtype.arithmetic.itemsize
    width = split.width
    kept = (problem.cols + 2 * (width - 1)) // width * width
    return problem.rows * (kept + 1) * problem.dtype.arithmetic.itemsize
