"""The process that owns the GPU: answers requests until the pipe closes or a kernel faults."""

import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.messages import Bug, Compare, Described, Enter, Failed, Open
from explorer.devices.cuda.program import CudaError, checked, gpu_spec
from explorer.devices.cuda.session import Session
from explorer.devices.device import Job
from explorer.model.errors import ExplorerError
from explorer.model.peer import NotEntered
from explorer.system.processes import leave_interrupts


def run(connection: Connection, index: int) -> None:
    """Serve requests on GPU `index` until the pipe is closed or the context is lost."""
    leave_interrupts()
    os.dup2(2, 1)  # the output of a peer's library is not part of the command's result
    try:
        worker = _Worker(index)
        connection.send(worker.described())
    except CudaError as error:
        connection.send(Failed(f"GPU {index} cannot be used: {error.name}", context_lost=True))
        return
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):  # the process at the other end is gone
            return
        reply = worker.answer(request)
        try:
            connection.send(reply)
        except OSError:  # it is gone now, by Ctrl-C for instance
            return
        if isinstance(reply, Failed | NotEntered) and reply.context_lost:
            return


class _Worker:
    """A context, a stream, and the session that is open."""

    def __init__(self, index: int) -> None:
        checked(driver.cuInit(0))
        self._device = checked(driver.cuDeviceGet(index))
        context = checked(driver.cuDevicePrimaryCtxRetain(self._device))
        checked(driver.cuCtxSetCurrent(context))
        self._stream = checked(driver.cuStreamCreate(0))
        self._gpu = gpu_spec(self._device)
        self._session: Session | None = None

    def described(self) -> Described:
        uuid = checked(driver.cuDeviceGetUuid(self._device))
        return Described(self._gpu, uuid.bytes.hex())

    def _close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def answer(self, request: Any) -> Any:
        try:
            if isinstance(request, Open):
                self._close()
                self._session = Session(request, self._gpu, self._device, self._stream)
                return self._session.facts()
            if self._session is None:
                return Failed("no problem is open", context_lost=False)
            if isinstance(request, Job):
                return self._session.evaluate(request)
            if isinstance(request, Enter):
                return self._session.enter(request.peer)
            if isinstance(request, Compare):
                return self._session.compare(request)
            return Failed(f"unknown request {type(request).__name__}", context_lost=False)
        except CudaError as error:
            return Failed(error.name, context_lost=True)
        except ExplorerError as error:
            return Failed(str(error), context_lost=False)
        except Exception:
            return Bug(traceback.format_exc())
