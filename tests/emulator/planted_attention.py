"""Kernels of attention made wrong in one place: parts, lengths, heads, strides and fragments."""

from dataclasses import replace
from functools import partial

from planted_kernels import Plant

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

PLANTS: list[Plant] = []


def plant(kind, name, base, *changes):
    """Add a bug: `base` is the problem and the config of the kernel that is right."""
    PLANTS.append(Plant(kind, name, *base, changes))


PROBLEM = Problem(
    120,
    4096,
    DType.BF16,
    Op.DECODE_ATTENTION,
    group=5,
    key_heads=2,
    mask=Mask.LENGTHS,
    also="lse",
    scale=0.2,
)
PLAIN = Problem(64, 1000, DType.F32, Op.DECODE_ATTENTION, group=4, key_heads=4, head_dim=64)
USUAL = {"threads": 64, "static_cols": False, "exp": "ex2.approx"}
BY_TILES = Config(core="mma", heads_per_thread=5, splits=3, launches="two-overlapped", **USUAL)
BY_LANES = Config(core="fma", heads_per_thread=3, lanes_per_key=8, splits=4, cluster=4, **USUAL)
PAIR_OF_BLOCKS = Config(core="mma", heads_per_thread=4, splits=2, cluster=2, **USUAL)
TILES = (PROBLEM, BY_TILES)
PAIR = (replace(PROBLEM, group=4, rows=96), PAIR_OF_BLOCKS)
CLUSTER = (PROBLEM, BY_LANES)
SINGLE = (PLAIN, Config(core="fma", heads_per_thread=2, lanes_per_key=8, unroll=2, **USUAL))
FUSED = (
    PROBLEM,
    Config(core="fma", lanes_per_key=4, cache="shared", splits=3, launches="two", **USUAL),
)
UNFUSED = (PROBLEM, Config(core="fma", lanes_per_key=2, launches="three", **USUAL))

OF_1024 = Problem(
    32, 1024, DType.BF16, Op.DECODE_ATTENTION, group=4, key_heads=8, mask=Mask.LENGTHS, also="lse"
)
OF_16_PARTS = Config(
    core="mma",
    heads_per_thread=4,
    splits=16,
    launches="two-overlapped",
    **{**USUAL, "threads": 128},
)
PARTS_OF_A_STEP = (OF_1024, OF_16_PARTS)
"""At its own columns no warp has a second step."""

OF_MANY_KEYS = OF_1024.resized(cols=65_536)
LONG_PARTS = (
    OF_MANY_KEYS,
    Config(core="mma", heads_per_thread=4, splits=16, launches="two", **USUAL),
)
ONE_PART = (OF_MANY_KEYS, Config(core="mma", heads_per_thread=4, launches="one", **USUAL))

STAGED = replace(BY_TILES, staging="async", stages=2), replace(SINGLE[1], staging="async", stages=3)
STAGED_TILES, STAGED_LANES = (PROBLEM, STAGED[0]), (PLAIN, STAGED[1])

parts = partial(plant, "parts of keys")
lengths = partial(plant, "lengths of sequences")
heads = partial(plant, "heads and strides")
scores = partial(plant, "scores")
kept = partial(plant, "kept scores")
fragments = partial(plant, "fragments of tiles")
waits = partial(plant, "waits of parts")
stages = partial(plant, "stages of keys")
far = partial(plant, "far keys")

# ------------------------------------------------------------------ parts of the keys

OF_PART = "weight_of(own.maximum, all.maximum);"
for base in (TILES, SINGLE):
    parts(f"warps or parts keep their own maxima, by {base[1].core}", base, (OF_PART, "1.0f;"))
parts(
    "blocks of a cluster keep their own maxima",
    CLUSTER,
    ("weight_of(of_parts[p].maximum, all.maximum);", "1.0f;"),
)
parts(
    "only sums of exponentials are rescaled",
    CLUSTER,
    (
        "add_times(sums_of_all, load_remote(&findings.of_heads[0][head][dim], p), weight)",
        "add_times(sums_of_all, load_remote(&findings.of_heads[0][head][dim], p), 1.0f)",
    ),
)
parts(
    "an empty part leaves nothing",
    TILES,
    ("if (dim == 0) found_by_parts", "if (dim == 0 && part.begin < part.end) found_by_parts"),
)
parts(
    "the last part is left out",
    TILES,
    ("for (int p = 0; p < part.parts; ++p) {", "for (int p = 0; p < part.parts - 1; ++p) {"),
)
for name, wrong in (
    ("a part without keys is merged", "part.parts = (part.length - 1) / keys + 2;"),
    ("a last part that is short is left out", "part.parts = max(part.length / keys, 1);"),
    ("parts are counted by the least", "part.parts = (part.length - 1) / kPartKeys + 1;"),
):
    parts(name, TILES, ("part.parts = (part.length - 1) / keys + 1;", wrong))
