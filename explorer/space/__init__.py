"""The parameter space: what values each choice has, and what rules a combination out."""

from explorer.model.config import parameters
from explorer.space import attention_rules as _attention_rules  # noqa: F401 - adds its rules
from explorer.space import design_rules as _design_rules  # noqa: F401 - adds its rules to RULES
from explorer.space import op_rules as _op_rules  # noqa: F401 - adds its rules to RULES
from explorer.space.restriction import restriction
from explorer.space.rules import ATTENTION_RULES, RULES, Rule, rules_of
from explorer.space.space import Space, can_emit, spread_otherwise

__all__ = [
    "ATTENTION_RULES",
    "RULES",
    "Rule",
    "Space",
    "can_emit",
    "parameters",
    "restriction",
    "rules_of",
    "spread_otherwise",
]
