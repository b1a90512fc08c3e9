"""Kernels that quick tests compile, format and emulate: a sample of the space, kept as data.

    python -m tests.space_sample

draws it anew, which is due when parameters, rules, templates or the kinds below have changed: of
each kind a covering array, and of all arrays together few configs in which still occur every
template, every value of every parameter (of min_blocks, those that a search draws), and every two
choices of structure that the arrays have.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from explorer.codegen.units import SECTIONS, assembled, library
from explorer.model.config import DRAWN_MIN_BLOCKS, WARPS, Config
from explorer.model.element import DType, IndexType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Layout, Mask, Problem
from explorer.ops import OPERATORS, Op
from explorer.space import Space
from explorer.space.covering import covering_array
from explorer.system.user_files import template_dir

FILE = Path(__file__).with_suffix(".json")
COMMAND = "python -m tests.space_sample"

GPU = known_gpu("NVIDIA H200")

SOME_BOUNDS = {"min_blocks": DRAWN_MIN_BLOCKS}
"""Of launch bounds: the others emit the same but for a constant."""

FEW_SIZES = {"threads": (32, 96, 256), "threads_per_row": (1, 8, 32, 96, 256)}
"""Of how a row is divided, one of each kind: two kinds alone are drawn with every size."""

SMALL_BLOCKS = {"threads": (32, 96), "threads_per_row": (1, 8, 32, 96)}
"""The same for rows over a middle axis, of which a block of more threads has many."""

EVERY_SIZE = {
    "threads": WARPS,
    "threads_per_row": WARPS,
    "reduction": ("shuffle",),
    "rows_per_thread": (1,),
    "static_cols": (True,),
}
"""What else there is of many threads takes an emulator long, as do long rows of few."""

FEW_KEYS = {"threads": (32, 128), "splits": (1, 2, 4, 12), "cluster": (1, 2, 4)}
"""Of how the keys of attention are divided, some of each kind."""

ONE_BY_ONE = {
    **FEW_SIZES,
    "cache": ("none",),
    "unroll": (1,),
    "load_hint": ("default",),
    "store_hint": ("default",),
    "rows_per_thread": (1,),
    "launches": ("one",),
    "persistent": (0,),
    "staging": ("direct",),
    "cluster": (1,),
    "arrangement": ("striped",),
}
"""What a thread that reads element after element has: with accesses of one element it is the
simplest kernel, which has templates of its own."""

LOG, BACKWARD, LOG_BACKWARD = Op.LOG_SOFTMAX, Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD
LOGSUMEXP, LOG_PROB = Op.LOGSUMEXP, Op.LOG_PROB
LOSS, LOSS_BACKWARD = Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD
LOSS_AND_GRADIENT, ATTENTION = Op.CROSS_ENTROPY_WITH_GRADIENT, Op.DECODE_ATTENTION
ALL_OF_IT = ",".join(OPERATORS[LOG_PROB].on_request)
INT32 = IndexType.INT32
F16, BF16, F64 = DType.F16, DType.BF16, DType.F64
CAUSAL, LENGTHS, ADDITIVE = Mask.CAUSAL, Mask.LENGTHS, Mask.ADDITIVE

KINDS = {
    # name: the problem, the values that parameters are narrowed to
    "plain": (Problem(17, 264), FEW_SIZES),
    "plain, ragged": (Problem(17, 301), FEW_SIZES),
    "f16": (Problem(17, 264, F16), FEW_SIZES),
    "bf16, ragged": (Problem(17, 301, BF16), FEW_SIZES),
    "f64": (Problem(17, 130, F64), FEW_SIZES),
    "element by element": (Problem(17, 301), {**ONE_BY_ONE, "vector_bytes": (4,)}),
    "element by element, log, bf16 to f32": (
        Problem(17, 301, BF16, LOG, DType.F32),
        {**ONE_BY_ONE, "vector_bytes": (2,)},
    ),
    "bf16, ragged, in registers": (
        Problem(17, 301, BF16),
        {
            "threads": (32,),
            "threads_per_row": (32,),
            "cache": ("registers",),
            "vector_bytes": (16,),
            "rows_per_thread": (1,),
            "staging": ("direct",),
            "persistent": (0,),
            "static_cols": (True,),
        },
    ),
    "short": (Problem(33, 37, F16), {}),
    "shorter than a vector": (Problem(33, 5, BF16), FEW_SIZES),
    "of every size": (Problem(3, 1000), EVERY_SIZE),
    "a block of one thread": (Problem(3, 40), {"threads": (1,)}),
    "wide": (Problem(3, 16384), {"cluster": (2, 4, 8, 16), "threads": (128, 512)}),
    "wide, ragged": (Problem(3, 8193, BF16), {"threads": (128,), "threads_per_row": (128,)}),
    "two launches": (Problem(3, 8193), {"launches": ("two", "two-overlapped"), "threads": (128,)}),
    "log, f16 to f32": (Problem(17, 301, F16, LOG, DType.F32), FEW_SIZES),
    "scaled": (Problem(17, 264, BF16, scale=-0.5), FEW_SIZES),
    "causal": (Problem(40, 40, mask=CAUSAL), FEW_SIZES),
    "log, lengths, gaps": (
        Problem(17, 301, BF16, LOG, mask=LENGTHS, input_stride=304, output_stride=303),
        FEW_SIZES,
    ),
    "additive, repeated, scaled": (
        Problem(20, 264, scale=0.7, mask=ADDITIVE, mask_rows=4),
        FEW_SIZES,
    ),
    "f64, additive, in place": (Problem(17, 65, F64, mask=ADDITIVE, in_place=True), FEW_SIZES),
    "in place, gaps": (
        Problem(17, 264, in_place=True, input_stride=272, output_stride=272),
        FEW_SIZES,
    ),
    "bf16 to f32, gaps": (Problem(17, 264, BF16, out_dtype=DType.F32, input_stride=272), FEW_SIZES),
    "f32 to f16, gaps": (Problem(17, 301, out_dtype=F16, output_stride=304), FEW_SIZES),
    "backward": (Problem(17, 97, op=BACKWARD), FEW_SIZES),
    "log backward, bf16, scaled": (Problem(17, 104, BF16, LOG_BACKWARD, scale=0.5), FEW_SIZES),
    "backward, f64": (Problem(17, 65, F64, BACKWARD), FEW_SIZES),
    "backward, bf16, ragged, in registers": (
        Problem(17, 301, BF16, BACKWARD),
        {
            "threads": (32,),
            "threads_per_row": (32,),
            "cache": ("registers",),
            "vector_bytes": (8, 16),
            "static_cols": (True,),
        },
    ),
    "backward, f16, as spans": (
        Problem(33, 37, F16, BACKWARD),
        {**FEW_SIZES, "staging": ("span",)},
    ),
    "backward, wide": (
        Problem(3, 16384, op=BACKWARD),
        {"cluster": (2, 4, 8, 16), "threads": (128, 512)},
    ),
    "log backward, wide, ragged": (
        Problem(3, 8193, BF16, LOG_BACKWARD),
        {"cluster": (2, 4), "threads": (128,), "threads_per_row": (128,)},
    ),
    "columns": (Problem(96, 37, inner=48), SMALL_BLOCKS),
    "columns, in a warp": (
        Problem(96, 37, inner=48),
        {"threads": (32,), "threads_per_row": (8,), "reduction": ("shuffle",), "cache": ("none",)},
    ),
    "columns, f16, in registers": (
        Problem(96, 37, F16, inner=48),
        {**SMALL_BLOCKS, "algorithm": ("three-pass",), "cache": ("registers",)},
    ),
    "columns, log, bf16, scaled": (Problem(96, 37, BF16, LOG, scale=0.5, inner=48), SMALL_BLOCKS),
    "columns, f64, in place": (Problem(96, 17, F64, inner=48, in_place=True), SMALL_BLOCKS),
    "columns, clusters": (
        Problem(24, 201, inner=12),
        {"cluster": (2, 4, 16), "threads": (32, 96), "threads_per_row": (8, 32, 96)},
    ),
    "columns, backward": (Problem(96, 37, op=BACKWARD, inner=48), SMALL_BLOCKS),
    "columns, log backward, f16": (Problem(96, 37, F16, LOG_BACKWARD, inner=48), SMALL_BLOCKS),
    "log-sum-exp": (Problem(64, 256, BF16, LOGSUMEXP), SMALL_BLOCKS),
    "log-sum-exp, ragged, gaps": (
        Problem(64, 250, op=LOGSUMEXP, input_stride=251, output_stride=2),
        SMALL_BLOCKS,
    ),
    "log-sum-exp, short": (Problem(64, 37, F16, LOGSUMEXP), SMALL_BLOCKS),
    "log-sum-exp in two terms, bf16": (
        Problem(17, 264, BF16, LOGSUMEXP, also="maximum,log_sum"),
        FEW_SIZES,
    ),
    "log-prob, f16": (Problem(17, 301, F16, LOG_PROB), FEW_SIZES),
    "log-prob and more, bf16, scaled": (
        Problem(17, 264, BF16, LOG_PROB, scale=0.7, also=ALL_OF_IT, ids_per_row=3),
        FEW_SIZES,
    ),
    "log-prob and more, gaps": (
        Problem(17, 301, op=LOG_PROB, input_stride=303, also=ALL_OF_IT, ids_dtype=INT32),
        FEW_SIZES,
    ),
    "log-prob and more, bf16, in registers": (
        Problem(17, 301, BF16, LOG_PROB, also=ALL_OF_IT, ids_per_row=200),
        {
            "threads": (32,),
            "threads_per_row": (32,),
            "cache": ("registers",),
            "vector_bytes": (16,),
            "static_cols": (True,),
        },
    ),
    "log-prob and more, f64": (
        Problem(17, 65, F64, LOG_PROB, also=ALL_OF_IT, ids_per_row=40),
        FEW_SIZES,
    ),
    "cross-entropy": (Problem(17, 301, op=LOSS), FEW_SIZES),
    "cross-entropy and more, bf16, scaled": (
        Problem(17, 264, BF16, LOSS, scale=0.7, also="lse,mean_gap", ignore_index=3),
        FEW_SIZES,
    ),
    "cross-entropy, f64, gaps": (
        Problem(17, 65, F64, LOSS, input_stride=67, ids_dtype=INT32, also="lse"),
        FEW_SIZES,
    ),
    "gradient of cross-entropy, bf16": (Problem(17, 301, BF16, LOSS_BACKWARD), FEW_SIZES),
    "capped cross-entropy, bf16": (Problem(17, 301, BF16, LOSS, softcap=30.0), FEW_SIZES),
    "capped cross-entropy, f64, scaled": (
        Problem(17, 65, F64, LOSS, scale=0.7, softcap=5.0, also="mean_gap"),
        FEW_SIZES,
    ),
    "gradient of capped cross-entropy": (
        Problem(17, 264, op=LOSS_BACKWARD, softcap=5.0, scale=0.7),
        FEW_SIZES,
    ),
    "capped cross-entropy with its gradient, f16": (
        Problem(17, 264, F16, LOSS_AND_GRADIENT, softcap=5.0, also="loss"),
        FEW_SIZES,
    ),
    "columns, capped cross-entropy with its gradient": (
        Problem(96, 37, BF16, LOSS_AND_GRADIENT, inner=48, also="loss", softcap=5.0),
        SMALL_BLOCKS,
    ),
    "columns, gradient of capped cross-entropy": (
        Problem(96, 37, op=LOSS_BACKWARD, inner=48, softcap=5.0, scale=0.7),
        SMALL_BLOCKS,
    ),
    "gradient of cross-entropy, scaled, in place": (
        Problem(17, 264, F16, LOSS_BACKWARD, scale=0.7, in_place=True),
        FEW_SIZES,
    ),
    "gradient of cross-entropy, wide": (
        Problem(3, 16384, op=LOSS_BACKWARD, in_place=True),
        {"cluster": (2, 4, 8, 16), "threads": (128, 512)},
    ),
    "cross-entropy with its gradient, bf16": (
        Problem(17, 301, BF16, LOSS_AND_GRADIENT, also="loss"),
        FEW_SIZES,
    ),
    "cross-entropy with its gradient, in place": (
        Problem(17, 264, op=LOSS_AND_GRADIENT, in_place=True, also="loss,maximum,log_sum"),
        FEW_SIZES,
    ),
    "cross-entropy with its gradient, f64, scaled": (
        Problem(17, 65, F64, LOSS_AND_GRADIENT, scale=0.7, ids_dtype=INT32),
        FEW_SIZES,
    ),
    "cross-entropy with its gradient, wide": (
        Problem(3, 16384, BF16, LOSS_AND_GRADIENT, in_place=True, also="mean_gap"),
        {"cluster": (2, 4, 8, 16), "threads": (128, 512)},
    ),
    "rows multiplied, bf16, in place": (
        Problem(17, 301, BF16, Op.MULTIPLY_ROWS, in_place=True),
        FEW_SIZES,
    ),
    "rows multiplied, scaled, gaps": (
        Problem(17, 264, op=Op.MULTIPLY_ROWS, scale=0.7, input_stride=272),
        FEW_SIZES,
    ),
    "columns, log-sum-exp": (Problem(96, 37, BF16, LOGSUMEXP, inner=48), SMALL_BLOCKS),
    "columns, cross-entropy, bf16, scaled": (
        Problem(96, 37, BF16, LOSS, scale=0.7, inner=48, also="lse,maximum,log_sum,mean_gap"),
        SMALL_BLOCKS,
    ),
    "columns, cross-entropy, clusters": (
        Problem(24, 201, op=LOSS, inner=12, ids_dtype=INT32),
        {"cluster": (2, 4, 16), "threads": (32, 96), "threads_per_row": (8, 32, 96)},
    ),
    "columns, gradient of cross-entropy, in place": (
        Problem(96, 37, op=LOSS_BACKWARD, inner=48, in_place=True, ignore_index=3),
        {**SMALL_BLOCKS, "cluster": (1, 2)},
    ),
    "columns, cross-entropy with its gradient, f16": (
        Problem(96, 37, F16, LOSS_AND_GRADIENT, inner=48, also="loss", label_smoothing=0.1),
        SMALL_BLOCKS,
    ),
    "attention, bf16, lengths": (
        Problem(
            12, 300, BF16, ATTENTION, mask=LENGTHS, also="lse", head_dim=64, group=3, key_heads=2
        ),
        FEW_KEYS,
    ),
    "attention, f16, scaled": (
        Problem(8, 200, F16, ATTENTION, scale=0.2, group=8, layout=Layout.NHD),
        FEW_KEYS,
    ),
    "attention, f32": (Problem(10, 150, op=ATTENTION, head_dim=64, group=5), FEW_KEYS),
    "attention, wide heads": (Problem(2, 100, BF16, ATTENTION, head_dim=256), FEW_KEYS),
}

STRUCTURE = ("algorithm", "cache", "cache_holds", "launches", "staging")
"""Parameters that choose which text is emitted: also every two of their values are drawn."""


FAR_ROUNDS = 320
"""Rounds of a kernel's loops at the most columns that it is emulated at."""


