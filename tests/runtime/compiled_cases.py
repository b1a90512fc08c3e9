"""A driver for tests of compiled calls: it gets their launches, and has them emulated."""

import ctypes
import functools
from types import SimpleNamespace

from emulated_plans import H200, EmulatedPlan
from torch_cases import serve_cpu

from explorer.choose import config_for
from explorer.runtime import (
    fast_call,
    functions,
    launcher,
    recipes,
    shapes,
    torch_fast_calls,
    torch_inductor,
)
from explorer.runtime.kernels import ReadyKernel, alignment, variant_on
from explorer.runtime.launcher import LoadedKernel

CONTEXT = 0x700


@functools.cache
def ready(problem):
    """A problem's kernel without machine code: how it is launched."""
    config = config_for(problem, H200)
    variant = variant_on(H200, problem, config)
    return ReadyKernel(b"", variant.launches, variant.scratch_bytes, alignment(problem, config))


class Driver:
    """What stands for libcuda: cuLaunchKernelEx and cuCtxGetCurrent, called through pointers."""

    def __init__(self):
        self.launched, self.failures, self._kernels = [], [], []
        self.refuses, self.context, self.kernel, self.meanwhile = 0, CONTEXT, None, lambda: None
        self._launch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._on_launch)
        self._current = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._on_current)
        self.gpu = SimpleNamespace(spec=H200, context=CONTEXT, ensure_current=lambda: None)

    @property
    def launch(self):
        return self._launch

    def addresses(self):
        """What `launcher.driver_functions` returns."""
        both = self._launch, self._current
        return tuple(ctypes.cast(one, ctypes.c_void_p).value for one in both)

    def plan(self, problem):
        """A plan of this driver: the kernel's number is the address of its function."""
        kernel = ready(problem)
        first = len(self._kernels) + 1
        self._kernels += [(problem, launch) for launch in kernel.launches]
        functions = tuple(range(first, len(self._kernels) + 1))
        return launcher.Plan(LoadedKernel(problem, kernel, functions, self.gpu))

    def _on_current(self, context):
        ctypes.c_void_p.from_address(context).value = self.context
        return 0

    def _on_launch(self, config, function, parameters, extra):
        try:
            return self.refuses or self._launched(config, function, parameters, extra)
        except Exception as error:  # ctypes would drop it
            self.failures.append(error)
            return 1

    def _launched(self, config, function, parameters, extra):
        self.meanwhile()
        problem, launch = self._kernels[function - 1]
        check_config(launcher._LaunchConfig.from_address(config), launch)
        assert extra is None
        told = arguments(problem, launch, parameters)
        if self.kernel is not None:
            return self.kernel(problem, told["input"], told["output"])
        if launch is not ready(problem).launches[-1]:
            return 0  # the emulator runs all of them at the last
        plan = EmulatedPlan(problem, self.launched)
        if "scale" in told:
            plan.scale(told.pop("scale"))
        plan.launch(0, **told)
        return 0


def check_config(told, launch):
    """Assert that a launch is configured as its kernel wants it."""
    assert list(told.grid) == [launch.grid_on(H200.sm_count), 1, 1]
    assert list(told.block) == [launch.block, 1, 1]
    assert (told.shared_bytes, told.stream) == (launch.shared_bytes, None)
    assert told.attribute_count == launch.overlaps
    if launch.overlaps:
        attribute = told.attributes[0]
        assert (attribute.id, attribute.value[0]) == (int(launcher._OVERLAPS), 1)


def arguments(problem, launch, parameters):
    """The addresses and the scale that a launch gives. Its other numbers must be the problem's."""
    numbers, told = launcher.bound(problem, {}), {}
    cells = (ctypes.c_void_p * len(launch.arguments)).from_address(parameters)
    for name, cell in zip(launch.arguments, cells, strict=True):
        kind, number = numbers.get(name, (ctypes.c_uint64, None))
        value = kind.from_address(cell).value
        if name in numbers and name != "scale":
            assert value == number
        else:
            told[name] = value
    return told


def serve_compiled(monkeypatch):
    """Serve tensors on the CPU by compiled calls; return the driver.

    Its list `paths` has a word for each call that went to Python: "otherwise" or "learn", and
    "operator" before it for one of generated code.
    """
    serve_cpu(monkeypatch)
    driver, library = Driver(), fast_call.load()
    driver.library, driver.paths = library, []

    def plan_of(library, problem, device):
        shapes.count_call(problem)
        return driver.plan(problem)

    def counted(name, function):
        def call(*told):
            driver.paths.append(name)
            return function(*told)

        return call

    monkeypatch.setattr(launcher, "_launch_function", lambda: driver.launch)
    monkeypatch.setattr(recipes, "plan_of", plan_of)
    uncompiled, learn = functions.uncompiled, torch_fast_calls._learn
    monkeypatch.setattr(functions, "uncompiled", counted("otherwise", uncompiled))
    monkeypatch.setattr(torch_fast_calls, "_learn", counted("learn", learn))
    in_python = counted("operator", torch_inductor.softmax_in_python)
    monkeypatch.setattr(torch_inductor, "softmax_in_python", in_python)
    torch_fast_calls.configure(library, *driver.addresses())
    monkeypatch.setattr(functions, "compiled", library.call)
    monkeypatch.setattr(torch_inductor, "softmax", library.as_operator)
    return driver
