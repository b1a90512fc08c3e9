"""What a program calls in an emitted file: the function, and what it takes, in order.

`NAME::launch` in C++ and `NAME_launch` of the library that -DSOFTMAX_LIBRARY makes take the same.
"""

from dataclasses import dataclass

from explorer.codegen.variant import namespace, operand_names
from explorer.model.config import Config
from explorer.model.problem import Problem, scalars

POINTER = "pointer"
"""The kind of an array, which is passed by its address."""

LIBRARY_MACRO = "SOFTMAX_LIBRARY"
"""The macro with which nvcc compiles an emitted file to a library."""


@dataclass(frozen=True, slots=True)
class HostArgument:
    """One argument of `launch`."""

    name: str
    kind: str
    """POINTER, or as a `ScalarType` of numbers: int32, int64, float32, float64."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """How a program calls what a config emits for a problem."""

    namespace: str
    arguments: tuple[HostArgument, ...]
    """All but the stream, which comes last."""
    scratch_arguments: tuple[HostArgument, ...] | None
    """Those of `scratch_bytes`; None where the kernels need no scratch memory."""

    @classmethod
    def of(cls, problem: Problem, config: Config) -> "HostCall":
        """Return the call of a config's file.

        In place one array, and one stride, stand for two. Over a middle axis the slices are told
        instead of the rows.
        """
        whole = "array" if problem.inner > 1 else "matrix"
        one = {"input": whole, "output": whole}
        one |= {"input_stride": "stride", "output_stride": "stride"}
        new = one if problem.in_place else {}
        new |= {"rows": "outer"} if problem.inner > 1 else {}
        names = (new.get(name, name) for name in operand_names(problem, config))
        arguments = tuple(_argument(problem, name) for name in dict.fromkeys(names))
        rows = ("rows",) if config.static_cols else ("rows", "cols")
        scratch = None if config.launches == "one" else tuple(_argument(problem, n) for n in rows)
        return cls(namespace(problem, config), arguments, scratch)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(argument.name for argument in self.arguments)

    @property
    def function(self) -> str:
        """The library's C function, which returns a cudaError_t."""
        return f"{self.namespace}_launch"

    @property
    def scratch_function(self) -> str | None:
        """The library's C function that returns the bytes of `scratch`; None without scratch."""
        return None if self.scratch_arguments is None else f"{self.namespace}_scratch_bytes"


def _argument(problem: Problem, name: str) -> HostArgument:
    numbers = scalars(problem)
    same = {"outer": "rows", "stride": "input_stride"}.get(name, name)
    return HostArgument(name, str(numbers[same].kind) if same in numbers else POINTER)
