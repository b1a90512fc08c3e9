"""A program with a defect, planted in its source."""

from dataclasses import replace


def planted(program, substitutions):
    """The program with each (right, wrong) text replaced; each must occur once."""
    source = program.source
    for right, wrong in substitutions:
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    return replace(program, source=source)
