"""Rules: each excludes something, reads what it says, and leaves what works."""

import random
from dataclasses import dataclass, replace
from itertools import product

import pytest

from explorer.choose import config_for
from explorer.model.config import DRAWN_MIN_BLOCKS, MEANING, REFUTED, Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu, known_gpu_for
from explorer.model.problem import Mask, Problem
from explorer.ops import BACKWARD, FORWARD, Op
from explorer.space import ATTENTION_RULES, RULES, Space, parameters
from explorer.space.covering import covering_array
from explorer.space.rules import Point
from explorer.space.space import MOST_JUDGED, RuleCache

H200 = known_gpu("NVIDIA H200")
NEED_WIDE_ROWS = ("threads_per_row", "unroll", "vector_bytes", "reduction")

TOO_FEW_DIGITS = {"output"}
"""Choices that f16 has too few digits for."""

SPACE = Space(Problem(8192, 4096), H200)


@dataclass
class Spy:
    """A config that notes which parameters are looked at."""

    config: Config
    seen: set[str]

    def __getattr__(self, name):
        derived = getattr(Config, name, None)
        if isinstance(derived, property):
            return derived.fget(self)
        self.seen.add(name)
        return getattr(self.config, name)


OF_ROWS = [Problem(64, cols, DType.BF16) for cols in (5, 4096, 100000)]
OF_ROWS.append(Problem(96, 100, DType.BF16, Op.LOG_SOFTMAX_BACKWARD, inner=48))
OF_KEYS = [
    Problem(64, cols, dtype, Op.DECODE_ATTENTION, group=4, key_heads=2)
    for cols in (5, 1000, 100000)
    for dtype in (DType.BF16, DType.F32)
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "rule", dict.fromkeys((*RULES, *ATTENTION_RULES)), ids=lambda rule: rule.name
)
def test_a_rule_reads_only_what_it_declares(rule):
    """What a rule excludes is counted from the parameters that it declares."""
    rng = random.Random(1)
    problems = [*(OF_ROWS if rule in RULES else ()), *(OF_KEYS if rule in ATTENTION_RULES else ())]
    for problem in problems:
        space = Space(problem, H200)
        for _ in range(200):
            spy = Spy(space.draw(rng), set())
            rule.holds(Point(space.problem, H200, spy))
            assert spy.seen <= set(rule.reads)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_excludes_something_somewhere(rule):
    problems = [Problem(64, cols) for cols in (100000, 4096, 5)]
    problems.append(Problem(64, 100000, op=Op.LOG_SOFTMAX_BACKWARD))
    problems.append(Problem(64, 100000, mask=Mask.LENGTHS))
    problems += [Problem(64, 64, DType.F64), Problem(64, 64, in_place=True)]
    problems.append(Problem(64, 64, DType.F16, op=Op.LOG_SOFTMAX, scale=2.0))
    problems += [Problem(96, 64, DType.F16, op, inner=6, scale=2.0) for op in (*FORWARD, *BACKWARD)]
    problems += [Problem(96, 64, op=op) for op in Op]
    problems.append(Problem(96, 64, DType.F16, inner=48))
    spaces = [Space(problem, H200) for problem in problems]
    spaces.append(Space(problems[0], known_gpu("Tesla T4")))
    assert any(space.excluded_share(rule) for space in spaces)


def test_the_share_that_a_rule_of_many_parameters_excludes_is_close():
    rule = next(rule for rule in RULES if rule.name == "registers-fit")
    space = Space(Problem(64, 4096), H200, {"threads": (256,), "threads_per_row": (32, 256)})
    values = [space.parameters[name] for name in rule.reads]
    points = [Config(**dict(zip(rule.reads, point, strict=True))) for point in product(*values)]
    assert len(points) > MOST_JUDGED
    exact = sum(not rule.holds(Point(space.problem, H200, c)) for c in points) / len(points)
    assert space.excluded_share(rule) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_reason_names_rule_and_values(rule):
    reason = rule.reason(Config())
    assert reason.startswith(rule.name)
    assert all(f"{name}=" in reason for name in rule.reads)


def test_parameters_are_the_fields_of_config():
    for dtype in DType:
        assert list(parameters(dtype)) == list(Config().as_dict()) == list(MEANING)


COLS = (1, 2, 5, 17, 33, 64, 1000, 4096, 4097, 50257, 262144, 2**20)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", DType)
def test_no_column_count_is_refused(dtype, arch):
    for cols in COLS:
        space = Space(Problem(2, cols, dtype), known_gpu_for(arch))
        assert space.is_legal(space.sample(random.Random(0))), cols


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [8, 37, 4097])
def test_every_value_has_a_legal_config(cols):
    """But for threads a row where rows are short, spans where they are long, and clusters and two
    launches, which are for rows that are longer still. In f16, where a folded exponent is safe.
    An order of rows is chosen under a causal mask.
    """
    space = Space(Problem(64, cols, DType.F16), H200)
    array = covering_array(space)
    for name, values in space.parameters.items():
        found = {getattr(config, name) for config in array}
        missing = set(values) - found - TOO_FEW_DIGITS
        missing -= {"span"} if cols > 64 * 32 else set()
        missing -= {"two", "two-overlapped", "mbarrier"}  # see the test below
        missing -= {"descending"}
        whole = cols % 8 == 0  # vectors, as bulk copies bring
        missing -= set() if whole else set(values) if name == "stages" else {"bulk"}
        assert not missing or name == "cluster" or (name in NEED_WIDE_ROWS and cols < 64)


