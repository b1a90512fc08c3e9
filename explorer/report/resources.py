"""What a kernel takes, in a line."""

from explorer.outcome import Resources


def resources_line(resources: Resources) -> str:
    """Registers a thread, shared memory a block, spills."""
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    spills = f"{spilled} bytes spilled" if spilled else "no spills"
    return f"{resources.registers} registers, {resources.shared_bytes} bytes shared, {spills}"
