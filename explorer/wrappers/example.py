"""What the programs of all Python frameworks share: an example, its truth, and their comparison.

Their texts differ by the name of the module that makes arrays and by a few of its methods.
"""

from dataclasses import dataclass

from explorer.codegen import Variant
from explorer.codegen.host_call import HostCall
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit

TOLERANCES = {DType.F32: 1e-4, DType.F16: 4e-3, DType.BF16: 2e-2, DType.F64: 2.5e-12}
"""Errors that kernels of every accuracy keep to, relative to an element's magnitude."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a framework says what others say otherwise."""

    module: str
    """What makes arrays: torch, cupy or jnp."""
    cast: str
    """The method that converts an array to another type."""
    softmax: str
    """What the framework's own functions are called up to `softmax` or `log_softmax`."""


@dataclass(frozen=True, slots=True)
class Example:
    """A problem as a program of a framework sees it."""

    variant: Variant
    dialect: Dialect

    @property
    def problem(self) -> Problem:
        """What the kernel computes."""
        return self.variant.problem

    @property
    def config(self) -> Config:
        """How the kernel does."""
        return self.variant.config

    @property
    def call(self) -> HostCall:
        """How C++ calls the kernel."""
        return HostCall.of(self.problem, self.config)

    @property
    def split(self) -> WorkSplit:
        """How the kernel divides the rows."""
        return WorkSplit(self.problem, self.config)

    @property
    def x(self) -> str:
        """The name of the matrix that an op takes: y is what a forward pass has left."""
        return "y" if self.problem.op.is_backward else "x"

    @property
    def arrays(self) -> list[str]:
        """The names of the arrays that the function takes."""
        masks = {Mask.LENGTHS: ["lengths"], Mask.ADDITIVE: ["mask"]}
        grad = ["grad"] if self.problem.op.is_backward else []
        return [self.x, *grad, *masks.get(self.problem.mask, [])]

    @property
    def signature(self) -> str:
        """The parameters of the function, numbers with what the example gives them."""
        causal = ["mask_rows=MASK_ROWS"] if self.problem.mask is Mask.CAUSAL else []
        scale = [] if self.problem.scale is None else ["scale=SCALE"]
        return ", ".join([*self.arrays, *causal, *scale])

    def dtype(self, of: DType) -> str:
        """The framework's name of a type."""
        return f"{self.dialect.module}.{of.array_name}"

    @property
    def part(self) -> str:
        """What makes columns of rows that gaps follow."""
        return "[:, :COLS]" if self.config.static_cols else f"[:, : {self.x}.shape[1]]"

    @property
    def constants(self) -> list[str]:
        """Lines that say what the example is of."""
        problem = self.problem
        told: dict[str, object] = {"ROWS": problem.rows, "COLS": problem.cols}
        told |= {"INNER": problem.inner} if problem.inner > 1 else {}
        if not problem.is_dense:
            told |= {"INPUT_STRIDE": problem.input_stride}
            told |= {} if problem.in_place else {"OUTPUT_STRIDE": problem.output_stride}
        told |= {"MASK_ROWS": problem.mask_rows} if problem.mask_rows else {}
        told |= {} if problem.scale is None else {"SCALE": float(problem.scale)}
        shape = "(ROWS, COLS)" if problem.is_dense else "(ROWS, INPUT_STRIDE)"
        if problem.inner > 1:
            shape = "(ROWS // INNER, COLS, INNER)"
        return [*(f"{name} = {value!r}" for name, value in told.items()), f"SHAPE = {shape}"]

    @property
    def what(self) -> str:
        """What the function computes, in words."""
        problem = self.problem
        name = str(problem.op.forward).replace("_", "-")
        gradient = f"gradient of {name}" if problem.op.is_backward else name
        axis = "over the middle axis" if problem.inner > 1 else "of each row"
        over = ", over it" if problem.in_place else ""
        return f"{gradient[0].upper()}{gradient[1:]} {axis} of {self.x}{over}"

    @property
    def refusals(self) -> list[str]:
        """Lines that refuse a matrix of another type or shape."""
        problem, x = self.problem, self.x
        shape = f"{x}.ndim != {3 if problem.inner > 1 else 2}"
        cols = "cols"
        if self.config.static_cols:
            shape, cols = f"{shape} or {x}.shape[1] != COLS", str(problem.cols)
        wanted = f"(outer, {cols}, inner)" if problem.inner > 1 else f"(rows, {cols})"
        return [
            *self.type_refusal,
            *refusal(shape, f"{x} must have the shape {wanted}"),
            *self.companion_refusals(f"{x}.shape[1]"),
        ]

    def companion_refusals(self, cols: str) -> list[str]:
        """Lines that refuse arrays beside the matrix that have not the elements a kernel reads.

        `cols` is the text of a row's elements.
        """
        problem, x = self.problem, self.x
        if problem.op.is_backward:
            return refusal(f"grad.shape != {x}.shape", f"grad must have the shape of {x}")
        if problem.mask is Mask.ADDITIVE:
            unlike = f"mask.ndim != 2 or mask.shape[1] != {cols}"
            return refusal(unlike, f"mask must have the shape (mask_rows, {problem.cols})")
        if problem.mask is Mask.LENGTHS:
            unlike = f"lengths.shape != ({x}.shape[0],)"
            return refusal(unlike, "lengths must have the shape (rows,)")
        return []

    @property
    def type_refusal(self) -> list[str]:
        """Lines that refuse a matrix of another type."""
        condition = f"{self.x}.dtype != {self.dtype(self.problem.dtype)}"
        return refusal(condition, f"{self.x} must be of {self.problem.dtype.array_name}")

    @property
    def truth(self) -> list[str]:
        """The function that has the framework compute the same in float64."""
        name = ", ".join([*self.arrays, "result"])
        body = self._gradient() if self.problem.op.is_backward else self._forward()
        xp, cast = self.dialect.module, self.dialect.cast
        return [
            f"def error({name}):",
            '    """The largest error of a result beside the framework\'s own, in float64."""',
            *(f"    {line}" for line in body),
            f"    found = result.{cast}({xp}.float64)",
            "    same = (found == expected) | ((found != found) & (expected != expected))",
            f"    return float({xp}.where(same, 0.0, abs(found - expected) / size).max())",
        ]

    def _forward(self) -> list[str]:
        problem, xp, cast = self.problem, self.dialect.module, self.dialect.cast
        additive, scaled = problem.mask is Mask.ADDITIVE, problem.scale is not None
        lines = [f"counted = x.{cast}({xp}.float64)"]
        lines += ["counted = counted * SCALE"] if scaled else []
        if additive:
            lines.append(f"rows = {xp}.arange(ROWS) % MASK_ROWS")
            lines.append(f"counted = counted + mask.{cast}({xp}.float64)[rows]")
        if (scaled or additive) and problem.dtype is not DType.F64:
            lines.append("# The kernel rounds what counts to its own type.")
            lines.append(f"counted = counted.{cast}({xp}.float32).{cast}({xp}.float64)")
        lines += self._hidden()
        lines.append(f"expected = {self.dialect.softmax}{problem.op}(counted, 1)")
        if problem.op.is_log:
            return [*lines, "size = 1 + abs(expected)"]
        return [*lines, f"size = expected.clip({problem.output_dtype.smallest_normal!r})"]

    def _hidden(self) -> list[str]:
        """Lines that take out what a mask hides."""
        xp, mask = self.dialect.module, self.problem.mask
        if mask is Mask.CAUSAL:
            limit = "limits = rows % MASK_ROWS + 1 + COLS - MASK_ROWS"
            first = [f"rows = {xp}.arange(ROWS)[:, None]", limit]
        elif mask is Mask.LENGTHS:
            first = ["limits = lengths[:, None]"]
        else:
            return []
        shown = f"{xp}.arange(COLS) < limits"
        return [*first, f'counted = {xp}.where({shown}, counted, float("-inf"))']

    def _gradient(self) -> list[str]:
        problem, xp, cast = self.problem, self.dialect.module, self.dialect.cast
        lines = [f"{name} = {name}.{cast}({xp}.float64)" for name in ("y", "grad")]
        if problem.op.is_log:
            lines.append("total = grad.sum(1, keepdims=True)")
            lines.append("magnitude = abs(grad).sum(1, keepdims=True)")
            lines.append(f"expected = grad - {xp}.exp(y) * total")
            lines.append(f"size = abs(grad) + {xp}.exp(y) * magnitude")
        else:
            lines.append("total = (y * grad).sum(1, keepdims=True)")
            lines.append("magnitude = abs(y * grad).sum(1, keepdims=True)")
            lines.append("expected = y * (grad - total)")
            lines.append("size = abs(y) * (abs(grad) + magnitude)")
        if problem.scale is not None:
            lines.append("expected, size = SCALE * expected, abs(SCALE) * size")
        return [*lines, f"size = size.clip({problem.output_dtype.smallest_normal!r})"]

    @property
    def report(self) -> list[str]:
        """The last lines of the program, which has an array `result` of its inputs."""
        arrays = ", ".join([*self.arrays, "result"])
        return [
            f"    worst = error({arrays})",
            '    print(f"largest relative error {worst:.1e}")',
            f"    sys.exit(0 if worst <= {TOLERANCES[self.problem.output_dtype]!r} else 1)",
        ]


def source_lines(file: str) -> list[str]:
    """Return the lines by which a program finds the kernel's file beside itself."""
    return ["FOLDER = Path(__file__).resolve().parent", f'SOURCE = FOLDER / "{file}"']


def refusal(condition: str, sentence: str) -> list[str]:
    """Return the lines of a function that raise ValueError on a condition."""
    return [f"    if {condition}:", f'        raise ValueError("{sentence}")']


def program_text(head: list[str], *sections: list[str]) -> str:
    """Return a program: a head, functions two lines apart, of which the last is main's call."""
    ending = ['if __name__ == "__main__":', "    main()", ""]
    lines = list(head)
    for section in (*sections, ending):
        lines += ["", "", *section]
    return "\n".join(lines)
