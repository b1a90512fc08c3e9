"""The GPUs of a machine, or of several, by Dask: what is asked of them, and who they are.

Dask's scheduler hands out tasks, moves their results, drops workers that die or hang, and runs what
they had elsewhere. This module alone imports it. One coordinator, the process of the command, owns
the proposals, the known digests and the storage; workers compile, verify and time.

A GPU worker has Dask's resource `GPU=1`. It is given work once it was looked at: it then has two
more resources, whose names say by which templates kernels are emitted, for which GPU, and which
NVRTC compiles, so that a task reaches none of another kind. Their amount limits nothing.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Event, RLock, Thread, Timer
from typing import Any

from explorer import __version__
from explorer.codegen.units import template_digest
from explorer.devices.names import FIRST_GPU, gpus_here, takes_code, why_no_gpu
from explorer.evaluate.space_version import space_digest
from explorer.evaluate.station import STATION, Described
from explorer.model.errors import DeviceLost, ExplorerError, InvalidInput
from explorer.system.processes import usable_cores

CONNECT_LIMIT_S = 10.0
"""Seconds in which a scheduler must answer, and have a worker with a GPU."""

START_LIMIT_S = 60.0
"""Seconds in which the workers of this machine must have started: each imports what it needs."""

LOST_LIMIT_S = 60.0
"""Seconds that a run waits for a worker with a GPU once it has none."""

WORKER_TTL_S = 4
"""Seconds without a sign of life after which Dask drops a worker. It looks every so many seconds,
and allows ten heartbeats: with up to ten workers a hung one is dropped within 5 to 9 s."""

MOST_TTL_S = 8
"""Of another scheduler: more is told."""

ALLOWED_FAILURES = 1
"""Workers that a task may lose: with the second one it is a crash."""

SHARE = 0.5
"""Of a GPU, of a task that evaluates one kernel. The second waits in the worker for its turn, so
that the GPU is given it at once."""

UNLIMITED = 1e6

MOST_COMPILING = 64
"""Threads of the coordinator that wait for compiled kernels at most."""

SOON, LATER = 10, 0
"""Priorities: what a GPU can begin at once goes before what compiles."""


class WorkerLost(DeviceLost):
    """A task whose workers were lost, as often as is allowed."""


def dask() -> Any:
    """Return the engine; raises InvalidInput where it is not installed."""
    try:
        import distributed
    except ImportError as error:
        raise InvalidInput(
            f"several GPUs need Dask, and {error.name} is not installed: pip install "
            "'softmax-explorer[cluster]'"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # we say it in a sentence
    return distributed


# ------------------------------------------------------------------ in a worker


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker made of a task."""

    worker: str
    """Its address."""
    seconds: float
    value: Any
    error: ExplorerError | None = None


def _done_here(name: str, *given: Any) -> Reply:
    """Call a method of the worker's station; an argument may be another task's reply."""
    import distributed

    arguments = [one.value if isinstance(one, Reply) else one for one in given]
    began, value, error = time.monotonic(), None, None
    try:
        value = getattr(STATION, name)(*arguments)
    except ExplorerError as raised:
        error = raised
    return Reply(distributed.get_worker().address, time.monotonic() - began, value, error)


async def _described(device: str, dask_worker: Any) -> Described:
    """Say what a worker has; its heartbeats go on meanwhile."""
    return await asyncio.to_thread(STATION.described, device, dask_worker.state.nthreads)


async def _marked(names: Sequence[str], dask_worker: Any) -> None:
    """Give a worker the resources by which tasks find it, unless it has them."""
    new = [name for name in names if name not in dask_worker.state.total_resources]
    if new:
        await dask_worker.set_resources(**dict.fromkeys(new, UNLIMITED))


def _patience(dask_scheduler: Any) -> tuple[float | None, int]:
    """Return after how many seconds a scheduler drops a worker, and how many a task may lose."""
    return dask_scheduler.worker_ttl, dask_scheduler.allowed_failures


