"""A kernel of a person's own, or an edited file, as a peer: timed in turn with ours and others.

It is compiled and launched by the launch plan by which it is verified without a GPU.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.compile.compiler import CompileFailure, Compiler, compile_in_time
from explorer.devices.cuda.program import Bound, Program, bound, current_gpu
from explorer.devices.own_kernel import OwnLaunch, read_file
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.model.errors import InvalidInput
from explorer.model.peer import PeerBuffers, PeerRefuses, Prepare, ReadyPeer
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery


def prepare_of(given: str) -> Prepare:
    """Return the function that prepares the peer that `devices.own_kernel.own_peer` describes."""
    said = json.loads(given)
    path = Path(said.pop("path"))

    def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
        program = program_for(path, OwnLaunch(**said), problem)
        arch = current_gpu().arch
        try:
            kernel = compile_in_time(Compiler(arch), program.compiled_source)
        except CompileFailure as failure:
            raise PeerRefuses(f"it does not compile for {arch}: {failure}") from None
        return OwnPeer(program, Program(kernel.cubin), buffers, stream)

    return prepare


def program_for(path: Path, launch: OwnLaunch, problem: Problem) -> ProgramUnderTest:
    """Return the program of a file for a problem; raises PeerRefuses if it is for another one."""
    try:
        program = read_file(str(path), launch, ProblemQuery.of(problem), reads_dtype=False)
    except InvalidInput as error:
        raise PeerRefuses(str(error)) from None
    its_own = program.problem.resized(problem.rows, problem.cols)
    if its_own != problem:
        raise PeerRefuses(f"{path.name} is for {its_own}, and not for {problem}")
    return program


@dataclass
class OwnPeer:
    """A kernel that is loaded, and the buffers that its launches rotate over."""

    program: ProgramUnderTest
    loaded: Program
    buffers: PeerBuffers
    stream: int

    def __post_init__(self) -> None:
        self.launches = self.program.variant.launches
        self.arguments = [self._bound(index) for index in range(len(self.buffers.outputs))]

    @property
    def version(self) -> str:
        """What it is in place of a library: a file."""
        return self.program.file

    @property
    def note(self) -> str:
        """How it is launched."""
        return self.program.words

    def launch(self, index: int) -> None:
        """Put one launch on the stream, without waiting for it."""
        values = self.arguments[index % len(self.arguments)]
        for launch in self.launches:
            self.loaded.launch(launch, values, self.stream)

    def output(self, index: int, name: str = "output") -> int:
        """Return the address of a result."""
        return int(self.arguments[index % len(self.arguments)][name][1])

    def capture(self, count: int) -> None:
        """Return None: the bench can capture launches, which allocate nothing."""

    def close(self) -> None:
        """Unload the kernel."""
        self.loaded.__exit__()

    def _bound(self, index: int) -> Bound:
        """Return the arguments of the launches of an index."""
        of, addresses = self.buffers, dict[str, Any]()
        arrays = {"input": of.inputs, "output": of.outputs, "grad": of.grads, "ids": of.ids}
        for name, each in {**arrays, **of.others}.items():
            if each:
                addresses[name] = each[index % len(each)]
        return bound(self.program.variant.problem, addresses)
