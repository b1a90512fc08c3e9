"""A problem of each kind of argument, with a config that has a template for it."""

from dataclasses import replace

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

SIMPLE = Config(threads_per_row=64, cache="none", cache_holds="input")
RUN_TIME = replace(SIMPLE, static_cols=False)
GRADIENT = replace(SIMPLE, cache="shared", static_cols=False)
SHARED = Config(threads=128, threads_per_row=128, cache="shared", static_cols=False)
OVERLAPPED = Config(
    algorithm="online-block-max", launches="two-overlapped", cache="none", cache_holds="input"
)
GATHERING = replace(OVERLAPPED, threads=64, threads_per_row=64, launches="one")
EVERY_RESULT = "lse,entropy,rank,argmax,maximum,log_sum"
COLUMNS = Config(threads_per_row=1, cache="none", cache_holds="input")
MULTIPLY_ADDS = Config(core="fma", threads=128, static_cols=False)
TENSOR_CORES = replace(MULTIPLY_ADDS, core="mma", probabilities="two", heads_per_thread=4)

CASES = [
    (Problem(64, 1000), SIMPLE),
    (Problem(64, 1000, op=Op.LOG_SOFTMAX), SIMPLE),
    (Problem(64, 1000), replace(SIMPLE, persistent=2)),
    (Problem(64, 1000, DType.F16, scale=0.5, out_dtype=DType.F32), RUN_TIME),
    (Problem(64, 1000, DType.F64, scale=0.5), RUN_TIME),
    (Problem(64, 1000, DType.BF16, Op.SOFTMAX_BACKWARD), SIMPLE),
    (Problem(64, 1000, DType.F16, Op.SOFTMAX_BACKWARD, scale=-2.0), SIMPLE),
    (Problem(64, 1000, op=Op.LOG_SOFTMAX_BACKWARD, scale=-2.0), GRADIENT),
    (Problem(64, 1000, mask=Mask.CAUSAL, mask_rows=32), SIMPLE),
    (Problem(64, 320, mask=Mask.CAUSAL, mask_rows=640, op=Op.LOG_SOFTMAX), RUN_TIME),
    (Problem(64, 1000, mask=Mask.ADDITIVE, mask_rows=32), SIMPLE),
    (Problem(64, 1000, DType.F16, mask=Mask.ADDITIVE, scale=3.0), SIMPLE),
    (Problem(64, 1000, mask=Mask.LENGTHS, in_place=True), SIMPLE),
    (Problem(64, 1000, input_stride=1024, output_stride=1008), SIMPLE),
    (Problem(64, 1001, DType.F16, input_stride=1024, output_stride=1008), RUN_TIME),
    (
        Problem(64, 1000, op=Op.SOFTMAX_BACKWARD, input_stride=1024, output_stride=1008),
        SIMPLE,
    ),
    (Problem(64, 1000, input_stride=1024, output_stride=1024, in_place=True), SIMPLE),
    (Problem(64, 1000, inner=8), COLUMNS),
    (Problem(64, 1000, inner=8, in_place=True), replace(COLUMNS, static_cols=False)),
    (Problem(64, 1000, DType.F16, Op.LOG_SOFTMAX_BACKWARD, inner=8), COLUMNS),
    (Problem(64, 1000, DType.F16, Op.LOGSUMEXP), SIMPLE),
    (Problem(64, 1000, DType.BF16, Op.LOGSUMEXP, mask=Mask.LENGTHS), RUN_TIME),
    (Problem(64, 1000, op=Op.LOGSUMEXP, input_stride=1024, output_stride=3), SIMPLE),
    (Problem(64, 1000, op=Op.LOGSUMEXP, inner=8, scale=-2.0), COLUMNS),
    (Problem(64, 1000, op=Op.LOGSUMEXP, inner=8, also="maximum,log_sum"), COLUMNS),
    (Problem(64, 1000, op=Op.LOG_PROB), GATHERING),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY, inner=8, also="lse", ignore_index=3),
        replace(COLUMNS, algorithm="online-block-max"),
    ),
    (
        Problem(64, 1001, DType.F16, Op.LOG_PROB, scale=-0.5, ids_per_row=3, also=EVERY_RESULT),
        replace(GATHERING, static_cols=False),
    ),
    (
        Problem(64, 1000, DType.F16, Op.LOG_PROB, DType.F16, ids_dtype="int32", also="rank"),
        GATHERING,
    ),
    (
        Problem(64, 1000, op=Op.LOG_PROB, input_stride=1024, ids_per_row=3, also="lse,argmax"),
        GATHERING,
    ),
    (Problem(64, 1000, op=Op.LOG_PROB, output_stride=3, ids_stride=5, also="entropy"), GATHERING),
    (Problem(64, 1000, op=Op.CROSS_ENTROPY), GATHERING),
    (
        Problem(64, 1001, DType.F16, Op.CROSS_ENTROPY, scale=-0.5, also="lse,mean_gap"),
        replace(GATHERING, static_cols=False),
    ),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY, ids_dtype="int32", ids_stride=5, ignore_index=7),
        GATHERING,
    ),
    (Problem(64, 1000, DType.F16, Op.CROSS_ENTROPY_BACKWARD, in_place=True), SIMPLE),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_BACKWARD, output_stride=1008, ignore_index=7),
        replace(SIMPLE, static_cols=False),
    ),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_WITH_GRADIENT, scale=2.0, also="loss,lse"),
        GATHERING,
    ),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_BACKWARD, inner=8, label_smoothing=0.1, z_loss=0.01),
        COLUMNS,
    ),
    (
        Problem(
            *(64, 1001, DType.BF16, Op.CROSS_ENTROPY_WITH_GRADIENT),
            label_smoothing=0.1,
            z_loss=0.01,
            also="loss,maximum,log_sum",
        ),
        replace(GATHERING, static_cols=False),
    ),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_WITH_GRADIENT, inner=8, also="loss", ignore_index=3),
        replace(COLUMNS, algorithm="online-block-max"),
    ),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_WITH_GRADIENT, in_place=True, also="loss,log_sum"),
        GATHERING,
    ),
    (
        Problem(64, 1000, DType.F16, Op.CROSS_ENTROPY_WITH_GRADIENT, in_place=True, also="loss"),
        replace(GATHERING, static_cols=False),
    ),
    (Problem(64, 1000, DType.F16, Op.MULTIPLY_ROWS, in_place=True), replace(SIMPLE, exp="expf")),
    (
        Problem(64, 1000, DType.F64, Op.MULTIPLY_ROWS, input_stride=1024, scale=0.5),
        replace(SIMPLE, exp="expf"),
    ),
    (Problem(64, 1000, op=Op.DECODE_ATTENTION), MULTIPLY_ADDS),
    (
        Problem(
            *(64, 1000, DType.F16, Op.DECODE_ATTENTION),
            **{"group": 4, "key_heads": 4, "layout": "NHD", "mask": Mask.LENGTHS, "also": "lse"},
        ),
        replace(MULTIPLY_ADDS, launches="two", splits=4),
    ),
    (
        Problem(64, 1000, DType.BF16, Op.DECODE_ATTENTION, group=4, key_heads=2, also="lse"),
        replace(TENSOR_CORES, cluster=4, splits=4),
    ),
    (
        Problem(
            *(48, 770, DType.F32, Op.DECODE_ATTENTION),
            **{"group": 3, "head_dim": 64, "layout": "NHD", "scale": -0.25},
        ),
        replace(MULTIPLY_ADDS, launches="two-overlapped", splits=4),
    ),
    (Problem(64, 1000), SHARED),
    (Problem(64, 65536), Config(cluster=4, cache="shared")),
    (Problem(64, 131072), Config(cluster=16, cache="shared")),
    (Problem(64, 100_000), OVERLAPPED),
    (Problem(64, 100_000), replace(OVERLAPPED, launches="two")),
    (Problem(64, 1000), replace(RUN_TIME, launches="three")),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_BACKWARD, softcap=0.5, scale=2.0),
        SIMPLE,
    ),
    (
        Problem(64, 1000, op=Op.CROSS_ENTROPY_WITH_GRADIENT, softcap=0.5, also="loss"),
        GATHERING,
    ),
]