# ------------------------------------------------------------------ what is asked


@dataclass(eq=False)
class _Ask:
    """A task that is under way, and what is told of it."""

    name: str
    """Of a method of `Station`."""
    given: tuple[Any, ...]
    gpu: float
    """Share of a GPU that it takes; 0 for none."""
    worker: str | None
    """The only worker that may do it."""
    counts: str
    """What it is one of, such as a kernel, for the worker's line; empty for neither."""
    first: tuple[str, Sequence[Any]] | None = None
    """A task without a GPU whose reply is the last argument."""
    answer: Future[Reply] = field(default_factory=Future)
    lost: int = 0
    """Workers that had nobody beside them when they were lost with it."""
    task: Any = None
    before: Any = None


@dataclass
class _Done:
    """What became of a worker, for its line."""

    described: Described
    counts: Counter[str] = field(default_factory=Counter)
    busy_s: float = 0.0
    since: float = field(default_factory=time.monotonic)
    is_lost: bool = False


class Cluster:
    """A scheduler's workers, of one kind of GPU. Close it at the end.

    Threads may share it. `notice` is told who joins, who is left out, and who is lost.
    """

    def __init__(self, client: Any, at: str, device: str, notice: Callable[[str], None]) -> None:
        self.at, self._client, self.notice = at, client, notice
        self.device = device if not device or takes_code(device) or ":" in device else FIRST_GPU
        self._kind = "" if device in ("", self.device) else device
        """A part of the GPU's name that was asked for; once there is one, all of it."""
        self.nvrtc = ""
        self._lock = RLock()
        self._asks: dict[str, _Ask] = {}
        self._workers: dict[str, _Done] = {}
        self._threads: dict[str, int] = {}
        """Of the workers that compile."""
        self.gone: DeviceLost | None = None
        self._timer: Timer | None = None
        self._looking = ThreadPoolExecutor(4, thread_name_prefix="joining")
        self._done = dask().as_completed(
            loop=client.loop, with_results=True, raise_errors=False
        )
        self._new = Event()
        self._is_closed = False

    # -------------------------------------------------------------- who is there

    @property
    def gpus(self) -> dict[str, Described]:
        """The workers with a GPU that are used, by their addresses."""
        with self._lock:
            return {at: one.described for at, one in self._workers.items() if not one.is_lost}

    @property
    def threads(self) -> int:
        """How many kernels may compile at the same time."""
        return max(1, min(MOST_COMPILING, sum(self._threads.values())))

    def start(self, limit_s: float) -> None:
        """Wait for a worker with a GPU, and from then on take those that join.

        Raises InvalidInput where none can be used in time, or there are GPUs of several kinds.
        """
        self._client.subscribe_topic("all", self._on_event)
        deadline = time.monotonic() + limit_s
        while True:
            info = self._client.scheduler_info(n_workers=-1)["workers"]
            if any(_offers(one) for one in info.values()) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        refused = self._take([*info])
        if not self.gpus:
            told = f": {'; '.join(refused)}" if refused else ""
            raise InvalidInput(
                f"the cluster at {self.at} has {_counted(len(info), 'worker')}, and none with a "
                f"GPU that can be used{told}; start one by: dask worker {self.at} --no-nanny "
                "--resources GPU=1"
            )
        for sentence in refused:
            self.notice(sentence)
        Thread(target=self._collect, name="replies", daemon=True).start()

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Hear from the scheduler that a worker has come or gone; do not keep it waiting."""
        heard = {"add-worker": self._joined, "remove-worker": self._left}
        told = heard.get(event[1].get("action", ""))
        with suppress(RuntimeError):  # it is being closed
            if told is not None:
                self._looking.submit(told, event[1]["worker"])

    def _joined(self, worker: str) -> None:
        for sentence in self._take([worker]):
            self.notice(sentence)

    def described(self, workers: Sequence[str]) -> dict[str, tuple[bool, Described | Exception]]:
        """Ask workers what they have; say of each whether it offers a GPU, and what it has."""
        info = self._client.scheduler_info(n_workers=-1)["workers"]
        found: dict[str, tuple[bool, Described | Exception]] = {}
        for offers, device in ((True, self.device), (False, "")):
            some = [one for one in workers if one in info and _offers(info[one]) is offers]
            if some:
                told = self._client.run(_described, device, workers=some, on_error="return")
                found |= {worker: (offers, one) for worker, one in told.items()}
        self._threads |= {one: info[one]["nthreads"] for one in found}
        return found

    def _take(self, workers: Sequence[str]) -> list[str]:
        """Use the workers that fit; return sentences on the others, and on what differs."""
        with self._lock:
            workers = [one for one in workers if one not in self._workers]
        found = self.described(workers)
        sentences: list[str] = []
        fit: dict[str, tuple[bool, Described]] = {}
        for worker, (offers, one) in found.items():
            if isinstance(one, Exception) or (fault := fault_of(one)):
                why = f"it cannot say what it has ({one})" if isinstance(one, Exception) else fault
                sentences.append(f"worker {worker} is not used: {why}")
            else:
                fit[worker] = offers, one
        self._choose_kind([one for offers, one in fit.values() if offers])
        for worker, (offers, one) in fit.items():
            sentences += self._use(worker, one, offers)
        return sentences

    def _choose_kind(self, offered: Sequence[Described]) -> None:
        """Take the kind of GPU that there is; raises InvalidInput where it is to be chosen."""
        with self._lock:
            if self._workers or not offered:
                return
            kinds = Counter(one.gpu_name for one in offered if self._kind in one.gpu_name)
            if len(kinds) > 1:
                listed = ", ".join(f"{number} {name}" for name, number in sorted(kinds.items()))
                raise InvalidInput(
                    f"the cluster at {self.at} has GPUs of several kinds, {listed}: times of "
                    f"different kinds are of different studies; name one, such as --device "
                    f"'{max(kinds)}'"
                )
            if not kinds:
                there = ", ".join(sorted({one.gpu_name for one in offered}))
                raise InvalidInput(
                    f"device is '{self._kind}', and the cluster at {self.at} has {there}; name "
                    "one of these, or auto"
                )
            self._kind = max(kinds)
            self.nvrtc = Counter(one.nvrtc for one in offered).most_common(1)[0][0]

    def _use(self, worker: str, one: Described, offers: bool) -> list[str]:
        """Give a worker the resources by which it is found; return what is to be told of it."""
        if offers and one.gpu_name != self._kind:
            return [
                f"worker {worker} is not used: its GPU is {one.gpu_name}, and this run is of "
                f"{self._kind}, since times of different kinds are of different studies"
            ]
        sentences, names = [], [self._gpu_mark] if offers else []
        if one.nvrtc and one.nvrtc == self.nvrtc:
            names.append(self._compile_mark)
        elif takes_code(self.device):
            self._threads.pop(worker, None)
            sentences.append(
                f"worker {worker} compiles nothing: its NVRTC is {one.nvrtc or 'missing'}, and "
                f"this run compiles by {self.nvrtc}"
            )
        known = next(iter(self.gpus.values()), one)
        for what in ("driver", "version", "python"):
            if (here := getattr(one, what)) != (there := getattr(known, what)) and offers:
                sentences.append(f"worker {worker} has {what} {here}, and others have {there}")
        self._client.run(_marked, names, workers=[worker], on_error="return")
        if offers:
            with self._lock:
                was_alone = not self.gpus
                self._workers[worker] = _Done(one)
                if self._timer is not None:
                    self._timer.cancel()
                for ask in list(self._asks.values()) if was_alone else ():
                    self._submit_again(ask)
        return sentences

    @property
    def _gpu_mark(self) -> str:
        return f"softmax-explorer {template_digest()} on {self._kind or self.device}"

    @property
    def _compile_mark(self) -> str:
        return f"softmax-explorer by NVRTC {self.nvrtc}"

    def _left(self, worker: str) -> None:
        """Have done elsewhere what a worker had that is no more."""
        with self._lock:
            self._threads.pop(worker, None)
            one = self._workers.get(worker)
            if one is None or one.is_lost or self._is_closed:
                return
            one.is_lost = True
            left = len(self.gpus)
            for ask in [ask for ask in self._asks.values() if ask.worker == worker]:
                ask.worker = None
                self._submit_again(ask)
            if not left:
                self._timer = Timer(LOST_LIMIT_S, self._give_up)
                self._timer.daemon = True
                self._timer.start()
        goes_on = f"the run goes on with {left}" if left else f"waiting {LOST_LIMIT_S:g} s for one"
        self.notice(
            f"worker {worker} ({one.described.host}) is lost, and its work is done again; {goes_on}"
        )

    def _give_up(self) -> None:
        self._end(
            f"no worker with a GPU is left at {self.at} since {LOST_LIMIT_S:g} s; what was "
            "finished is kept: start workers, and run the same command again"
        )

    def _end(self, why: str) -> None:
        """Fail all that is under way, and what will be asked."""
        with self._lock:
            self.gone = self.gone or DeviceLost(why)
            asks, self._asks = list(self._asks.values()), {}
        for ask in asks:
            ask.answer.set_exception(self.gone)

    # -------------------------------------------------------------- what they are asked

    def ask(
        self,
        name: str,
        *given: Any,
        gpu: float = 0.0,
        worker: str | None = None,
        counts: str = "",
        first: tuple[str, Sequence[Any]] | None = None,
    ) -> Future[Reply]:
        """Have a method of `Station` called in a worker, which takes a share of a GPU, or none.

        `first` names another one that is called before, without a GPU, whose result is the last
        argument. The future raises what the method raises of ours, WorkerLost where two workers
        were lost with the task, and DeviceLost where the cluster is gone.
        """
        ask = _Ask(name, given, gpu, worker, counts, first)
        with self._lock:
            if self.gone is not None:
                ask.answer.set_exception(self.gone)
                return ask.answer
            if worker is not None and worker not in self.gpus:
                ask.worker = None
            self._submit(ask)
        return ask.answer

    def _submit(self, ask: _Ask) -> None:
        needs = {"GPU": ask.gpu, self._gpu_mark: 1} if ask.gpu else {self._compile_mark: 1}
        given, how = list(ask.given), {"pure": False, "retries": 0}
        if ask.first is not None:
            name, arguments = ask.first
            compiles = {"resources": {self._compile_mark: 1}, "priority": LATER, **how}
            ask.before = self._client.submit(_done_here, name, *arguments, **compiles)
            given.append(ask.before)
        ask.task = self._client.submit(
            _done_here,
            ask.name,
            *given,
            key=f"{ask.name}-{token_hex(8)}",
            resources=needs,
            workers=None if ask.worker is None else [ask.worker],
            priority=SOON if ask.gpu else LATER,
            **how,
        )
        self._asks[ask.task.key] = ask
        self._done.add(ask.task)
        self._new.set()

    def _submit_again(self, ask: _Ask) -> None:
        """Ask once more, where the scheduler would wait for a worker that does not come back."""
        del self._asks[ask.task.key]
        ask.task.cancel()
        ask.lost += bool(ask.gpu)
        if ask.lost > ALLOWED_FAILURES:
            ask.answer.set_exception(_lost_too_often())
        else:
            self._submit(ask)

    def _collect(self) -> None:
        """Hand on what is done, in a thread of its own."""
        while not self._is_closed:
            self._new.wait()
            self._new.clear()
            with suppress(StopIteration):
                for task, result in self._done:
                    self._deliver(task, result)

    def _deliver(self, task: Any, result: Any) -> None:
        with self._lock:
            ask = self._asks.pop(task.key, None)
        if ask is None or self._is_closed:
            return
        if isinstance(result, Reply):
            one = self._workers.get(result.worker)
            if one is not None:
                one.busy_s += result.seconds * (ask.gpu or 0.0)
                one.counts[ask.counts] += 1
            if result.error is None:
                ask.answer.set_result(result)
            else:
                ask.answer.set_exception(result.error)
        elif task.status == "error":
            error = task.exception()
            is_lost = isinstance(error, dask().scheduler.KilledWorker)
            ask.answer.set_exception(_lost_too_often() if is_lost else error)
        else:
            ask.answer.set_exception(DeviceLost(""))
            self._end(
                f"the cluster at {self.at} has vanished; what was finished is kept: once it is "
                "back, run the same command again"
            )

    # -------------------------------------------------------------- what is told

    def lines(self) -> tuple[str, ...]:
        """Return a line a worker: where it is, what it has done, and how busy its GPU was."""
        now = time.monotonic()
        with self._lock:
            return tuple(
                " · ".join(filter(None, [worker, one.described.gpu_name, *_said(one, now)]))
                for worker, one in self._workers.items()
            )

    def close(self) -> None:
        """Leave the cluster; what is under way is dropped."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._new.set()
        self._looking.shutdown(wait=False, cancel_futures=True)
        with suppress(Exception):  # it may be gone
            self._client.close(timeout=2)


