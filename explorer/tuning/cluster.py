"""The GPUs of a machine, or of several, by Dask: who they are, and what is asked of them.

Dask's scheduler hands out tasks, moves what they give, drops workers that die or hang, and has what
they had done elsewhere. This module alone imports it. One coordinator, the process of the command,
owns proposals, digests and storage; workers compile, verify and time.

A worker with a GPU has Dask's resource `GPU=1`. Once it was looked at it gets two more resources:
their names tell GPU, templates and compiler, so that a task reaches no worker of another kind.
"""

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any

from explorer.devices.names import FIRST_GPU, gpus_here, takes_code, why_no_gpu
from explorer.evaluate.station import STATION, Described, code_digests
from explorer.model.errors import DeviceLost, ExplorerError, InvalidInput
from explorer.model.query import whole
from explorer.system.processes import interrupts_blocked, usable_cores

CONNECT_LIMIT_S = 10.0
"""Seconds in which a scheduler must answer."""

FIRST_WORKER_LIMIT_S = 600.0
"""Seconds in which a scheduler must have its first worker, which a queue may start late."""

START_LIMIT_S = 60.0
"""Seconds in which a worker of this machine must have started."""

WORKER_TTL_S = 4
"""Seconds without a heartbeat after which Dask drops a worker. It looks every so many seconds, and
allows ten heartbeats, of 0.5 s where there are up to ten workers: a hung one is dropped within 5 to
9 s."""

MOST_TTL_S = 8
"""Of a scheduler that we did not start: more is told."""

ALLOWED_FAILURES = 1
"""Workers that may be lost with a task: it is a crash with the second one."""

HEARING = 8
"""Threads that fetch what tasks give, and look at workers that join. With one of them, the results
of 64 simulated workers came in 14 ms one after the other."""

UNLIMITED = 1e6
"""Amount of a resource that only marks a worker."""


class WorkerLost(DeviceLost):
    """More workers were lost with a task than are allowed."""

    def __init__(self) -> None:
        super().__init__(f"{ALLOWED_FAILURES + 1} workers were lost with it, one after the other")


def _dask() -> Any:
    """Return the engine; raises InvalidInput where it is not installed."""
    try:
        import dask
        import distributed
    except ImportError as error:
        raise InvalidInput(
            f"several GPUs need Dask, and {error.name} is not installed: pip install "
            "'.[cluster]' in the checkout"
        ) from None
    for name in ("distributed", "distributed.client"):  # sentences of ours say it
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # The kernels that a recording compares take 20 MB, of which Dask would warn.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GB"})
    return distributed


# ------------------------------------------------------------------ in a worker, and the scheduler


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker made of a task."""

    worker: str
    """Its address."""
    seconds: float
    value: Any
    error: ExplorerError | None


def _done_here(name: str, *given: Any) -> Reply:
    """Call a method of the worker's station; an argument may be the reply to another task."""
    import distributed

    here = distributed.get_worker()
    arguments = [one.value if isinstance(one, Reply) else one for one in given]
    began, value, error = time.monotonic(), None, None
    try:
        value = getattr(STATION, name)(*arguments)
    except ExplorerError as raised:
        error = raised
    return Reply(here.address, time.monotonic() - began, value, error)


async def _described(device: str, dask_worker: Any) -> Described:
    """Say what a worker has, and of one with a GPU what the device is; heartbeats go on."""
    own = device if dask_worker.state.total_resources.get("GPU", 0) >= 1 else ""
    return await asyncio.to_thread(STATION.described, own, dask_worker.state.nthreads)


async def _marked(names: Iterable[str], dask_worker: Any) -> None:
    """Give a worker the resources by which tasks find it, unless it has them."""
    new = [name for name in names if name not in dask_worker.state.total_resources]
    if new:
        await dask_worker.set_resources(**dict.fromkeys(new, UNLIMITED))


def _patience(dask_scheduler: Any) -> tuple[float | None, int]:
    return dask_scheduler.worker_ttl, dask_scheduler.allowed_failures


# ------------------------------------------------------------------ a cluster


