"""Templates to source: a variant is what a config emits for a problem."""

from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.units import emit, template_digest, template_dir
from explorer.codegen.variant import Launch, Variant, launches, scratch_bytes, split_source

__all__ = [
    "Launch",
    "LaunchPlan",
    "Variant",
    "emit",
    "launches",
    "scratch_bytes",
    "split_source",
    "template_digest",
    "template_dir",
]
