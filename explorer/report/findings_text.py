"""A finding of the emulator, with the line of the source that it is about."""

from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.ptx_emulator import Finding, SourceLine


def finding_lines(finding: Finding, program: ProgramUnderTest) -> list[str]:
    """What is wrong, then where: lines of the `.cu` with their text, of the PTX, the thread."""
    # The other access has a line of its own below.
    message = finding.message.replace(f" at {finding.other}", "")
    lines = [f"{finding.kind}: {message}"]
    lines += _place("at", finding.source, program)
    lines += _place("against", finding.other, program)
    where = []
    if finding.ptx_line:
        where.append(f"PTX line {finding.ptx_line}")
    if finding.block is not None and finding.thread is not None:
        where.append(f"block {_extent(finding.block)}, thread {_extent(finding.thread)}")
    where.append("once" if finding.count == 1 else f"{finding.count} times")
    return [*lines, f"  {' · '.join(where)}"]


def line_text(source: str, number: int) -> str:
    """Line `number`, from 1, of a source; empty where it has no such line."""
    lines = source.splitlines()
    return lines[number - 1].strip() if 1 <= number <= len(lines) else ""


def _place(word: str, place: SourceLine | None, program: ProgramUnderTest) -> list[str]:
    if place is None:
        return []
    name, source = program.file, program.source
    lines = [f"  {word} {name}:{place.line}: {line_text(source, place.line)}"]
    if place.inlined_at:
        text = line_text(source, place.inlined_at)
        lines.append(f"  called in {name}:{place.inlined_at}: {text}")
    return lines


def _extent(place: tuple[int, int, int]) -> str:
    """(5, 0, 0) is 5: launches have one dimension."""
    return str(place[0]) if not any(place[1:]) else str(place)
