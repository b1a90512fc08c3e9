"""Where what an atomic returns, which is the order in which threads come, decides more than a path.

It is followed through registers and through memory, but not through comparisons: to be the last one
that comes, and to do then what any other thread would do, is no defect. PTX ISA, "atom".
"""

from explorer.ptx_emulator.program import FLOATS, PACKED, Address, Entry, Instruction, once_an_entry
from explorer.ptx_emulator.registers import registers_of

_SUMS = ("add", "sub", "mul", "fma", "mad", "mma")
_NO_ADDRESS = ("prefetch", "prefetchu", "cvta")


@once_an_entry
def decided_by_arrival(entry: Entry) -> Instruction | None:
    """Return an instruction whose address, or sum of floats, an atomic's result reaches, if any.

    The result of such a kernel may depend on the order of its threads, or which rows they work on.
    """
    tainted: set[str] = set()
    spaces: set[str] = set()
    atomics = [i for i in entry.instructions if i.root == "atom"]
    known = -1
    while atomics and known < len(tainted) + len(spaces):
        known = len(tainted) + len(spaces)
        for instruction in entry.instructions:
            _follow(instruction, tainted, spaces)
    return next((i for i in entry.instructions if atomics and _decides(i, tainted)), None)


def _follow(instruction: Instruction, tainted: set[str], spaces: set[str]) -> None:
    """Add what an instruction gives on: to registers, or to all of the memory that it stores to."""
    root, operands = instruction.root, instruction.operands
    if root in ("setp", "set", "bra") or not operands:
        return
    if root == "st" and tainted & {name for o in operands[1:] for name in registers_of(o)}:
        spaces.add(_space(instruction))
    loads = root == "ld" and _space(instruction) in spaces
    given = {name for o in operands[1:] if root != "ld" for name in registers_of(o)} & tainted
    if root == "atom" or loads or (given and not isinstance(operands[0], Address)):
        tainted.update(registers_of(operands[0]))


def _space(instruction: Instruction) -> str:
    spaces = (m.split("::")[0] for m in instruction.modifiers)
    return next((m for m in spaces if m in ("global", "shared", "local", "param", "const")), "")


def _decides(instruction: Instruction, tainted: set[str]) -> bool:
    """Return whether a tainted register is in an address, or a term of a sum of floats."""
    if instruction.root in _SUMS and {*FLOATS, *PACKED} & set(instruction.modifiers):
        return any(n in tainted for o in instruction.operands[1:] for n in registers_of(o))
    addresses = [o for o in instruction.operands if isinstance(o, Address)]
    return instruction.root not in _NO_ADDRESS and any(
        name in tainted for address in addresses for name in registers_of(address)
    )
