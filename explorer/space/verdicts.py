"""What rules say of configs for one problem on one GPU, remembered."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.rules import RULES, Point, Rule


class Verdicts:
    """Each rule's verdicts by the values that it reads: the same few come up again and again.

    A search judges some hundred thousand configs; how they would divide a row is worked out for
    some thousand.
    """

    def __init__(self, problem: Problem, gpu: GpuSpec) -> None:
        self._problem = problem
        self._gpu = gpu
        self._said: dict[str, tuple[Callable[[Config], Any], dict[Any, bool]]] = {
            rule.name: (attrgetter(*rule.reads), {}) for rule in RULES
        }

    def holds(self, rule: Rule, config: Config) -> bool:
        """Whether a rule holds for a config."""
        read, said = self._said[rule.name]
        values = read(config)
        verdict = said.get(values)
        if verdict is None:
            verdict = said[values] = rule.holds(Point(self._problem, self._gpu, config))
        return verdict

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that a config breaks, or None."""
        for rule in RULES:
            if not self.holds(rule, config):
                return rule
        return None
