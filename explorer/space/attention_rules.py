"""What rules out kernels of attention."""

from functools import partial

from explorer.model.gpu_spec import registers_left
from explorer.model.key_split import SCORE_BYTES
from explorer.space.design_rules import STATIC_SHARED_BYTES
from explorer.space.rules import ATTENTION_RULES, RULES, Point, rule

attention_rule = partial(rule, of=ATTENTION_RULES)

OF_EVERY_KERNEL = ("blocks-fit", "launches-overlap", "largest-cluster")
"""The rules over rows that hold for kernels of attention as well."""

WORKING_REGISTERS = 24
"""What a kernel needs beside queries, keys, values and sums: ptxas reports 22 to 40."""


@attention_rule(
    "core",
    "heads_per_thread",
    says="a tile of the tensor cores has all heads of a group: heads_per_thread is as many",
)
def whole_groups(p: Point) -> bool:
    heads, group = p.config.heads_per_thread, p.problem.of_group
    return heads == group if p.keys.tensor_cores else heads <= group


@attention_rule(
    "core",
    "lanes_per_key",
    "probabilities",
    says="fragments have 4 lanes a key; multiply-adds take probabilities as they are: two",
)
def fragments(p: Point) -> bool:
    if p.keys.tensor_cores:
        return p.config.lanes_per_key == 4
    return p.config.probabilities == "two"


@attention_rule("core", says="tensor cores multiply such tiles from sm_80 on")
def tensor_cores_exist(p: Point) -> bool:
    return not p.keys.tensor_cores or p.gpu.multiplies_tiles


@attention_rule(
    "core",
    "lanes_per_key",
    says="by multiply-adds each lane of a key has a whole access of it",
)
def whole_accesses(p: Point) -> bool:
    return p.keys.tensor_cores or p.keys.head_words % p.config.lanes_per_key == 0


@attention_rule(
    "launches",
    "cache",
    says="three launches keep scores in scratch memory, not in shared memory",
)
def scores_in_one_place(p: Point) -> bool:
    return p.config.launches != "three" or p.config.cache == "registers"


@attention_rule(
    "launches",
    "cache",
    "core",
    "heads_per_thread",
    "unroll",
    says="a block that keeps all scores has one query head, multiply-adds, and a key at a time: "
    "heads_per_thread and unroll are 1",
)
def scores_of_one_head(p: Point) -> bool:
    if not p.keys.keeps_scores:
        return True
    return not p.keys.tensor_cores and p.config.heads_per_thread == p.config.unroll == 1


@attention_rule(
    "splits",
    "launches",
    "cluster",
    says="parts of the keys meet in a cluster, of a block for each, or by the second of two "
    "launches; one part needs neither, nor do three launches",
)
def parts_meet(p: Point) -> bool:
    config = p.config
    if config.splits_launches:
        return config.splits > 1 and config.cluster == 1
    return config.splits == config.cluster and (config.launches == "one" or config.cluster == 1)


@attention_rule(
    "splits",
    "part_keys",
    says="half of the parts or more have keys; of one part keys are not counted: part_keys is 64",
)
def parts_have_keys(p: Point) -> bool:
    if p.config.splits == 1:
        return p.config.part_keys == 64
    return p.config.splits // 2 * p.config.part_keys < p.problem.cols


@attention_rule(
    "staging",
    "stages",
    "load_hint",
    "cache",
    "launches",
    says="asynchronous copies are of sm_80 and later, without a load hint; only they have stages, "
    "and no kernel that keeps all scores",
)
def copies_have_stages(p: Point) -> bool:
    if p.config.staging == "direct":
        return p.config.stages == 1
    is_online = not p.keys.keeps_scores
    return is_online and p.config.load_hint == "default" and p.gpu.copies_asynchronously


@attention_rule(
    "cache",
    "core",
    "threads",
    "lanes_per_key",
    "heads_per_thread",
    "unroll",
    "splits",
    "part_keys",
    "cluster",
    "min_blocks",
    says="all scores of a block's keys fit its shared memory, 4 bytes each, and an SM for "
    "min_blocks blocks",
    limit=lambda p: f"{_most_kept_keys(p)} keys fit, and a block has {p.keys.most_part_keys}",
)
def scores_fit(p: Point) -> bool:
    return p.config.cache != "shared" or p.keys.most_part_keys <= _most_kept_keys(p)


def _most_kept_keys(p: Point) -> int:
    """Return the most keys whose scores fit the shared memory of a block, beside all else there."""
    return max(0, _most_shared_bytes(p) - p.keys.shared_bytes) // SCORE_BYTES


def _most_shared_bytes(p: Point) -> int:
    """Return the most shared memory of a block of which an SM holds min_blocks."""
    of_an_sm = p.gpu.shared_per_sm_bytes // p.config.min_blocks - p.gpu.shared_reserved_bytes
    return min(p.gpu.shared_per_block_bytes, of_an_sm)


# The order of rules is that in which a search draws parameters.
ATTENTION_RULES += [shared for shared in RULES if shared.name in OF_EVERY_KERNEL]


@attention_rule(
    "core",
    "threads",
    "lanes_per_key",
    "heads_per_thread",
    "unroll",
    "cache",
    "launches",
    "min_blocks",
    says="queries, keys on their way and sums fit a thread's registers",
)
def heads_fit(p: Point) -> bool:
    left = registers_left(p.config.threads, p.config.min_blocks, p.gpu)
    return p.keys.registers + WORKING_REGISTERS <= left


@attention_rule(
    "threads",
    "heads_per_thread",
    "cache",
    "launches",
    "cluster",
    "min_blocks",
    says="what warps have found fits 48 KiB of shared memory, and an SM for min_blocks blocks",
)
def findings_fit(p: Point) -> bool:
    return p.keys.shared_bytes <= min(STATIC_SHARED_BYTES, _most_shared_bytes(p))


@attention_rule(
    "core",
    "threads",
    "staging",
    "stages",
    "unroll",
    "lanes_per_key",
    "heads_per_thread",
    "cache",
    "launches",
    "cluster",
    "min_blocks",
    says="the keys and values on their way fit a block's shared memory, and an SM's for min_blocks "
    "blocks",
)
def stages_fit(p: Point) -> bool:
    return p.keys.shared_bytes + p.keys.staged_bytes <= _most_shared_bytes(p)
