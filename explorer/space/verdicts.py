"""What rules say of configs for one problem on one GPU, remembered."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.levels import choose
from explorer.space.parameters import MEANING, Value
from explorer.space.rules import RULES, Point, Rule

Change = dict[str, Value]

READERS = {name: tuple(rule for rule in RULES if name in rule.reads) for name in MEANING}
"""The rules that read a parameter: a change of it is a matter of these alone."""


class Verdicts:
    """Each rule's verdicts by the values that it reads: the same few come up again and again.

    A search judges some hundred thousand configs; how they would divide a row is worked out for
    some thousand.
    """

    def __init__(self, problem: Problem, gpu: GpuSpec) -> None:
        self._problem = problem
        self._gpu = gpu
        self._shared: dict[Any, int] = {}
        self._said: dict[str, tuple[Callable[[Config], Any], dict[Any, bool]]] = {
            rule.name: (attrgetter(*rule.reads), {}) for rule in RULES
        }

    def holds(self, rule: Rule, config: Config) -> bool:
        """Whether a rule holds for a config."""
        read, said = self._said[rule.name]
        values = read(config)
        verdict = said.get(values)
        if verdict is None:
            verdict = said[values] = self._holds(rule, config)
        return verdict

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that a config breaks, or None."""
        return next(self._broken(config), None)

    def broken_rules(self, config: Config) -> list[Rule]:
        """All rules that a config breaks."""
        return list(self._broken(config))

    def mending(self, config: Config, rule: Rule, changes: Iterable[Change]) -> list[Change]:
        """The changes of a config after which a rule holds."""
        return [change for change, draft in _drafts(config, changes) if self.holds(rule, draft)]

    def legal(
        self, config: Config, broken: Iterable[Rule], changes: Iterable[Change]
    ) -> list[Change]:
        """The changes of a config that breaks the `broken` rules after which it breaks none."""
        mended = [c for c in changes if not any(c.keys().isdisjoint(r.reads) for r in broken)]
        return [
            change
            for change, draft in _drafts(config, mended)
            if all(self.holds(rule, draft) for name in change for rule in READERS[name])
        ]

    def _holds(self, rule: Rule, config: Config) -> bool:
        return rule.holds(Point(self._problem, self._gpu, config, self._shared))

    def _broken(self, config: Config) -> Iterator[Rule]:
        return (rule for rule in RULES if not self.holds(rule, config))


def _drafts(config: Config, changes: Iterable[Change]) -> Iterator[tuple[Change, Config]]:
    """Each change with the config so changed, until the next: the same one throughout.

    To make one for each takes longer than to judge it.
    """
    draft = replace(config)
    for change in changes:
        for name, value in change.items():
            choose(draft, name, value)
        yield change, draft
        for name in change:
            choose(draft, name, getattr(config, name))