parts(
    "blocks end one part too early",
    TILES,
    ("if (part.number >= part.parts) return;", "if (part.number >= part.parts - 1) return;"),
)
parts(
    "the greatest score is the first part's",
    TILES,
    ("all.maximum = fmaxf(all.maximum, found[p].maximum);\n", "all.maximum = found[0].maximum;\n"),
)
for name, base in (("a launch", TILES), ("a cluster", CLUSTER), ("one block", SINGLE)):
    parts(
        f"-inf - -inf in {name}",
        base,
        ("return maximum == -infinity() ? 0.0f : maximum;", "return maximum;"),
    )
parts(
    "a block ends where the next one has its second step",
    CLUSTER,
    (
        "min(begin + keys, static_cast<long long>(part.length))",
        "min(begin + keys, static_cast<long long>(part.length - 1))",
    ),
)
parts(
    "parts are no whole steps, but begin as if they were",
    TILES,
    (
        "part.end = static_cast<int>(min(begin + keys,",
        "part.end = static_cast<int>(min(begin + max(even, kPartKeys),",
    ),
)
parts(
    "parts that are longer than the least overlap by a key",
    TILES,
    (
        "static_cast<int>(min(begin + keys, static_cast<long long>(part.length)))",
        "static_cast<int>(min(begin + keys + (keys > kPartKeys), "
        "static_cast<long long>(part.length)))",
    ),
)

for base, keys in ((LONG_PARTS, 256), (ONE_PART, 4096)):
    parts(
        f"a part has at most {keys} keys",
        base,
        ("max(even, kPartKeys)", f"min(max(even, kPartKeys), {keys})"),
    )
    parts(
        f"a warp leaves out its eighth step, of at least {keys} keys",
        base,
        (
            "accumulate_tile(sums, scores",
            "if (first != first_tile + 7 * kBlockKeys) accumulate_tile(sums, scores",
        ),
    )

# ------------------------------------------------------------------ lengths

LENGTH = "min(max(lengths[part.group / key_heads], 0), cols)"
for name, wrong in (
    ("a length is ignored", "cols"),
    ("a length is one more", "min(max(lengths[part.group / key_heads] + 1, 0), cols)"),
    ("a length is one less", "min(max(lengths[part.group / key_heads] - 1, 0), cols)"),
    ("a length is another sequence's", "min(max(lengths[0], 0), cols)"),
    ("a length may be beyond the keys", "max(lengths[part.group / key_heads], 0)"),
    ("lengths are those of heads", "min(max(lengths[part.group % key_heads], 0), cols)"),
):
    for base in (TILES, CLUSTER):
        lengths(f"{name}, by {base[1].core}", base, (LENGTH, wrong))
lengths(
    "a sequence without keys is divided by 0",
    TILES,
    (
        "const float inverse = length > 0 ? 1.0f / all.sum : 0.0f;",
        "const float inverse = 1.0f / all.sum;",
    ),
)
lengths(
    "the lse of a sequence without keys is 0",
    CLUSTER,
    ("length > 0 ? logarithm : -infinity();", "length > 0 ? logarithm : 0.0f;"),
)
lengths("the last tile's keys are not masked", TILES, ("scores[n] = -infinity();\n", ""))
lengths(
    "the last tile's values are not masked, if its length is odd",
    TILES,
    ("if (n % 2 + 8 * (n / 2) < left) continue;", "if (n % 2 + 8 * (n / 2) <= left) continue;"),
)
lengths(
    "keys past the end are loaded",
    TILES,
    ("min(first + u * kTileKeys + 8 * n + row, end - 1)", "first + u * kTileKeys + 8 * n + row"),
)
lengths(
    "the last step's keys are not masked",
    SINGLE,
    ("scores[h][u] = counts ? product * kScale : -infinity();", "scores[h][u] = product * kScale;"),
)

