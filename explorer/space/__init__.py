"""The parameter space: what values each choice has, and what rules a combination out."""

from explorer.space.parameters import parameters
from explorer.space.rules import RULES, Rule
from explorer.space.space import Space

__all__ = ["RULES", "Rule", "Space", "parameters"]
