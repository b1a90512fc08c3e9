"""The parameter space: what values each choice has, and what rules a combination out."""

from explorer.model.config import parameters
from explorer.space import design_rules as _design_rules  # noqa: F401 - adds its rules to RULES
from explorer.space import op_rules as _op_rules  # noqa: F401 - adds its rules to RULES
from explorer.space.rules import RULES, Rule
from explorer.space.space import Space, can_emit, spread_otherwise

__all__ = ["RULES", "Rule", "Space", "can_emit", "parameters", "spread_otherwise"]