# ------------------------------------------------------------------ heads, strides

PLACE = "sequence * sequence_stride + key_head * head_stride"
for base in (TILES, SINGLE):
    of = f", by {base[1].core}"
    heads(
        f"sequences are as far apart as heads{of}",
        base,
        (PLACE, "sequence * head_stride + key_head * head_stride"),
    )
    heads(
        f"heads are as far apart as sequences{of}",
        base,
        (
            PLACE,
            "sequence * sequence_stride + key_head * sequence_stride",
        ),
    )
    heads(f"each key head is the first{of}", base, (PLACE, "sequence * sequence_stride"))
    heads(f"heads are dense{of}", base, (PLACE, "part.group * cols * kHeadDim"))
    heads(f"keys are dense{of}", base, ("key + k * key_stride", "key + k * kHeadDim"))
    heads(
        f"values have the next head{of}",
        base,
        (
            "value + place, key_stride",
            "value + place + (part.group % key_heads > 0 ? 0 : "
            "key_heads > 1 ? head_stride : 0), key_stride",
        ),
    )
heads(
    "blocks of a group have the first heads' queries",
    CLUSTER,
    ("query + first_row * kHeadDim", "query + part.group * kGroup * kHeadDim"),
)
heads("a block stores heads beyond its group", CLUSTER, ("if (head >= heads) continue;", ""))
heads(
    "two heads of a group are exchanged",
    TILES,
    ("const int word = row * kHeadWords", "const int word = (row ^ (row < 2)) * kHeadWords"),
)

# ------------------------------------------------------------------ scores

scores("the scale is missing", TILES, ("scale * 1.44269504f", "1.44269504f"))
scores("the scale is that of another base", SINGLE, ("* kScale", "* (kScale * 0.693147181f)"))
scores(
    "the lse is in base 2",
    TILES,
    (
        "fmaf(reference_of_scores(all.maximum), kLn2, logf(all.sum))",
        "reference_of_scores(all.maximum) + log2f(all.sum)",
    ),
)
scores(
    "the lse has no maximum",
    CLUSTER,
    ("fmaf(reference_of_scores(all.maximum), kLn2, logf(all.sum))", "logf(all.sum)"),
)
scores("sums begin undefined", SINGLE, ("Sums sums{};", "Sums sums;"))
scores("products begin undefined", TILES, ("float products[2][4] = {};", "float products[2][4];"))
scores(
    "the greatest score begins at 0",
    TILES,
    ("sums.found.maximum = -infinity();", "sums.found.maximum = 0.0f;"),
)
scores(
    "exponentials are those of base e",
    SINGLE,
    ("exponential_of_2(scores[u] - reference)", "__expf(scores[u] - reference)"),
)
scores("sums of values are not rescaled", SINGLE, ("sums.of[head][i] *= weight;", ";"))
scores(
    "sums of exponentials are not rescaled",
    SINGLE,
    ("found = {greater, found.sum * weight};", "found = {greater, found.sum};"),
)
scores(
    "the greatest score is that of the first of several keys",
    SINGLE,
    ("for (int u = 0; u < kUnroll; ++u) greater =", "for (int u = 0; u < 1; ++u) greater ="),
)
scores(
    "an element of the head dimension is left out",
    SINGLE,
    (
        "product = fmaf(queries[h][i], numbers[i], product);",
        "if (i < kLaneElements - 1 || lane) product = fmaf(queries[h][i], numbers[i], product);",
    ),
)
scores("teams' sums are not rescaled", CLUSTER, ("sums.of[h][i] *= weight;", ";"))

# ------------------------------------------------------------------ kept scores