def _offers(worker: Mapping[str, Any]) -> bool:
    return bool(worker["resources"].get("GPU", 0) >= 1)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _said(one: _Done, now: float) -> list[str]:
    done = [_counted(number, what) for what, number in one.counts.items() if what]
    if one.is_lost:
        return ["lost", *done]
    return [*done, f"{100 * min(1.0, one.busy_s / max(1e-9, now - one.since)):.0f} % busy"]


def _lost_too_often() -> WorkerLost:
    return WorkerLost(f"{ALLOWED_FAILURES + 1} workers were lost, one after the other, with it")


def fault_of(one: Described) -> str:
    """Return why a worker cannot be used; empty where it can be."""
    if (one.templates, one.space) != (template_digest(), space_digest()):
        return (
            f"it has other templates or another space (softmax-explorer {one.version}, templates "
            f"{one.templates}) than this command (softmax-explorer {__version__}, templates "
            f"{template_digest()}): install the same version there"
        )
    return one.fault


# ------------------------------------------------------------------ opening one


@contextmanager
def open_cluster(
    gpus: str | int | None,
    at: str | None,
    device: str = "auto",
    notice: Callable[[str], None] = lambda _: None,
) -> Iterator[Cluster]:
    """Start workers on `gpus` GPUs of this machine, or on `all`; or join the scheduler `at`.

    `at` is an address such as tcp://HOST:8786, or the path of a scheduler file. `device` is what
    each worker opens: `auto`, its first GPU; `cuda:N`; `recorded:NAME`; or a part of the name of
    the GPUs that are used. Raises InvalidInput where that cannot be, or Dask is not installed.
    """
    if gpus is not None and at is not None:
        raise InvalidInput(
            f"gpus is {gpus} and cluster is {at}: the first starts workers on this machine, the "
            "second has its own; give one of the two"
        )
    engine = dask()
    with ExitStack() as until_closed:
        if at is None:
            number = _number_of_gpus(gpus, device)
            where = until_closed.enter_context(_workers_here(engine, number))
            client = _connected(engine, where.scheduler_address, {"address": where})
            limit_s = START_LIMIT_S
        else:
            client = _connected(engine, at, _place(at))
            limit_s = CONNECT_LIMIT_S
        cluster = Cluster(client, at or client.scheduler.address, device, notice)
        until_closed.callback(cluster.close)
        if at is not None:
            _tell_patience(client, at, notice)
        if dashboard := client.dashboard_link:
            notice(f"dashboard: {dashboard}")
        cluster.start(limit_s)
        yield cluster


