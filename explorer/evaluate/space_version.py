"""A digest of the space: whether two measurements speak of the same variants."""

import hashlib
from functools import cache

from explorer.codegen import template_digest
from explorer.dtype import DType
from explorer.parameters import REFUTED
from explorer.space import RULES, parameters


@cache
def space_version() -> str:
    """Eight hexadecimal digits over parameters, their values, the rules and the templates."""
    lines = [f"{dtype} {parameters(dtype)}" for dtype in DType]
    lines.append(f"not searched: {REFUTED}")
    lines += [f"{rule.name}: {rule.sentence}" for rule in RULES]
    lines.append(template_digest())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