SCORED = "score_keys(query, key, key_stride, begin, end, scores, scale);\n"
kept(
    "values are weighed before all scores are there", FUSED, (f"{SCORED}  __syncthreads();", SCORED)
)
for base, of in ((FUSED, "fused"), (UNFUSED, "unfused")):
    kept(
        f"the maximum is that of a warp, {of}",
        base,
        ("for (int w = 0; w < kWarps; ++w) x = fmaxf", "for (int w = 0; w < 0; ++w) x = fmaxf"),
    )
    kept(f"the sum is that of a warp, {of}", base, ("w < kWarps; ++w) x +=", "w < 1; ++w) x +="))
    kept(
        f"exponentials are not waited for, {of}",
        base,
        ("  __syncthreads();\n  x = 0.0f;", "  x = 0.0f;"),
    )
    kept(
        f"the last step's keys are beyond the end, {of}",
        base,
        ("min(k, end - 1) * key_stride", "k * key_stride"),
    )
    kept(
        f"scores beyond the end are stored, {of}",
        base,
        ("if (lane == 0 && k < end)", "if (lane == 0)"),
    )
    kept(
        f"scores of -inf alone have that as their reference, {of}",
        base,
        ("return maximum == -infinity() ? 0.0f : maximum;", "return maximum;"),
    )
    kept(f"sums of values begin undefined, {of}", base, ("Sums sums{};", "Sums sums;"))
kept("each team has the whole sum", FUSED, ("threadIdx.x < kLanes ? found.sum : 0.0f", "found.sum"))
kept("weights are those of the first part", FUSED, ("weights[k - begin]", "weights[k % 64]"))
kept(
    "all heads of a group have the first one's scores",
    UNFUSED,
    ("scores = scratch + row * cols;", "scores = scratch + part.group * kGroup * cols;"),
)
kept(
    "rows of scores are as long as a sequence",
    UNFUSED,
    (
        "float* const scores = scratch + row * cols",
        "float* const scores = scratch + row * part.length",
    ),
)
kept("scores beyond a length are exponentiated", UNFUSED, ("scores, part.length)", "scores, cols)"))
kept("exponentials are not divided by their sum", UNFUSED, ("scores[k] *= inverse;", ";"))
kept(
    "the lse of a sequence without keys is 0, unfused",
    UNFUSED,
    ("length > 0 ? logarithm : -infinity();", "length > 0 ? logarithm : 0.0f;"),
)
kept(
    "warps' values are not waited for",
    UNFUSED,
    ("findings.found[warp]);\n  __syncthreads();", "findings.found[warp]);"),
)

# ------------------------------------------------------------------ fragments

fragments(
    "rows exchanged", TILES, ("__byte_perm(x[0], x[1], 0x7632)", "__byte_perm(x[0], x[1], 0x5410)")
)
fragments(
    "keys of two halves exchanged",
    TILES,
    ("a0, a1, a2, a3, low, high", "a2, a3, a0, a1, low, high"),
)
fragments(
    "the second parts are of other keys", TILES, ("low_rest, high_rest", "high_rest, low_rest")
)
fragments(
    "the second parts are left out",
    TILES,
    ("      multiply_tile(sums.of[4 * c + i], a0, a1, a2, a3, low_rest, high_rest);\n", ""),
)
fragments(
    "a weight is another head's",
    TILES,
    ("__shfl_sync(kAll, weight, 8 * column + 4)", "__shfl_sync(kAll, weight, 8 * column)"),
)
fragments(
    "a weight is another head's, where parts are a step",
    PARTS_OF_A_STEP,
    ("__shfl_sync(kAll, weight, 8 * column + 4)", "__shfl_sync(kAll, weight, 8 * column)"),
)
fragments(
    "a maximum is that of the last step alone",
    PARTS_OF_A_STEP,
    ("greater = fmaxf(sums.found.maximum, maximum)", "greater = maximum"),
)
fragments(
    "half of a head's lanes are added up",
    TILES,
    ("  sums.found.sum += __shfl_xor_sync(0xffffffffu, sums.found.sum, 2);\n", ""),
)
fragments(
    "a maximum is of half of a head's lanes",
    TILES,
    ("  maximum = fmaxf(maximum, __shfl_xor_sync(kAll, maximum, 2));\n", ""),
)
fragments(
    "a lane rescales alone",
    TILES,
    (
        "if (__any_sync(kAll, maximum > sums.found.maximum)) {",
        "if (maximum > sums.found.maximum) {",
    ),
)
fragments(
    "the second half of the head dimension is the first",
    TILES,
    ("keys[u][n][j] = words[4 * j]", "keys[u][n][j] = words[4 * (j % 2)]"),
)
fragments(
    "two words of a value are exchanged",
    TILES,
    ("values[u][n][c] = words[8 * c]", "values[u][n][c] = words[8 * (c ^ 1)]"),
)
fragments(
    "elements of a head are stored in another place",
    TILES,
    ("8 * row + 2 * (i % 4);", "8 * row + 2 * (i % 4 ^ 1);"),
)