def _place(at: str) -> dict[str, Any]:
    """Return how a scheduler is named to Dask. Raises InvalidInput for a file that is not there."""
    if "://" in at:
        return {"address": at}
    if not Path(at).is_file():
        raise InvalidInput(
            f"cluster is '{at}'; give the address of a scheduler, such as tcp://HOST:8786, or the "
            "file that dask scheduler --scheduler-file wrote"
        )
    return {"scheduler_file": at}


def _connected(engine: Any, at: str, place: Mapping[str, Any]) -> Any:
    try:
        return engine.Client(**place, timeout=CONNECT_LIMIT_S, set_as_default=False)
    except Exception as error:  # what TLS, files and addresses make Dask raise is of many kinds
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"no Dask scheduler answers at {at}: {why}; start one by: dask scheduler"
        ) from None


def _tell_patience(client: Any, at: str, notice: Callable[[str], None]) -> None:
    """Say where a scheduler waits longer for a hung worker than a run should."""
    try:
        ttl_s, failures = client.run_on_scheduler(_patience)
    except Exception as error:
        raise InvalidInput(
            f"the scheduler at {at} cannot import this package ({error}): install "
            f"softmax-explorer {__version__} there, as in the workers"
        ) from None
    if not ttl_s or ttl_s > MOST_TTL_S or failures != ALLOWED_FAILURES:
        notice(
            f"the scheduler at {at} drops a hung worker after {ttl_s or 'no'} s, and a task after "
            f"{_counted(failures + 1, 'lost worker')}; for {WORKER_TTL_S} s and "
            f"{ALLOWED_FAILURES + 1} start it with DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="
            f"{WORKER_TTL_S}s and DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES={ALLOWED_FAILURES}"
        )