@dataclass(frozen=True)
class Sampled:
    """One kernel of the sample."""

    kind: str
    config: Config

    @property
    def problem(self) -> Problem:
        return KINDS[self.kind][0]

    @property
    def is_legal(self) -> bool:
        return Space(self.problem, GPU).is_legal(self.config)

    def __str__(self) -> str:
        return f"{self.kind}: {self.config.to_json(brief=True)}"


@cache
def space_sample() -> tuple[Sampled, ...]:
    """The sample as it is kept."""
    kept = json.loads(FILE.read_text())
    return tuple(Sampled(kind, Config.from_dict(c)) for kind, each in kept.items() for c in each)


def templates() -> set[str]:
    """The names of all templates: of files that are not units, and of all units."""
    files = {path.relative_to(template_dir()).as_posix() for path in template_dir().rglob("*.j2")}
    others = {f for f in files if f.split("/")[0] not in {*SECTIONS, "programs"}}
    return others | set(map(str, library().units))


def templates_of(kernel: Sampled) -> set[str]:
    """The templates that a kernel is made of, found by watching what is loaded."""
    environment, loaded = library().environment, set()
    load = environment._load_template

    def watched(name, variables):
        loaded.add(name)
        return load(name, variables)

    environment._load_template = watched
    try:
        program = assembled(kernel.problem, kernel.config, main=True)
        program.program()
    finally:
        environment._load_template = load
    return loaded | set(map(str, program.device.texts))


