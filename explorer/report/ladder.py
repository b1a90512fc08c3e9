"""`explorer journey --ladder`: each idea with its file, what it does, its time, and why."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rich.console import Console

from explorer.codegen.units import emit
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.profile import Profile, profile
from explorer.model.config import Config, brief_words, change_words
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Contender
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery, command_of
from explorer.presets.ladder import Rung, ladder_of, usual_problem
from explorer.presets.published import find_preset, unpublished
from explorer.report.journey import read_journey
from explorer.report.profile import moved_bytes, occupancy_sentence
from explorer.report.table import notes
from explorer.report.text import environment_line, microseconds, percent, times_as_fast
from explorer.system.user_files import shipped_results
from explorer.tuning.journey import Journey


@dataclass(frozen=True)
class Step:
    """A rung on a problem: its config, and its time in a kept journey where it was in one."""

    number: int
    rung: Rung
    config: Config | None
    problem: Problem
    gpu: GpuSpec
    fault: str
    """Why there is no config."""
    timed: Contender | None
    base: "Step | None"
    """The step that it changes."""

    @cached_property
    def profile(self) -> Profile | str:
        """What it does, or why that is not counted."""
        if self.config is None:
            return self.fault
        try:
            return profile(ProgramUnderTest.of_config(self.problem, self.config), self.gpu)
        except InvalidInput as error:
            return str(error)

    @property
    def is_older(self) -> bool:
        """Whether the kernel that was timed was emitted by other templates."""
        if self.timed is None or self.config is None:
            return False
        return self.timed.digest != emit(self.problem, self.config).digest

    @property
    def command(self) -> str:
        """The command that writes its file."""
        return command_of("emit", self.rung.preset, self.problem)

    def called(self, other: "Step") -> str:
        """Return what another step is called beside it."""
        told = f"step {other.number}, {other.rung.preset}"
        return told if other.number < self.number - 1 else "the step before"


def kept_journey(problem: Problem) -> Journey | None:
    """Return the journey over a problem that comes with the package; None without one."""
    of = (read_journey(p) for name, p in shipped_results().items() if name.startswith("journey-"))
    return next((journey for journey in of if journey.problem == problem), None)


def ladder_steps(problem: Problem, gpu: GpuSpec, journey: Journey | None) -> list[Step]:
    """Return the rungs on a problem, the first idea first.

    Raises InvalidInput where no kernel of the ladder is for the problem.
    """
    found: list[Step] = []
    for number, rung in enumerate(ladder_of(problem), 1):
        preset = find_preset(rung.preset)
        fault = preset.fault(problem, gpu) or ""
        config = None if fault else preset.config(problem, gpu)
        timed = journey.find(rung.preset) if journey else None
        bases = (s for s in reversed(found) if s.config and rung.after in ("", s.rung.preset))
        found.append(Step(number, rung, config, problem, gpu, fault, timed, next(bases, None)))
    if all(step.config is None for step in found):
        why = unpublished(problem.op) or f"{found[0].rung.preset}, the first one: {found[0].fault}"
        raise InvalidInput(f"no kernel of the ladder is for {problem}; {why}")
    return found


def ladder_data(steps: list[Step], journey: Journey | None) -> dict[str, Any]:
    """Return each rung as plain data; a time that was not measured is null."""
    return {
        "problem": steps[0].problem.as_dict(),
        "circumstances": journey.environment.as_dict() if journey else None,
        "rungs": [
            {
                "preset": step.rung.preset,
                "idea": step.rung.idea,
                "changes": step.base.rung.preset if step.base else None,
                "why": step.rung.why,
                "config": step.config.as_dict() if step.config else None,
                "fault": step.fault or None,
                "time_us": step.timed.time_us if step.timed else None,
                "emit": step.command,
            }
            for step in steps
        ],
    }


def print_ladder(steps: list[Step], journey: Journey | None, console: Console) -> None:
    """Print the rungs as they are profiled, then where the times are from."""
    problem, there = steps[0].problem, sum(step.config is not None for step in steps)
    fitting = f", {there} of them for this problem" * (there < len(steps))
    console.print(f"{problem}: a ladder of {len(steps)} ideas{fitting}", style="bold")
    usual = ProblemQuery(**usual_problem(str(problem.op) if problem.attends else None)).problem()
    if problem != usual:
        told = f"Each `why` is of {usual} on an H200: elsewhere, counts and times may differ."
        console.print(told)
    for step in steps:
        console.print()
        console.print(f"{step.number}. {step.rung.preset}: {step.rung.idea}", style="bold")
        console.print(notes([*_lines(step, journey)]))
    console.print()
    if journey is None:
        console.print(f"No journey over {steps[0].problem} was kept, so no times are known.")
    else:
        console.print(f"The times were kept: {environment_line(journey.environment)}")
        if any(step.is_older for step in steps):
            console.print("The templates have changed since: files and profiles are of today's.")


def _lines(step: Step, journey: Journey | None) -> Iterator[tuple[str, str]]:
    if step.config is None:
        yield "left out", step.fault
        return
    if journey is not None:
        yield "time", _time(step, journey)
    counted = step.profile
    yield "profile", counted if isinstance(counted, str) else _counts(counted)
    if step.base is None or step.base.config is None:
        yield "config", brief_words(step.config)
    else:
        base, where = step.base.config, step.called(step.base)
        idea = replace(step.config, **{name: getattr(base, name) for name in step.rung.besides})
        changed = change_words(base, idea) or "nothing at these columns"
        yield "changed", changed + f", from {where}" * (where != "the step before")
        if idea != step.config:
            yield "besides", change_words(idea, step.config)
    yield "why", step.rung.why
    yield "file", step.command


def _time(step: Step, journey: Journey) -> str:
    """Return its time, and how it compares with that of the last timed step on the way to it."""
    if step.timed is None:
        return "not timed in the kept journey"
    share = percent(journey.environment.limit_us / step.timed.time_us, 0)
    time, slower = f"{microseconds(step.timed.time_us)} µs", step.base
    while slower and not slower.timed:
        slower = slower.base
    if slower and slower.timed:
        ratio = times_as_fast(journey.speedup(slower.timed, step.timed).median)
        time += f", {ratio} × as fast as {step.called(slower)}"
        time += ", the last one that was timed" * (slower is not step.base)
    return f"{time}; {share} of {journey.problem.limit}'s speed"


def _counts(of: Profile) -> str:
    """Return the counts that tell one idea from another."""
    moved = moved_bytes(of) / of.elements
    least = of.emulated.bytes / of.elements
    instructions = 32 * of.counters.warp_instructions / of.elements
    held = occupancy_sentence(of.occupancy, of).partition(";")[0]
    warps = round(of.occupancy.waves * of.occupancy.warps_per_sm)
    if warps < of.occupancy.warps_per_sm:
        held += f"; the launch has enough blocks for {warps} of these warps"
    return (
        f"{moved:.0f} bytes an element in sectors ({percent(least / moved, 0)} of them needed), "
        f"{instructions:.0f} instructions an element, idle lanes counted; "
        f"{of.resources.registers} registers a thread: {held}"
    )