@pytest.mark.parametrize(
    "config",
    [
        Config(algorithm="online-block-max", cluster=4, exchange="mbarrier"),
        Config(cluster=16, exchange="mbarrier", reduction="shuffle-redux", cache_holds="input"),
        Config(
            algorithm="online-block-max",
            cache="none",
            cache_holds="input",
            launches="two-overlapped",
            reduction="shuffle-redux",
        ),
    ],
    ids=lambda config: config.to_json(brief=True),
)
def test_what_wide_rows_alone_have_is_legal_there(config):
    assert Space(Problem(64, 16384), H200).is_legal(config)
    assert not Space(Problem(64, 4096), H200).is_legal(config)


@pytest.mark.exhaustive
def test_a_covering_array_covers_all_legal_pairs():
    narrow = Space(
        Problem(64, 4096),
        H200,
        {
            "threads": (32, 256),
            "threads_per_row": (1, 32, 256),
            "exp": ("expf",),
            "unroll": (1, 4),
            "load_hint": ("default", "cs"),
            "store_hint": ("default",),
            "min_blocks": (1, 2),
            "persistent": (0, 2),
        },
    )
    legal = list(narrow.legal())
    array = covering_array(narrow, strength=2)
    names = list(narrow.parameters)

    def pairs(configs):
        return {
            (a, getattr(c, a), b, getattr(c, b))
            for c in configs
            for i, a in enumerate(names)
            for b in names[i + 1 :]
        }

    assert pairs(array) == pairs(legal)
    assert len(array) < len(legal) / 20


@pytest.mark.exhaustive
def test_repair_ends_at_a_legal_config_near_by():
    rng = random.Random(3)
    for _ in range(200):
        broken = SPACE.draw(rng)
        mended = SPACE.repair(broken, rng)
        assert SPACE.is_legal(mended)
        if SPACE.is_legal(broken):
            assert mended == broken


def test_neighbours_are_legal_and_one_step_away():
    config = Config()
    steps = SPACE.neighbours(config)
    assert len(steps) > 15
    for step in steps:
        changed = set(config.differences(step))
        assert len(changed) == 1 or changed == {"threads", "threads_per_row"}
        assert SPACE.is_legal(step)


def test_a_row_is_spread_over_other_blocks_of_a_cluster():
    """As many threads have the row, in blocks of which as many threads fit an SM."""
    problem = Problem(100, 131072, dtype=DType.BF16)
    heuristic = config_for(problem, H200)
    config = replace(heuristic, threads=256, threads_per_row=256, cluster=8, min_blocks=4)
    space = Space.searched(problem, H200)
    assert space.is_legal(config)
    spread = {
        (step.threads, step.cluster, step.min_blocks)
        for step in space.neighbours(config)
        if {"threads", "cluster"} <= set(config.differences(step))
    }
    assert spread >= {(128, 16, 4), (128, 16, 8), (512, 4, 2)}
    assert all(threads * cluster == 2048 for threads, cluster, _ in spread)
    assert all(blocks == 4 or threads * blocks == 1024 for threads, _, blocks in spread)


def test_a_value_of_no_parameter_is_named():
    sentence = SPACE.foreign_value(replace(Config(), threads=100))
    assert "threads is 100" in sentence and "256" in sentence
    assert not SPACE.is_legal(replace(Config(), vector_bytes=2))


@pytest.mark.parametrize(
    ("fixed", "message"),
    [({"thread": (1,)}, "parameter 'thread'"), ({"threads": (33,)}, "threads has no value 33")],
)
def test_a_narrowing_that_is_not_possible_is_refused(fixed, message):
    with pytest.raises(InvalidInput, match=message):
        Space(Problem(8, 8), H200, fixed)


def test_an_order_of_rows_is_chosen_under_a_causal_mask_alone():
    descending = Config(row_order="descending")
    assert Space(Problem(64, 4096, mask=Mask.CAUSAL), H200).is_legal(descending)
    for other in (Problem(64, 4096), Problem(64, 4096, mask=Mask.LENGTHS)):
        assert Space(other, H200).broken_rule(descending).name == "last-rows-take-longest"


@pytest.mark.parametrize("dtype", DType)
def test_a_search_proposes_every_value_that_was_not_refuted(dtype):
    problem = Problem(8192, 4096, dtype)
    space, searched = Space(problem, H200), Space.searched(problem, H200)
    for name, values in space.parameters.items():
        drawn = DRAWN_MIN_BLOCKS if name == "min_blocks" else values
        assert set(searched.parameters[name]) == set(drawn) - set(REFUTED.get(name, ()))


def test_a_config_with_a_refuted_value_is_legal_but_not_proposed():
    for changes in ({"persistent": 2}, {"arrangement": "blocked", "cache": "none"}):
        config = replace(Config(cache_holds="input"), **changes)
        assert Space(Problem(8192, 4096), H200).is_legal(config), config
        assert not Space.searched(Problem(8192, 4096), H200).is_legal(config)


def test_a_sub_space_of_refuted_values_can_be_asked_for():
    space = Space.searched(Problem(8192, 4096), H200, {"persistent": (2,)})
    assert space.parameters["persistent"] == (2,)
    assert space.parameters["staging"] == ("direct", "span", "async")


def test_rules_that_read_nothing_of_a_change_need_not_be_asked_again():
    rng = random.Random(3)
    for problem in (Problem(64, 4096), Problem(3, 33, DType.BF16, op=Op.LOG_SOFTMAX)):
        space = Space(problem, H200)
        cache = RuleCache(problem, H200)
        for _ in range(200):
            before, drawn = space.draw(rng), space.draw(rng)
            names = rng.sample(list(space.parameters), rng.randint(1, 3))
            after = replace(before, **{name: getattr(drawn, name) for name in names})
            broken = cache.broken_rules(before)
            assert cache.still_broken(after, broken, names) == cache.broken_rules(after)
