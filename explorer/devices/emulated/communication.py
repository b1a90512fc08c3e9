"""Whether a kernel's blocks talk to one another through global memory."""

from explorer.devices.emulated.program import Entry, Instruction, Symbol

_STRONG = {"volatile", "relaxed", "acquire", "acq_rel", "mmio"}


def communicates(entry: Entry) -> bool:
    """Whether it reads what other blocks may have published: by atomics or strong loads."""
    return any(_reads_flags(instruction) for instruction in entry.instructions)


def waits_for_other_blocks(entry: Entry) -> bool:
    """Whether it does so in a loop, so that blocks may have to run side by side."""
    instructions = entry.instructions
    for branch in instructions:
        if branch.root == "bra" and branch.operands and isinstance(branch.operands[0], Symbol):
            start = entry.labels.get(branch.operands[0].name, len(instructions))
            if any(_reads_flags(i) for i in instructions[start : branch.pc]):
                return True
    return False


def _reads_flags(instruction: Instruction) -> bool:
    if instruction.root not in ("ld", "atom"):
        return False
    shared = any(m.startswith("shared") for m in instruction.modifiers)
    strong = _STRONG & set(instruction.modifiers)
    return not shared and (instruction.root == "atom" or bool(strong))
