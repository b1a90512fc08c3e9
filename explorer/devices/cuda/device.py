"""A GPU as a device: it drives the worker process, with deadlines, crashes and restarts."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from explorer.compile.compiler import SOURCE_NAME, CompileFailure, CompilePool, Compiler
from explorer.devices.cuda.limits import tools_sources
from explorer.devices.cuda.messages import (
    Compare,
    Described,
    Enter,
    Failed,
    Open,
    Requests,
)
from explorer.devices.cuda.program import driver_problem
from explorer.devices.cuda.worker import run
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.model.errors import DeviceLost, InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerName
from explorer.system.processes import talking_to

if TYPE_CHECKING:  # the worker need not wait for their imports to be started
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.devices.verdict import Verdict

START_LIMIT_S = 60.0
OPEN_LIMIT_S = 120.0
KERNEL_LIMIT_S = 5.0
"""Seconds in which a kernel must be verified and timed; one that takes longer counts as hanging."""

MAKING_S = 2e-7
"""Seconds by which that limit grows for each element of the matrices that a kernel is verified on.

The first kernel of a problem waits until they are made. On two cores, an element takes 0.3e-7 s,
and one of either matrix of a gradient 1.1e-7 s: 9 s for 78 rows of 524288 columns.
"""

ROUNDS_IN_LIMIT = 5
"""Rounds of a comparison that one such limit is enough for.

The slowest kernels are launched 14 times to be verified and timed (`Session._samples`), and twice a
round.
"""

PEER_TIMED_LIMIT_S = 20.0
"""Seconds that the rounds of one prepared peer may take."""

COPIES_ALLOWED = 5000
"""On large problems the limit is the time of so many copies of the matrix."""


def making_s(job: Job) -> int:
    """Return the whole seconds that the inputs of a kernel's verification may take to be made."""
    problems = [run.case.problem for run in job.small_runs]
    elements = sum(p.rows * p.cols * len(p.operator.matrices) for p in problems)
    return round(MAKING_S * elements)


