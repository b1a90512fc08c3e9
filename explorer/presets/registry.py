"""All presets, and how to find one by a name."""

from difflib import get_close_matches

from explorer.errors import InvalidInput
from explorer.presets import (
    aitemplate,
    by_block,
    by_thread,
    fast_softmax,
    llm_c,
    oneflow,
    pytorch,
    triton,
)
from explorer.presets.preset import Preset

PRESETS: tuple[Preset, ...] = (
    *by_thread.PRESETS,
    *by_block.PRESETS,
    *llm_c.PRESETS,
    *fast_softmax.PRESETS,
    *aitemplate.PRESETS,
    *oneflow.PRESETS,
    *pytorch.PRESETS,
    *triton.PRESETS,
)
"""Every published kernel that the space holds, the simplest first."""

_BY_NAME = {name: preset for preset in PRESETS for name in (preset.name, *preset.other_names)}


def find_preset(name: str) -> Preset:
    """The preset of that name, or of that other name; raises InvalidInput."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = get_close_matches(name, _BY_NAME, n=3)
    but = f", but {', '.join(near)} {'is' if len(near) == 1 else 'are'}" if near else ""
    raise InvalidInput(f"preset '{name}' is not known{but}; explorer presets lists them all")