# ------------------------------------------------------------------ waits

LEFT = "leave(sums, findings.of_heads[warp], findings.found[warp]);\n"
for base in (TILES, CLUSTER, SINGLE):
    waits(
        f"warps do not wait, by {base[1].core} {base[1].splits}",
        base,
        (f"{LEFT}  __syncthreads();\n", LEFT),
    )
waits("the merge does not wait for the parts", TILES, ("  wait_for_launch_before();\n", ""))
BARRIER = "arrive_at_parts();\n  wait_for_parts();"
waits("blocks of a cluster do not wait for the parts", CLUSTER, (f"  {BARRIER}\n", ""))
for base in (CLUSTER, PAIR):
    waits(
        f"blocks of a cluster end before others have read, by {base[1].core}",
        base,
        (f"  {BARRIER}  // no block ends while others read what it has found\n", ""),
    )
waits(
    "an empty part leaves nothing",
    TILES,
    (
        "    if (dim == 0) found_by_parts",
        "    if (dim == 0 && part.begin < part.end) found_by_parts",
    ),
)

# ------------------------------------------------------------------ stages

WAIT = 'asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");\n'
for base in (STAGED_TILES, STAGED_LANES):
    of = f", by {base[1].core}"
    stages(f"a step is read before it has come{of}", base, ("(kStages - 1)", "(kStages)"))
    stages(f"no step is waited for{of}", base, (WAIT, ""))
    stages(
        f"a lane reads what others have copied without a barrier{of}",
        base,
        (f"  {WAIT}  __syncwarp();\n", f"  {WAIT}"),
    )
    stages(
        f"a stage is filled while lanes still read it{of}",
        base,
        (
            "    __syncwarp();  // all lanes have read the step",
            "    // all lanes have read the step",
        ),
    )
    stages(
        f"warps share their stages{of}",
        base,
        ("+ threadIdx.x / 32 * kStages", "+ threadIdx.x / 64 * kStages"),
    )
    stages(
        f"a value lies elsewhere than where it is read{of}",
        base,
        ("values[k][place_of_value(k, word)]", "values[k][place_of_value(k + 1, word)]"),
    )
    stages(
        f"a step is that before{of}",
        base,
        ("first + kStages * kBlockKeys, end", "first + (kStages - 1) * kBlockKeys, end"),
    )
    stages(
        f"a group is committed only if it copies{of}",
        base,
        (
            '  asm volatile("cp.async.commit_group;',
            '  if (first < end) asm volatile("cp.async.commit_group;',
        ),
    )

# ------------------------------------------------------------------ far keys

far(
    "the place of a sequence has 32 bits", TILES, ("const long long place = ", "const int place = ")
)
far(
    "the place of a sequence has 32 bits without a sign",
    SINGLE,
    ("const long long place = ", "const unsigned place = "),
)
far(
    "the place of a key has 32 bits",
    CLUSTER,
    ("key + k * key_stride", "key + static_cast<int>(k) * static_cast<int>(key_stride)"),
)
far(
    "the place of a value has 32 bits without a sign",
    TILES,
    (
        "value + k * key_stride",
        "value + static_cast<unsigned>(k) * static_cast<unsigned>(key_stride)",
    ),
)
far(
    "the number of a group has 16 bits",
    CLUSTER,
    (
        "part.group = blockIdx.x / (kSplits * kHeadParts);",
        "part.group = static_cast<unsigned short>(blockIdx.x / (kSplits * kHeadParts));",
    ),
)
far(
    "the place of a part has 32 bits",
    TILES,
    ("scratch + place_of_part * kHeadDim", "scratch + static_cast<int>(place_of_part) * kHeadDim"),
)
far(
    "the place of a result has 32 bits",
    CLUSTER,
    ("output + row * kHeadDim", "output + static_cast<int>(row) * kHeadDim"),
)
far(
    "the place of a query has 31 bits",
    TILES,
    ("query + first_row * kHeadDim", "query + (first_row * kHeadDim & 0x7fffffff)"),
)
far(
    "the place of a row of scores has 32 bits without a sign",
    UNFUSED,
    ("scratch + row * cols", "scratch + static_cast<unsigned>(row) * cols"),
)