@dataclass(eq=False)
class _Ask:
    """A task that is under way."""

    given: tuple[Any, ...]
    how: dict[str, Any]
    """Keywords of Dask's `submit`."""
    first: tuple[Any, ...]
    """The task before it, whose reply is its last argument; empty for none."""
    answer: Future[Reply] = field(default_factory=Future)
    is_lost: bool = False
    """Whether the last worker was lost with it once."""
    tasks: list[Any] = field(default_factory=list)
    """Dask's futures of it, the last one its own."""


@dataclass(eq=False)
class _Worker:
    """A worker with a GPU, and what it has done."""

    described: Described
    since: float = field(default_factory=time.monotonic)
    done: int = 0
    busy_s: float = 0.0


class Cluster:
    """The workers of a scheduler, of one kind of GPU. Threads may share it."""

    def __init__(self, client: Any, at: str, device: str, notice: Callable[[str], None]) -> None:
        """`notice` is told who joins and is not used, what differs, and who is lost."""
        self.at, self._client, self.notice = at, client, notice
        self.device = device if takes_code(device) or ":" in device else FIRST_GPU
        self._kind = "" if device in ("auto", self.device) else device
        """A part of the GPU's name that was asked for, and the whole name once it is known."""
        self.nvrtc = ""
        self.gone: DeviceLost | None = None
        """Why nothing more can be asked."""
        self._lock = RLock()
        self._asks: set[_Ask] = set()
        self._workers: dict[str, _Worker] = {}
        self._hearing = ThreadPoolExecutor(HEARING, thread_name_prefix="hearing")

    @property
    def gpus(self) -> dict[str, Described]:
        """The workers with a GPU that are used, by their addresses."""
        with self._lock:
            return {at: one.described for at, one in self._workers.items()}

    @property
    def threads(self) -> int:
        """Threads of all workers."""
        return max(1, sum(map(int, self._client.nthreads().values())))

    @property
    def lines(self) -> tuple[str, ...]:
        """A line on each worker with a GPU: how many tasks it has done, and how busy it was."""
        with self._lock:
            workers, now = [*self._workers.items()], time.monotonic()
        return tuple(
            f"{at} · {one.described.gpu_name or 'replays'} · {one.done} done · "
            f"{min(100.0, 100 * one.busy_s / max(1e-9, now - one.since)):.0f} % busy"
            for at, one in workers
        )

    def start(self) -> None:
        """Take the workers that are there, and from then on those that join.

        Raises InvalidInput where none with a GPU can be used, or their GPUs are of several kinds.
        """
        self._client.subscribe_topic("all", self._on_event)
        told = self._take()
        if not self.gpus:
            raise InvalidInput(
                f"the cluster at {self.at} has no worker with a GPU that can be used"
                f"{''.join(f'; {one}' for one in told)}; start one: dask worker {self.at} "
                "--no-nanny --resources GPU=1"
            )
        for sentence in told:
            self.notice(sentence)

    def close(self) -> None:
        """Leave the cluster; what is under way is dropped."""
        self.end("")
        self._hearing.shutdown(wait=False, cancel_futures=True)
        with suppress(Exception):  # it may be gone
            self._client.unsubscribe_topic("all")
            self._client.close(timeout=2)

    # -------------------------------------------------------------- who joins and leaves

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Hear from the scheduler of a worker, without keeping it waiting."""
        told = {"add-worker": self._joined, "remove-worker": self._left}
        if happens := told.get(event[1].get("action", "")):
            self._heard(happens, event[1]["worker"])

    def _heard(self, happens: Callable[..., object], *of: Any) -> None:
        with suppress(RuntimeError):  # it is being closed
            self._hearing.submit(happens, *of)

    def _joined(self, worker: str) -> None:
        if worker in self.gpus:
            return
        with suppress(ExplorerError):
            for sentence in self._take([worker]):
                self.notice(sentence)
        if worker in self.gpus:
            self.notice(f"worker {worker} has joined: {_counted(len(self.gpus), 'GPU')}")

    def looked_at(self, workers: list[str] | None = None) -> dict[str, Described]:
        """Return what workers have, and why some cannot be used; None stands for all."""
        told = self._client.run(_described, self.device, workers=workers, on_error="return")
        return {worker: _judged(one) for worker, one in told.items()}

    def _take(self, workers: list[str] | None = None) -> list[str]:
        """Use the workers that fit; return sentences on the others, and on what differs."""
        found = self.looked_at(workers)
        fit = {worker: one for worker, one in found.items() if not one.fault}
        with self._lock:
            if not self._workers:
                self._choose_kind([one for one in fit.values() if one.offers])
        told = [f"worker {at} is not used: {one.fault}" for at, one in found.items() if one.fault]
        for worker, one in fit.items():
            if one.offers and one.gpu_name != self._kind:
                told.append(
                    f"worker {worker} is not used: its GPU is {one.gpu_name}, and this run is of "
                    f"{self._kind}"
                )
            else:
                told += self._use(worker, one)
        return told

    def _choose_kind(self, offered: list[Described]) -> None:
        """Take the kind of GPU that there is; raises InvalidInput where it is to be chosen."""
        kinds = Counter(one.gpu_name for one in offered if self._kind in one.gpu_name)
        if len(kinds) > 1 or (offered and not kinds):
            listed = Counter(one.gpu_name for one in offered)
            there = ", ".join(f"{number} {name}" for name, number in sorted(listed.items()))
            raise InvalidInput(
                f"device is '{self._kind or 'auto'}', and the cluster at {self.at} has {there}: "
                f"name one kind of GPU, such as --device '{max(listed)}'"
            )
        if offered:
            self._kind = max(kinds)
            self.nvrtc = Counter(one.nvrtc for one in offered).most_common(1)[0][0]

    def _use(self, worker: str, one: Described) -> list[str]:
        """Give a worker the resources by which it is found; return what differs from others."""
        compiles = one.nvrtc == self.nvrtc
        names = [self._mark] * one.offers + [self._compiles] * compiles
        self._client.run(_marked, names, workers=[worker], on_error="return")
        first = next(iter(self.gpus.values()), one)
        told = [] if compiles or not takes_code(self.device) else ["it compiles nothing"]
        told += [
            f"its {name} is {here or 'missing'}, and others have {there or 'none'}"
            for name in ("nvrtc", "driver", "package", "python")
            if (here := getattr(one, name)) != (there := getattr(first, name))
            and (one.offers or name != "driver")
        ]
        if one.offers:
            with self._lock:
                waiting = () if self.gpus else tuple(self._asks)
                self._workers[worker] = _Worker(one)
                for ask in waiting:  # Dask does not look at them again
                    self._submit_again(ask)
        return [f"worker {worker}: {', '.join(told)}"] if told else []

    def _left(self, worker: str) -> None:
        """Say that a worker is lost; what it had Dask has done elsewhere."""
        with self._lock:
            one = self._workers.pop(worker, None)
        if one is None or self.gone is not None:
            return
        left = _counted(len(self.gpus), "GPU")
        goes_on = f"{left} left" if self.gpus else "the run waits for one that joins"
        self.notice(
            f"worker {worker} on {one.described.host} is lost, its work is done again: {goes_on}"
        )

    # -------------------------------------------------------------- what is asked of them

    @property
    def _mark(self) -> str:
        return f"softmax-explorer, {code_digests()}, {self._kind or self.device}"

    @property
    def _compiles(self) -> str:
        return f"softmax-explorer, NVRTC {self.nvrtc}"

    def ask(
        self, name: str, *given: Any, gpu: float = 0.0, first: tuple[Any, ...] = ()
    ) -> Future[Reply]:
        """Have a method of `Station` called by a worker, which takes a share of a GPU, or none.

        `first` is another method with its arguments, which needs no GPU, and whose result is the
        last argument. The future raises what the method raises of ours, WorkerLost where too many
        workers were lost with the task, and DeviceLost where the cluster is gone.
        """
        needs = {"GPU": gpu, self._mark: 1} if gpu else {self._compiles: 1}
        how = {"resources": needs, "priority": int(gpu > 0), "pure": False}
        ask = _Ask((name, *given), how, first)
        with self._lock:
            if self.gone is not None:
                ask.answer.set_exception(self.gone)
            else:
                self._submit(ask)
        return ask.answer

    def _submit(self, ask: _Ask) -> None:
        before = []
        if ask.first:
            compiles = {"resources": {self._compiles: 1}, "pure": False}
            before = [self._client.submit(_done_here, *ask.first, **compiles)]
        task = self._client.submit(_done_here, *ask.given, *before, **ask.how)
        ask.tasks = [*before, task]
        self._asks.add(ask)
        task.add_done_callback(lambda done: self._heard(self._deliver, ask, done))

    def _submit_again(self, ask: _Ask) -> None:
        """Ask once more what the scheduler looked at before the only worker was marked."""
        self._asks.remove(ask)
        self._client.cancel(ask.tasks)
        has_gpu = "GPU" in ask.how["resources"]
        if has_gpu and ask.is_lost:
            ask.answer.set_exception(WorkerLost())
        else:
            ask.is_lost = has_gpu
            self._submit(ask)

    def _deliver(self, ask: _Ask, task: Any) -> None:
        """Hand on what became of a task."""
        with self._lock:
            if ask not in self._asks or task is not ask.tasks[-1]:
                return
        reply: Reply | None = None
        error: Exception | None
        try:
            reply = task.result()
            error = reply.error if reply else None
        except _dask().KilledWorker:
            error = WorkerLost()
        except CancelledError:
            return self.end(f"the cluster at {self.at} has vanished; once it is back,")
        except Exception as raised:  # a bug of ours, in the worker
            error = raised
        with self._lock:
            if ask not in self._asks:
                return
            self._asks.remove(ask)
            share = ask.how["resources"].get("GPU", 0.0)
            if reply is not None and share and (one := self._workers.get(reply.worker)):
                one.done, one.busy_s = one.done + 1, one.busy_s + share * reply.seconds
        if error is not None:
            ask.answer.set_exception(error)
        elif reply is not None:
            ask.answer.set_result(reply)

    def end(self, why: str) -> None:
        """Fail all that is under way, and what will be asked."""
        with self._lock:
            kept = "run the same command again: what was finished is kept"
            self.gone = self.gone or DeviceLost(f"{why} {kept}")
            asks, self._asks = self._asks, set()
        for ask in asks:
            ask.answer.set_exception(self.gone)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _judged(told: Described | Exception) -> Described:
    """Return what a worker has, with the reason where it cannot be used."""
    if isinstance(told, Exception):
        why = f"it cannot say what it has ({told})"
        return Described(fault=f"{why}: install softmax-explorer there")
    if told.fault or told.code == code_digests():
        return told
    why = f"it has {told.code} of softmax-explorer {told.package}, and this command "
    return replace(told, fault=f"{why}{code_digests()}: install the same version there")


# ------------------------------------------------------------------ opening one


@contextmanager
def open_cluster(
    device: str, gpus: str | int | None, at: str | None, notice: Callable[[str], None]
) -> Iterator[Cluster]:
    """Start workers on `gpus` GPUs of this machine, or on `all`; or join the scheduler `at`.

    `at` is an address such as tcp://HOST:8786, or the path of a scheduler file. `device` is what
    each worker opens: `auto`, its first GPU; `cuda:N`; `recorded:NAME`; or a part of the name of
    the GPUs that are used. Raises InvalidInput where that cannot be, or Dask is not installed.
    """
    if gpus is not None and at is not None:
        raise InvalidInput(
            f"gpus is {gpus} and cluster is {at}: the first starts workers here, the second has "
            "its own; give one of the two"
        )
    engine = _dask()
    with ExitStack() as until_closed:
        if at is not None:
            client, number, limit_s = _connected(engine, at), 1, FIRST_WORKER_LIMIT_S
            _tell_patience(client, at, notice)
        else:
            number = _number_of_gpus(gpus, device)
            started = until_closed.enter_context(_workers_here(engine, number))
            client, limit_s = engine.Client(started, set_as_default=False), START_LIMIT_S
        if at is not None and not client.nthreads():
            notice(f"waiting for the first worker of {at}")
        with suppress(TimeoutError):  # what is there by then is used
            client.wait_for_workers(number, timeout=limit_s)
        where = at or client.scheduler.address
        cluster = until_closed.enter_context(closing(Cluster(client, where, device, notice)))
        if dashboard := client.dashboard_link:
            notice(f"dashboard: {dashboard}")
        cluster.start()
        yield cluster


def look_at(at: str) -> dict[str, Described]:
    """Return what each worker of a scheduler has, by its address. Raises as `open_cluster`."""
    with closing(Cluster(_connected(_dask(), at), at, "auto", lambda _: None)) as cluster:
        return cluster.looked_at()


def _connected(engine: Any, at: str) -> Any:
    """Return a client of the scheduler at an address, or of a file. Raises InvalidInput."""
    place = "address" if "://" in at else "scheduler_file"
    if place == "scheduler_file" and not _is_of_a_scheduler(Path(at)):
        raise InvalidInput(
            f"cluster is '{at}'{'' if Path(at).exists() else ', which does not exist'}; give the "
            "address of a scheduler, such as tcp://HOST:8786, or the file that dask scheduler "
            "--scheduler-file wrote"
        )
    try:
        return engine.Client(**{place: at}, timeout=CONNECT_LIMIT_S, set_as_default=False)
    except Exception as error:  # what addresses, files and TLS make Dask raise is of many kinds
        why = str(error).partition("\n")[0] or type(error).__name__
        raise InvalidInput(
            f"no Dask scheduler answers at {at}: {why}; start one: dask scheduler"
        ) from None


def _is_of_a_scheduler(path: Path) -> bool:
    """Return whether a file has the address of a scheduler."""
    try:
        return "address" in json.loads(path.read_text())
    except (OSError, ValueError, TypeError):
        return False


def _tell_patience(client: Any, at: str, notice: Callable[[str], None]) -> None:
    """Say where a scheduler waits longer for a hung worker than a run should."""
    try:
        ttl_s, failures = client.run_on_scheduler(_patience)
    except Exception as error:
        raise InvalidInput(
            f"the scheduler at {at} cannot import softmax-explorer ({error}); install there what "
            "is installed here"
        ) from None
    if not ttl_s or ttl_s > MOST_TTL_S or failures != ALLOWED_FAILURES:
        name = "DASK_DISTRIBUTED__SCHEDULER__"
        notice(
            f"the scheduler at {at} drops a hung worker after {ttl_s or 'no'} s, and allows "
            f"{failures} lost workers a task: start it with {name}WORKER_TTL={WORKER_TTL_S}s and "
            f"{name}ALLOWED_FAILURES={ALLOWED_FAILURES}"
        )


def _number_of_gpus(gpus: str | int | None, device: str) -> int:
    """Return how many workers are started; raises InvalidInput where there are fewer GPUs."""
    number = int(str(gpus)) if str(gpus).isdecimal() else gpus
    wanted = 0 if gpus == "all" else whole("gpus", number, 1)
    is_replay = device.startswith("recorded:")
    if is_replay and wanted:
        return wanted
    if not is_replay and device not in ("auto", FIRST_GPU):
        raise InvalidInput(f"device is {device} and gpus is {gpus}; leave one of the two out")
    if why := why_no_gpu("auto"):
        raise InvalidInput(f"gpus is {gpus}, and there is no GPU here: {why}")
    if wanted > (there := gpus_here()):
        raise InvalidInput(
            f"gpus is {wanted}, and this machine has {_counted(there, 'GPU')}; give {there} or all"
        )
    return wanted or there


@contextmanager
def _workers_here(engine: Any, number: int) -> Iterator[Any]:
    """Start a scheduler in this process, and a worker process a GPU; end them afterwards."""
    from distributed.deploy.subprocess import SubprocessWorker

    usual = {
        "nthreads": max(2, usable_cores() // number),
        "resources": {"GPU": 1},
        "memory_limit": 0,
        "dashboard": False,
        "silence_logs": logging.CRITICAL,
    }
    scheduler = {
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "worker_ttl": f"{WORKER_TTL_S}s",
        "allowed_failures": ALLOWED_FAILURES,
    }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
    # Processes of their own import nothing of the program that asks, which need not be guarded.
    workers = {
        name: {
            "cls": SubprocessWorker,
            "options": {"worker_kwargs": {**usual, "env": {"CUDA_VISIBLE_DEVICES": name}}},
        }
        for name in visible.split(",")[:number]
    }
    spec = {"cls": engine.Scheduler, "options": scheduler}
    with _environment(_OF_WORKERS), interrupts_blocked():  # Ctrl-C is the coordinator's
        started = engine.SpecCluster(workers, spec, silence_logs=logging.CRITICAL + 1)
    with started:
        yield started


_OF_WORKERS = {
    "DASK_DISTRIBUTED__WORKER__DAEMON": "False",  # a GPU's process is its child
    "DASK_LOGGING__DISTRIBUTED": "critical",
}


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Add variables to those that processes inherit which are started meanwhile."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