def _number_of_gpus(gpus: str | int | None, device: str) -> int:
    """Return how many workers are started; raises InvalidInput where there are fewer GPUs."""
    is_replay = device.startswith("recorded:")
    wanted = 0 if gpus == "all" else int(gpus or 0)
    if is_replay and wanted:
        return wanted
    if not is_replay and device not in ("auto", FIRST_GPU):
        raise InvalidInput(
            f"device is {device} and gpus is {gpus}: leave the device out, or take one GPU alone"
        )
    if why := why_no_gpu("auto"):
        raise InvalidInput(f"gpus is {gpus}, and there is no GPU here: {why}")
    there = gpus_here()
    if wanted > there:
        raise InvalidInput(
            f"gpus is {wanted}, and this machine has {_counted(there, 'GPU')}; give {there} or all"
        )
    return wanted or there


@contextmanager
def _workers_here(engine: Any, number: int) -> Iterator[Any]:
    """Start a scheduler in this process, and a worker process a GPU; end them afterwards."""
    import dask as settings

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(index) for index in range(number)]
    usual = {
        "nthreads": max(2, usable_cores() // number),
        "resources": {"GPU": 1},
        "memory_limit": 0,
        "dashboard": False,
        "silence_logs": logging.CRITICAL,
    }
    workers = {
        index: {
            "cls": engine.Nanny,
            "options": {**usual, "env": {"CUDA_VISIBLE_DEVICES": (names + [""] * number)[index]}},
        }
        for index in range(number)
    }
    scheduler = {
        "host": "127.0.0.1",
        "port": 0,
        "dashboard_address": "127.0.0.1:0",
        "worker_ttl": f"{WORKER_TTL_S}s",
        "allowed_failures": ALLOWED_FAILURES,
    }
    with (
        settings.config.set({"distributed.worker.daemon": False}),
        engine.SpecCluster(
            workers=workers,
            scheduler={"cls": engine.Scheduler, "options": scheduler},
            silence_logs=logging.CRITICAL,
        ) as started,
    ):
        yield started
