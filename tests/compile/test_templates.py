"""What is emitted compiles for every architecture, as Python plans it; its host part does too."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from as_planned import compile_as_planned, compile_host
from covering import covering
from paired_sizes import IN_PAIRS
from space_sample import space_sample

from explorer.codegen.units import emit
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS, Op
from explorer.space import Space
from explorer.space.space import sampled

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

# ------------------------------------------------------------------ a plain softmax

COLS = (37, 4096)
"""37: shorter than most blocks, misaligned for every vector but the scalar."""

RAGGED = 4097


def cases():
    """Architectures, dtypes and columns, each two of them together; all three on sm_90.

    What is emitted does not depend on the architecture: what can differ is what the headers have
    of a dtype, and what the assembler takes: of f32 every second kernel is compiled for each, of
    the other types every fourth.
    """
    for i, arch in enumerate(ARCHS):
        for j, dtype in enumerate(DType):
            for k, cols in enumerate(COLS):
                if arch == "sm_90" or (i + j + k) % len(COLS) == 0:
                    yield arch, dtype, cols


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arch", "dtype", "cols"), list(cases()))
def test_each_choice_compiles(arch, dtype, cols, cache):
    problem = Problem(64, cols, dtype)
    configs = covering(Space(problem, known_gpu_for(arch)))
    if arch != "sm_90":
        configs = configs[:: 2 if dtype is DType.F32 else 4]
    compile_as_planned(arch, [(problem, config) for config in configs], cache)


def pairs_of(config):
    return set(combinations(config.as_dict().items(), 2))


@cache
def covering_pairs(cols):
    """Every pair of choices that ragged rows have; for whole ones, those that these have beside."""
    problem = Problem(64, cols)
    configs = covering(Space(problem, known_gpu_for("sm_90"), IN_PAIRS), strength=2)
    if cols == RAGGED:
        return configs
    met = set().union(*map(pairs_of, covering_pairs(RAGGED)))
    beside = []
    for config in configs:
        if pairs_of(config) - met:
            met |= pairs_of(config)
            beside.append(config)
    return beside


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [4096, RAGGED])
def test_each_pair_of_choices_compiles(cols, cache):
    """For one architecture. Whole rows have bulk copies, which ragged ones have not."""
    problem = Problem(64, cols)
    compile_as_planned("sm_90", [(problem, config) for config in covering_pairs(cols)], cache)


# ------------------------------------------------------------------ problems of every kind

F16, BF16, F64 = DType.F16, DType.BF16, DType.F64
LOG, BACKWARD, LOG_BACKWARD = Op.LOG_SOFTMAX, Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD
LOGSUMEXP, LOG_PROB = Op.LOGSUMEXP, Op.LOG_PROB
LOSS, LOSS_BACKWARD = Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD
LOSS_AND_GRADIENT = Op.CROSS_ENTROPY_WITH_GRADIENT
ACROSS = {
    Op.SOFTMAX: DType.F32,
    LOG: BF16,
    BACKWARD: F64,
    LOG_BACKWARD: F16,
    LOGSUMEXP: BF16,
    LOSS: BF16,
    LOSS_BACKWARD: F16,
    LOSS_AND_GRADIENT: DType.F32,
}
"""Operators that are compiled over a middle axis, and the type of each."""
ALL_OF_IT = ",".join(OPERATORS[LOG_PROB].on_request)

KINDS = {
    "f64": Problem(64, 1000, F64),
    "bf16 to f32": Problem(64, 1000, BF16, out_dtype=DType.F32),
    "f32 to f16, ragged": Problem(64, 1001, out_dtype=F16),
    "f16 to bf16": Problem(64, 1000, F16, out_dtype=BF16),
    "gaps": Problem(64, 1000, input_stride=1008, output_stride=1004),
    "ragged gaps": Problem(64, 1000, BF16, out_dtype=DType.F32, output_stride=1003),
    "in place": Problem(64, 1000, in_place=True),
    "f64 in place, gaps": Problem(
        64, 1000, F64, input_stride=1001, output_stride=1001, in_place=True
    ),
    "log": Problem(64, 1000, op=LOG),
    "log, ragged f16 to f32": Problem(64, 1001, F16, LOG, out_dtype=DType.F32),
    "scale, bf16": Problem(64, 1000, BF16, scale=0.5),
    "scale and additive, ragged f64": Problem(64, 1001, F64, scale=0.5, mask=Mask.ADDITIVE),
    "causal": Problem(64, 1000, mask=Mask.CAUSAL),
    "causal, ragged, repeated": Problem(64, 1001, BF16, mask=Mask.CAUSAL, mask_rows=16),
    "log and lengths, gaps": Problem(
        64, 1000, op=LOG, input_stride=1008, output_stride=1004, mask=Mask.LENGTHS
    ),
    "lengths in place": Problem(64, 1001, mask=Mask.LENGTHS, in_place=True),
    "additive, f16": Problem(64, 1000, F16, mask=Mask.ADDITIVE),
    "additive in place": Problem(64, 1000, mask=Mask.ADDITIVE, in_place=True),
}
"""Problems whose kernels differ in few places from those of a plain softmax."""

SPLITS = {"threads": (96, 256, 1024), "threads_per_row": (1, 8, 32, 96, 256)}

OF_THEIR_OWN = {
    "backward": (Problem(64, 1000, op=BACKWARD), SPLITS),
    "log backward, bf16, ragged, scaled": (
        Problem(64, 1001, BF16, LOG_BACKWARD, scale=2.0),
        SPLITS,
    ),
    "log backward, f64": (Problem(64, 1000, F64, LOG_BACKWARD), SPLITS),
    "backward, f16 to f32, gaps": (
        Problem(64, 1000, F16, BACKWARD, DType.F32, output_stride=1003),
        SPLITS,
    ),
    **{
        f"columns, {op}": (Problem(96, 300, dtype, op, inner=48), {})
        for op, dtype in ACROSS.items()
    },
    "log-sum-exp": (Problem(64, 1000, BF16, LOGSUMEXP), SPLITS),
    "log-sum-exp, ragged": (Problem(64, 1001, op=LOGSUMEXP), SPLITS),
    "log-sum-exp, f64, gaps": (
        Problem(64, 1000, F64, LOGSUMEXP, input_stride=1003, output_stride=2),
        SPLITS,
    ),
    "log-sum-exp, masked, scaled": (
        Problem(64, 1000, F16, LOGSUMEXP, BF16, mask=Mask.ADDITIVE, scale=0.5),
        SPLITS,
    ),
    "log-sum-exp, clusters": (Problem(64, 16385, BF16, LOGSUMEXP), {"cluster": (2, 4, 8, 16)}),
    "log-sum-exp in two terms, ragged": (
        Problem(64, 1001, BF16, LOGSUMEXP, also="maximum,log_sum"),
        SPLITS,
    ),
    "columns, log-sum-exp in two terms": (
        Problem(96, 300, BF16, LOGSUMEXP, inner=48, also="maximum,log_sum"),
        {},
    ),
    "log-prob, ragged": (Problem(64, 1001, BF16, LOG_PROB), SPLITS),
    "log-prob and more, gaps, scaled": (
        Problem(64, 1000, F16, LOG_PROB, scale=2.0, input_stride=1008, also=ALL_OF_IT),
        SPLITS,
    ),
    "log-prob of ids and more, f64": (
        Problem(64, 1000, F64, LOG_PROB, ids_per_row=20, also=ALL_OF_IT),
        SPLITS,
    ),
    "log-prob and more, clusters": (
        Problem(64, 16385, BF16, LOG_PROB, also=ALL_OF_IT, ids_dtype="int32"),
        {"cluster": (2, 4, 8, 16)},
    ),
    "cross-entropy, ragged": (Problem(64, 1001, BF16, LOSS), SPLITS),
    "cross-entropy and more, f64, scaled": (
        Problem(64, 1000, F64, LOSS, scale=2.0, also="lse,maximum,log_sum", ignore_index=7),
        SPLITS,
    ),
    "capped cross-entropy, ragged": (Problem(64, 1001, F16, LOSS, softcap=30.0), SPLITS),
    "capped cross-entropy with its gradient, scaled, clusters": (
        Problem(64, 16385, BF16, LOSS_AND_GRADIENT, also="loss", softcap=30.0, scale=0.5),
        {"cluster": (2, 4, 8, 16)},
    ),
    "columns, gradient of capped cross-entropy, f64": (
        Problem(96, 300, F64, LOSS_BACKWARD, inner=48, softcap=30.0),
        {},
    ),
    "cross-entropy and mean gaps, ragged": (Problem(64, 1001, F16, LOSS, also="mean_gap"), SPLITS),
    "cross-entropy and mean gaps, clusters": (
        Problem(64, 16385, BF16, LOSS, also="lse,mean_gap"),
        {"cluster": (2, 4, 8, 16)},
    ),
    "columns, cross-entropy and mean gaps, f64": (
        Problem(96, 300, F64, LOSS, inner=48, also="mean_gap"),
        {},
    ),
    "columns, cross-entropy with its gradient and mean gaps": (
        Problem(
            96, 300, BF16, LOSS_AND_GRADIENT, inner=48, also="loss,mean_gap", label_smoothing=0.1
        ),
        {},
    ),
    "gradient of cross-entropy, ragged": (Problem(64, 1001, BF16, LOSS_BACKWARD), SPLITS),
    "gradient of cross-entropy, in place, clusters": (
        Problem(64, 16385, F16, LOSS_BACKWARD, in_place=True, ids_dtype="int32"),
        {"cluster": (2, 4, 8, 16)},
    ),
    "cross-entropy with its gradient, in place": (
        Problem(64, 1000, op=LOSS_AND_GRADIENT, in_place=True, also="loss,lse"),
        SPLITS,
    ),
    "cross-entropy with its gradient, clusters": (
        Problem(64, 16385, BF16, LOSS_AND_GRADIENT, also="loss"),
        {"cluster": (2, 4, 8, 16)},
    ),
    "clusters": (Problem(64, 16384), {"cluster": (2, 4, 8, 16)}),
    "clusters, ragged": (Problem(64, 8193, BF16), {"cluster": (2, 4, 8, 16)}),
}
"""Problems whose kernels have templates of their own, and what parameters are narrowed to."""


def few_of(number, problem, arch):
    """Return three configs for sm_90 and one for the others, by turns with and without a cache.

    What is emitted does not depend on the architecture.
    """
    space = Space(problem, known_gpu_for(arch))
    cached = Space(problem, known_gpu_for(arch), {"cache": ("shared",)})
    if arch == "sm_90":
        return [*sampled(space, 2), *sampled(cached, 1)]
    return sampled((space, cached)[number % 2], 1, seed=number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ARCHS)
def test_every_kind_compiles(arch, cache):
    numbered = enumerate(KINDS.values(), ARCHS.index(arch))
    kernels = [(p, config) for number, p in numbered for config in few_of(number, p, arch)]
    compile_as_planned(arch, kernels, cache)


def of_an_arch():
    """Yield each architecture with the kinds it can do, as spaces: clusters are since sm_90."""
    for arch in ARCHS:
        gpu = known_gpu_for(arch)
        for kind, (problem, narrowed) in OF_THEIR_OWN.items():
            able = {
                name: tuple(v for v in values if name != "cluster" or v <= gpu.cluster_blocks)
                for name, values in narrowed.items()
            }
            if all(able.values()):
                yield pytest.param(arch, Space(problem, gpu, able), id=f"{arch}-{kind}")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arch", "space"), list(of_an_arch()))
def test_choices_of_each_kind_compile(arch, space, cache):
    """Every second for sm_90; of the others, which get the same text, every eighth config."""
    configs = covering(space)[:: 2 if arch == "sm_90" else 8]
    compile_as_planned(arch, [(space.problem, config) for config in configs], cache)


OF_ATTENTION = (
    Problem(
        12,
        4096,
        DType.BF16,
        Op.DECODE_ATTENTION,
        mask=Mask.LENGTHS,
        also="lse",
        group=3,
        key_heads=2,
    ),
    Problem(8, 1000, DType.F32, Op.DECODE_ATTENTION, scale=0.5, group=4, head_dim=64),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", OF_ATTENTION, ids=lambda problem: str(problem.dtype))
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_each_choice_of_attention_compiles(arch, problem, cache):
    configs = covering(Space(problem, known_gpu_for(arch)))
    assert {config.cache for config in configs} == {"registers", "shared"}
    assert {config.launches for config in configs} >= {"one", "two", "three"}
    compile_as_planned(arch, [(problem, config) for config in configs], cache)


SHARED = Config(cache="shared", static_cols=False)
TWO = Config(
    algorithm="online-block-max",
    threads=512,
    threads_per_row=512,
    cache="none",
    cache_holds="input",
    unroll=2,
)

HOSTS = [
    *((KINDS[kind], SHARED) for kind in ("f64", "ragged gaps", "f64 in place, gaps")),
    *(
        (problem, replace(SHARED, cache_holds="input", static_cols=number % 2 == 0))
        for number, (kind, problem) in enumerate(KINDS.items())
        if any(word in kind for word in ("log", "scale", "causal", "lengths", "additive"))
    ),
    *(
        (problem, replace(SHARED, cache_holds="input", static_cols=kind == "backward"))
        for kind, (problem, _) in OF_THEIR_OWN.items()
        if "backward" in kind and problem.inner == 1
    ),
    *((Problem(8, 401408), replace(SHARED, cluster=16, static_cols=static)) for static in (0, 1)),
    *(
        (Problem(4, cols, BF16), replace(TWO, launches=launches))
        for cols in (65536, 65537)
        for launches in ("two", "two-overlapped")
    ),
    (Problem(4, 65537, BF16, LOG, scale=0.5), replace(TWO, launches="two-overlapped")),
    (
        Problem(64, 1000, op=LOG, scale=0.5, input_stride=1008),
        replace(TWO, algorithm="three-pass", launches="three"),
    ),
]
"""Of the clusters, each has sixteen blocks and half of what an SM has of shared memory."""


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("problem", "config"), HOSTS, ids=str)
def test_the_host_part_compiles(problem, config, tmp_path):
    source = emit(problem, config).source
    wide = "cudaFuncAttributeNonPortableClusterSizeAllowed" in source
    assert wide == (config.cluster > 8)
    compile_host(source, tmp_path)


# ------------------------------------------------------------------ the sample of the space


def arch_of(number: int) -> str:
    """The architecture to compile a kernel of the sample for: each in turn, of those that can."""
    kernel = space_sample()[number]
    able = [a for a in ARCHS if Space(kernel.problem, known_gpu_for(a)).is_legal(kernel.config)]
    return able[number % len(able)]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("number", range(len(space_sample())), ids=lambda n: space_sample()[n].kind)
def test_the_sample_compiles(number):
    """The quick twin of every covering array."""
    kernel = space_sample()[number]
    compile_as_planned(arch_of(number), [(kernel.problem, kernel.config)])


def test_every_architecture_has_some():
    assert {arch_of(number) for number in range(len(space_sample()))} == set(ARCHS)