def drawn() -> tuple[Sampled, ...]:
    """The sample, drawn anew: greedily, what adds most for its cost first."""
    pool = [
        Sampled(kind, config)
        for kind, (problem, narrowed) in KINDS.items()
        for config in covering_array(Space(problem, GPU, {**SOME_BOUNDS, **narrowed}))
    ]
    adds = {kernel: set(_told(kernel)) for kernel in pool}
    taken: list[Sampled] = []
    while any(adds.values()):
        best = max(pool, key=lambda kernel: len(adds[kernel]) / cost(kernel))
        taken.append(best)
        seen = frozenset(adds[best])
        for told in adds.values():
            told -= seen
    return tuple(kernel for kernel in pool if kernel in taken)


def _told(kernel: Sampled) -> Iterator[object]:
    """What a test learns by looking at this kernel: things that each occur in the sample."""
    problem, config = kernel.problem, kernel.config
    family = problem.operator.is_gradient, problem.inner > 1, problem.attends
    yield kernel.kind
    yield from templates_of(kernel)
    yield from ((family, *choice) for choice in config.as_dict().items())
    structure = [(name, getattr(config, name)) for name in STRUCTURE]
    structure += [(n, getattr(config, n) > 1) for n in ("cluster", "rows_per_thread", "stages")]
    structure.append(("persistent", config.persistent > 0))
    yield from ((family, *two) for two in combinations(structure, 2))


def cost(kernel: Sampled) -> float:
    """About how long it takes to emulate, in no unit: by the elements that a thread works on.

    Kernels that are told the columns at run time are emulated at several numbers of them, of which
    one makes for hundreds of rounds of the loops. Rows over a middle axis are many.
    """
    config, problem = kernel.config, kernel.problem
    elements = problem.cols / (config.threads_per_row * config.cluster)
    runs = 1
    if not config.static_cols:
        runs = 8
        elements += FAR_ROUNDS * config.unroll * config.vector_bytes / problem.dtype.itemsize
    return (runs + elements / 64 + config.threads / 512) * (1 if problem.inner == 1 else 2)


def write(sample: tuple[Sampled, ...]) -> None:
    """Keep a sample: a line for each kernel, with the parameters that are not as by default."""
    kinds, end = [], ",\n"
    for kind in KINDS:
        lines = [f"    {k.config.to_json(brief=True)}" for k in sample if k.kind == kind]
        kinds.append(f"  {json.dumps(kind)}: [\n{end.join(lines)}\n  ]")
    FILE.write_text("{\n" + ",\n".join(kinds) + "\n}\n")


if __name__ == "__main__":
    write(drawn())