class CudaDevice(Device):
    """GPU `index`, owned by a worker process. Use as a context manager.

    If several processes have a device on the same GPU, one at a time makes a request, so that none
    disturbs the times of another. Without `takes_turns` this device does not wait for the others,
    which suits verification, but not timing.
    """

    def __init__(
        self,
        index: int = 0,
        kernel_limit_s: float = KERNEL_LIMIT_S,
        *,
        takes_turns: bool = True,
    ) -> None:
        problem = driver_problem()
        if problem is not None:
            raise InvalidInput(f"device cuda:{index} cannot be used: {problem}")
        self.index = index
        self.restarts = 0
        self._takes_turns = takes_turns
        self._kernel_limit_s = kernel_limit_s
        self._limit_s = kernel_limit_s
        self._opened: Open | None = None
        self._entered: list[tuple[PeerName, float]] = []
        self._start()

    def open(self, setting: Setting) -> Facts:
        """Prepare a problem: buffers, a check of the GPU's reference, the limit."""
        self._entered = []
        with CompilePool(Compiler(self.gpu.arch)) as pool:
            compiling = [pool.submit(source) for source in tools_sources(setting.problem)]
            cubins = tuple(one.result().cubin for one in compiling)
        self._opened = Open(setting, cubins)
        facts = self._open_again()
        self._limit_s = max(self._kernel_limit_s, round(facts.limit_us * COPIES_ALLOWED * 1e-6))
        return facts

    def verify(
        self,
        program: "ProgramUnderTest",
        rows: int | None = None,
        then: Sequence["ProgramUnderTest"] = (),
        told: Callable[[int, int], None] | None = None,
    ) -> "Verdict":
        """Verify a program by small problems and the open one, on which it is timed."""
        from explorer.devices.verdict import Verdict

        return Verdict.of_outcome(program, self._outcome(program), self.gpu.name)

    def _outcome(self, program: "ProgramUnderTest") -> Outcome:
        from explorer.devices.job import job_of

        assert self._opened is not None, "a problem is open"
        try:
            kernel = Compiler(self.gpu.arch).compile(program.compiled_source)
        except CompileFailure as failure:
            reason = str(failure).replace(SOURCE_NAME, program.file)
            return Rejected(Stage.COMPILE, f"it does not compile for {self.gpu.arch}: {reason}")
        job = job_of(program, self._opened.setting.problem, self.gpu, "", kernel)
        return job if isinstance(job, Rejected) else self.evaluate(job)

    def begin(self, job: Job) -> None:
        """Have a kernel verified and timed, if the worker can take it now; does not wait."""
        self._requests.begin(job)

    def evaluate(self, job: Job) -> Outcome:
        """Verify and time one kernel. A crash or a hang rejects it and restarts the worker."""
        limit_s = self._limit_s + making_s(job)
        reply = self._requests.ask(job, limit_s)
        if reply is None:
            self._restart()
            return Rejected(Stage.TIMEOUT, f"not verified and timed within {limit_s:g} s")
        if isinstance(reply, Failed):
            self._restart()
            return Rejected(Stage.CRASH, reply.reason)
        outcome: Outcome = reply
        return outcome

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare and verify a peer; after a crash or a hang, those before it enter once more."""
        reply = self._requests.ask(Enter(peer), limit_s)
        if isinstance(reply, Entered):
            self._entered.append((peer, limit_s))
            return reply
        if isinstance(reply, NotEntered) and not reply.context_lost:
            return reply
        self._restart()
        if isinstance(reply, NotEntered):
            return reply
        if isinstance(reply, Failed):
            return NotEntered(peer.name, reply.reason, "crash")
        return NotEntered(peer.name, f"not ready and verified within {limit_s:g} s", "timeout")

    def compare(self, jobs: Sequence[Job], rounds: int, seed: int) -> Compared:
        """Time verified kernels, the limit and the peers that entered, in turn.

        Raises DeviceLost if one of them fails.
        """
        verified_and_timed = 1 + rounds / ROUNDS_IN_LIMIT
        limit = self._limit_s * (len(jobs) * verified_and_timed + 1)
        limit = round(limit + PEER_TIMED_LIMIT_S * len(self._entered), 1)
        reply = self._requests.ask(Compare(tuple(jobs), rounds, seed), limit)
        if isinstance(reply, Compared):
            return reply
        self._restart()
        reason = reply.reason if isinstance(reply, Failed) else f"not done within {limit:g} s"
        raise DeviceLost(f"a verified kernel failed while finalists were compared: {reason}")

    def close(self) -> None:
        """End the worker."""
        self._requests.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _start(self) -> None:
        connection, self._process = talking_to(run, self.index)
        self._requests = Requests(connection, self._process)
        reply = self._requests.receive(START_LIMIT_S)
        if not isinstance(reply, Described):
            reason = reply.reason if isinstance(reply, Failed) else "its worker does not start"
            raise InvalidInput(f"device cuda:{self.index} cannot be used: {reason}")
        self.gpu: GpuSpec = reply.gpu
        if self._takes_turns:
            self._requests.turns_on = reply.uuid

    def _open_again(self) -> Facts:
        reply = self._requests.ask(self._opened, OPEN_LIMIT_S)
        if isinstance(reply, Facts):
            return reply
        if isinstance(reply, Failed) and not reply.context_lost:
            raise InvalidInput(reply.reason)
        reason = reply.reason if isinstance(reply, Failed) else "the worker does not answer"
        raise DeviceLost(f"GPU {self.index} cannot prepare the problem: {reason}")

    def _restart(self) -> None:
        """Start a new worker, and prepare the open problem and its peers there."""
        self.restarts += 1
        self._process.kill()
        self._process.join()
        self._requests.close()
        self._start()
        self._open_again()
        entered, self._entered = self._entered, []
        for peer, limit_s in entered:
            self.enter(peer, limit_s)
