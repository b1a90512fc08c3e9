"""Templates to source: a variant is what a config emits for a problem."""

from typing import TYPE_CHECKING

from explorer.codegen.variant import (
    Launch,
    Variant,
    can_overlap,
    launches,
    scratch_bytes,
    split_source,
)
from explorer.system.lazy import lazy_names

if TYPE_CHECKING:
    from explorer.codegen.launch_plan import LaunchPlan
    from explorer.codegen.units import emit, rendered, template_digest

__all__ = [
    "Launch",
    "LaunchPlan",
    "Variant",
    "can_overlap",
    "emit",
    "launches",
    "rendered",
    "scratch_bytes",
    "split_source",
    "template_digest",
]

__getattr__ = lazy_names(
    __name__,
    {
        "LaunchPlan": "explorer.codegen.launch_plan",
        "emit": "explorer.codegen.units",
        "rendered": "explorer.codegen.units",
        "template_digest": "explorer.codegen.units",
    },
)
