"""Programs that run an emitted kernel from a framework: the few lines around it, as they stand."""

from explorer.wrappers.program import FRAMEWORKS, Program, program_for

__all__ = ["FRAMEWORKS", "Program", "program_for"]
