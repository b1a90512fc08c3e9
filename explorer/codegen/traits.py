"""What templates know of a kernel beside its problem and config: facts derived from the two.

A template names them directly, as `{% if clustered %}`. Each is defined once, here, so that no
template computes one for another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from explorer.codegen import self_check
from explorer.codegen.variant import (
    HostCall,
    arguments,
    entries,
    has_one_row,
    namespace,
    needed_arch,
)
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem, results
from explorer.model.work_split import WorkSplit, borrows_ends, keeps_packed, masks_ends
from explorer.ops import Extent

MOST_EARLY_IDS = 4
"""Ids that a thread reads ahead of a row, and keeps in registers."""

PLACING = ("mask", "lengths", "cols", "mask_rows", "input_stride", "output_stride")
"""Arguments by which a thread finds its row."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The facts of one kernel."""

    problem: Problem
    config: Config
    overlapped: bool = False
    """The launch may begin before the one before it on its stream has ended, whatever that is."""

    def context(self) -> dict[str, Any]:
        """Return all that templates may name."""
        problem, config = self.problem, self.config
        split = WorkSplit(problem, config)
        names = {"problem": problem, "config": config, "split": split}
        names |= self._row(split) | self._results(split) | self._types()
        names |= self._passes() | self._threads(split)
        names |= self._signature(names) | self._place(split, names)
        names |= self._reduced(names) | self._host(split, names) | self._gradient(names)
        return names | self._expressions(names)

    def _types(self) -> dict[str, Any]:
        """Return the type of arithmetic, the suffix of its literals, and its lowest number."""
        problem, config = self.problem, self.config
        arithmetic = problem.dtype.arithmetic.cuda
        real, suffix = arithmetic.name, arithmetic.suffix
        compensated = config.sum == "compensated"
        same = problem.output_dtype is problem.dtype
        zero = "{}" if compensated else f"0.0{suffix}"
        return {
            "f64": problem.dtype.in_double,
            "real": real,
            "element_type": problem.dtype.cuda,
            "output_type": problem.output_dtype.cuda,
            "f": suffix,
            "lowest": arithmetic.lowest,
            "multiplied": arithmetic.multiplied,
            # An output of the input's type shares its names.
            "same": same,
            "out": "" if same else "Output",
            # The type of a sum that a thread adds up one by one, and its zero.
            "compensated": compensated,
            "sum_type": "Total" if compensated else real,
            "sum_zero": zero,
            "sum_begins": "Total sum{};" if compensated else f"{real} sum = {zero};",
        }

    def _row(self, split: WorkSplit) -> dict[str, Any]:
        """Where a row lies, what of it counts, and what of it is kept."""
        problem, config = self.problem, self.config
        limited = problem.mask in ("causal", "lengths")
        scalar = split.width == 1
        cols = "kCols" if config.static_cols else "cols"
        return {
            "log": problem.operator.is_log,
            "backward": problem.operator.is_gradient,
            "across_rows": split.across_rows,
            "aligned": split.aligned,
            "scalar": scalar,
            "static": config.static_cols,
            "run_time": not config.static_cols,
            "strided": not problem.is_dense,
            # What a program calls the columns, and the elements from one row to the next.
            "cols": cols,
            "and_cols": "" if config.static_cols else ", cols",
            "and_int_cols": "" if config.static_cols else ", int cols",
            "input_step": cols if problem.is_dense else "input_stride",
            "output_step": cols if problem.is_dense else "output_stride",
            # What a thread is told of its row: the matrices that it reads, and writes.
            "placed": [*problem.operator.matrices, *(["output"] if problem.fills_rows else [])],
            # How elements count: scaled, with a mask added, or only up to a limit of their row.
            "scaled": problem.scale is not None,
            "additive": problem.mask == "additive",
            "limited": limited,
            # A limit within a vector hides the rest of it; where rows may start anywhere, that is
            # not loaded.
            "hides": limited and split.aligned and not scalar,
            "packed": keeps_packed(problem, config),
            "borrows": borrows_ends(problem, config),
            "masks_ends": masks_ends(problem, config),
            # What is kept of a row: numbers of the arithmetic's type, or vectors as they came.
            "keeps_numbers": split.keeps_numbers,
            "holds_exp": config.cache_holds == "exp",
            "registers": config.cache == "registers",
            "shared": config.cache == "shared",
        }

    def _results(self, split: WorkSplit) -> dict[str, Any]:
        """Return what is stored of a row, and what its threads combine for that."""
        problem = self.problem
        has_target = problem.has_target
        elementwise = not problem.operator.reduces
        return {
            # Whether each row has a few results, which its first threads store.
            "per_row": not problem.fills_rows,
            "results": [result.name for result in problem.results],
            "stored_as": {one.name: one.stored or one.name for one in problem.results},
            # The operands that have a number for each row.
            "of_rows": [n for n, e in problem.operator.operands.items() if e is Extent.ROW],
            # The C++ types of those beside the output.
            "types_too": {one.name: one.dtype.cuda.name for one in results(problem)[1:]},
            # What a row's threads combine beside maximum and sum. Whole numbers among it are as
            # wide as the numbers, so that a cluster's blocks send them as such.
            "combined_too": split.combined_too,
            "count": "long long" if problem.dtype.in_double else "int",
            "no_column": "0x7fffffffffffffffll" if problem.dtype.in_double else "0x7fffffff",
            # Whether elements of given columns are stored.
            "gathers": problem.ids_dtype is not None,
            # Whether a thread has so many ids that it reads them where it stores their results.
            "gathers_late": problem.ids_per_row > MOST_EARLY_IDS * self.config.threads_per_row,
            "Id": problem.ids_dtype.cuda.name if problem.ids_dtype else "",
            # Whether a row has a target, by which it may be ignored. It is added apart from the
            # others, unless maximum and sum are known: then each element stands alone.
            "has_target": has_target,
            "sets_apart": has_target and not elementwise,
            "elementwise": elementwise,
            "is_product": problem.is_product,
            **self._smoothing(),
            **self._checks(),
            "ids_step": "kIds" if problem.is_dense else "ids_stride",
        }

    def _passes(self) -> dict[str, Any]:
        """Return the algorithm, and by which way a row comes."""
        config = self.config
        online = config.algorithm != "three-pass"
        bulk = config.staging == "bulk"
        return {
            "online": online,
            "block_max": config.algorithm == "online-block-max",
            "folded": self._folded,
            # What three launches leave of each element: a logarithm is of the exponent itself.
            "left": "differences" if self.problem.operator.is_log else "exponentials",
            "function": self._function(),
            "body": self._body(online),
            # A span is staged in shared memory: threads take 4 bytes of a row at a time there.
            "span": config.staging == "span",
            # Or asynchronous copies fill the cache in shared memory, ahead of all passes.
            "bulk": bulk,
            "ring": bulk and config.persistent > 0,
            "copied": bulk or config.staging == "async",
            # Of two launches each block has a part of a row; what these come to waits in between.
            "split_launches": config.splits_launches,
            "overlapped": config.launches == "two-overlapped",
            "waits_for_others": self.overlapped,
        }

    @property
    def _folded(self) -> bool:
        """Whether a row's maximum is multiplied by log2(e) once, ahead of all powers of two."""
        return self.config.exp.endswith("-folded")

    def _function(self) -> str:
        """Return the C++ function that exponentiates."""
        name = self.config.exp.removesuffix("-folded")
        suffix = self.problem.dtype.arithmetic.cuda.suffix
        names = {"expf": f"exp{suffix}", "exp2f": f"exp2{suffix}", "ex2.approx": "exp2_approximate"}
        return names.get(name, name)

    @property
    def is_simple(self) -> bool:
        """Whether a thread reads element after element of a row, from memory in each pass."""
        problem, config = self.problem, self.config
        plain = config == replace(
            Config(cache="none", cache_holds="input"),
            algorithm=config.algorithm,
            threads=config.threads,
            threads_per_row=config.threads_per_row,
            vector_bytes=problem.dtype.itemsize,
            reduction=config.reduction,
            exp=config.exp,
            normalise=config.normalise,
            min_blocks=config.min_blocks,
            static_cols=config.static_cols,
            sum=config.sum,
        )
        one_result = len(problem.results) == 1 and problem.ids_dtype is None
        forward_rows = problem.inner == 1 and not problem.operator.is_gradient and one_result
        masked = problem.mask is not Mask.NONE or problem.scale is not None
        return plain and forward_rows and not masked and config.algorithm != "online-block-max"

    def _body(self, online: bool) -> str:
        """Which kernel of a row computes it, where the op is no gradient."""
        config = self.config
        if not self.problem.operator.reduces:
            return "product" if self.problem.is_product else "elementwise"
        if self.is_simple:
            return "simple"
        if config.rows_per_thread > 1:
            return "several rows"
        if config.launches == "three":
            return "three launches"
        if config.splits_launches:
            return "two launches"
        if config.cache == "output":
            return "three-pass output"
        algorithm = "online" if online else "three-pass"
        return f"{algorithm} {'registers' if config.cache == 'registers' else 'looped'}"

    def _threads(self, split: WorkSplit) -> dict[str, Any]:
        """How threads, warps and blocks share a row."""
        problem, config = self.problem, self.config
        span = config.staging == "span"
        alone = config.threads_per_row == 1
        several_rows = config.threads > config.threads_per_row and not (span and alone)
        # In place, as in a span, a row's threads may have overwritten what those of no row read.
        empty_rows = several_rows and (problem.in_place or span)
        clustered = config.cluster > 1
        parted = clustered or config.splits_launches
        part_vectors = "kBlockVectors" if parted else "kRowVectors"
        counts_vectors = not config.static_cols or (
            split.aligned and (empty_rows or not split.equal_parts)
        )
        return {
            "alone": alone,
            # A row has a block's threads.
            "whole_block": config.threads == config.threads_per_row,
            # Whether a block, or a cluster of them, works on one row at a time.
            "one_row": has_one_row(problem, config),
            "hides_uniform_row": self._hides_uniform_row(split),
            "reduces_nothing": alone or config.arrangement == "replicated",
            "shuffles": config.reduction in ("shuffle", "shuffle-redux"),
            "recombines": config.threads_per_row > WARP
            and (clustered or not config.first_warp_folds),
            "empty_rows": empty_rows,
            # Threads past the last row of a span take a row of no elements, or there are none.
            "passes_last": span and (several_rows or config.rows_per_thread > 1),
            "clustered": clustered,
            # What blocks find comes to each other after a barrier, or counted by an mbarrier each.
            "mailed": config.exchange == "mbarrier",
            "incoming": self._incoming(split),
            "parted": parted,
            "blocks_a_row": "kCluster" if clustered else "kParts",
            "part_vectors": part_vectors,
            "counts_vectors": counts_vectors,
            "row_vectors": "row.vectors" if counts_vectors else part_vectors,
            # Across rows: whether a warp has several threads of a row, and several warps have one.
            "in_warp": config.threads // config.threads_per_row < WARP,
            "several_shares": split.row_shares > 1,
        }

    def _hides_uniform_row(self, split: WorkSplit) -> bool:
        """Whether the compiler is kept from knowing that a block's threads have one row.

        It unswitches loops on what all threads have in common, here the place where a row starts,
        and code grows by half. On an H200 that is 5 % faster for rows of 5501 f32, but slower for
        16-bit rows that start anywhere (1.3 % at 3001 columns, 2.3 % in the gradient of 50257) or
        are shared by a cluster (0.9 % at 262144 columns), and for rows that are divided over two
        launches (0.5 % at 1048576 columns of f32).
        """
        problem, config = self.problem, self.config
        halves = problem.dtype.itemsize == 2 and (config.cluster > 1 or not split.aligned)
        places_row = has_one_row(problem, config) and config.staging != "span"
        return places_row and (halves or config.splits_launches)

    def _incoming(self, split: WorkSplit) -> str:
        """How many values come to a block of a cluster in one exchange."""
        config = self.config
        if split.across_rows:
            return "kCluster * kRowsPerBlock"
        of_a_row = "kCluster" if config.first_warp_folds else "kCluster * kWarpsPerRow"
        return f"kRowsPerThread * {of_a_row}" if config.rows_per_thread > 1 else of_a_row

    def _reduced(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a row's threads combine: values of one kind, or of two (maxima and sums).

        Where there are two, functions take the kind as a template's parameter, `Combine`.
        """
        several = not (names["online"] or names["backward"])
        value = "State" if names["online"] else names["real"]
        met = "one wait for them" if names["mailed"] else "one barrier of the cluster"
        return {
            "several_kinds": several,
            "kinds": ["<Max>", "<Sum>"] if several else [""],
            "of_a_kind": "template <typename Combine>\n" if several else "",
            "and_a_kind": ", typename Combine" if several else "",
            "of": "<Combine>" if several else "",
            "sent": "<Combine>" if several and names["mailed"] else "",
            "Value": "ValueOf<Combine>" if several else value,
            "combine": "combine" if several else "combined",
            "identity": "Combine::identity()"
            if several
            else "State::identity()"
            if names["online"]
            else f"0.0{names['f']}",
            "kind_taken": ", Combine combine" if several else "",
            "kind_passed": ", combine" if several else "",
            "own_scratch": " Each kind of reduction has scratch of its own." if several else "",
            "so_that_reads_are_own": f", so that after {met} all reads are of a block's own memory."
            + (" Each kind of reduction has scratch of its own." if several else ""),
            # Shared memory by which the threads of a row meet: a part for each of a block's rows.
            "scratch_rows": "" if names["one_row"] else "[kRowsPerBlock]",
            "of_row": "" if names["one_row"] else "[row]",
            "thread_of_row": f"threadIdx.x{'' if names['one_row'] else ' % kThreadsPerRow'}",
        }

    def _place(self, split: WorkSplit, names: Mapping[str, Any]) -> dict[str, Any]:
        """How a thread knows its row, and whether all that it takes lies in it."""
        config, across = self.config, names["across_rows"]
        rows = not (names["across_rows"] or names["backward"] or names["span"])
        whole = rows and split.aligned and not (names["limited"] or names["additive"])
        by_pointers = (
            whole
            and config.cache != "output"
            and not (names["parted"] or names["counts_vectors"] or names["copied"])
            and (config.launches, config.rows_per_thread, config.persistent) == ("one", 1, 0)
        )
        whole_gradient = names["backward"] and split.aligned and not names["counts_vectors"]
        each = config.threads_per_row * (1 if config.cache == "registers" else config.unroll)
        return {
            # Two pointers are all that there is to know of a row.
            "by_pointers": by_pointers,
            "source": "group, input" if across else "input" if by_pointers else "row",
            "target": "group, output" if across else "output" if by_pointers else "row",
            "span_cols": "row.count" if names["passes_last"] else "kCols",
            # Where the cache has vector `k`, and where its vectors end.
            "kept_k": "cache[k * kGroups]" if across else "cache[k]",
            "row_end": "group.cols" if across else "vectors",
            # By how much the lines of a pass over what was kept are indented.
            "pad": "    " if config.cache == "shared" else "      ",
            # No thread reaches beyond its row.
            "fits": (by_pointers or whole_gradient) and split.row_vectors % each == 0,
        }

    def _signature(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a kernel is called, takes, and is bound to."""
        problem, config = self.problem, self.config
        taken = arguments(problem, config)
        # A vector at a row's end may hold elements of its neighbours, but not at the matrix's end.
        placing: tuple[str, ...] = (*PLACING, "rows") if names["borrows"] else PLACING
        if names["per_row"]:
            placing = tuple(name for name in placing if name != "output_stride")
        dimensions = "__cluster_dims__(kCluster, 1, 1) " if config.cluster > 1 else ""
        launched = entries(problem, config)
        return {
            "name": namespace(problem, config),
            "entries": list(launched),
            "entry": launched[0],
            "device": "__device__ __forceinline__ ",
            "arguments": taken,
            # What the function takes that works on one of the rows that a block strides over.
            "row_arguments": [n for n in taken if n != "rows" or not names["one_row"]],
            "placing": [name for name in taken if name in placing],
            "declarations": self._declarations(names),
            "parameters": {
                "mask": "const Element* mask",
                "lengths": "const int* lengths",
                **_NUMBERS,
            },
            "bounds": f"SOFTMAX_API {dimensions}__global__ void "
            "__launch_bounds__(kThreads, kMinBlocks)",
        }

    def _declarations(self, names: Mapping[str, Any]) -> dict[str, str]:
        """Return how a kernel declares what it takes, by the names in its launches."""
        real, out = names["real"], names["out"]
        restrict = "" if self.problem.in_place or self.overlapped else "__restrict__ "
        # What an earlier launch may still write must not be loaded as a constant.
        read_only = "" if self.overlapped else "__restrict__ "
        state = "State* scratch" if self.config.splits_launches else f"{real}* __restrict__ scratch"
        return {
            "input": f"const Element* {restrict}input",
            "grad": f"const Element* {restrict}grad",
            "mask": f"const Element* {read_only}mask",
            "lengths": f"const int* {read_only}lengths",
            "ids": f"const Id* {read_only}ids",
            **{name: f"const {real}* {read_only}{name}_of_rows" for name in names["of_rows"]},
            "output": f"{out}Element* {restrict}output",
            # The name of one result is that of a row's number.
            **{n: f"{t}* {restrict}{n}_of_rows" for n, t in names["types_too"].items()},
            "scratch": state,
            "scale": f"{real} scale",
            **_NUMBERS,
        }

    def _gradient(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """How a gradient's kernel names its matrices and sums, along rows and across them."""
        across = names["across_rows"]
        row = "row, " if names["counts_vectors"] or not names["aligned"] else ""
        return {
            # A row that may start anywhere has vectors that lie in it in part.
            "ragged": not (names["aligned"] or across),
            # Which of them are stored whole. In a span the results take the input's place.
            "whole_output": "whole" if names["span"] else "whole && row.output_in_step",
            "of_input": "group, input" if across else f"{row}row.input",
            "of_grad": "group, grad" if across else f"{row}row.grad",
            "sum_of_i": "sums[i]" if across else "sum",
            "plural": "s" if across else "",
            "kept_at": "2 * k * kGroups" if across else "2 * k",
        }

    def _host(self, split: WorkSplit, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the host's function takes, and what it passes on to the kernels.

        In place one array, and one stride, serves as two arguments of the kernel. Of rows over a
        middle axis it is told the slices instead of the rows.
        """
        problem, config = self.problem, self.config
        real = names["real"]
        whole = "array" if split.across_rows else "matrix"
        twice = {"input": whole, "output": whole, "input_stride": "stride"}
        one = twice | {"output_stride": "stride"} if problem.in_place else {}
        passed = renamed(names["arguments"], one)
        asked = list(HostCall.of(problem, config).names)
        arrays = self._arrays(whole, names)
        declarations = {
            **names["parameters"],
            **{name: f"{pointer} {name}" for name, pointer in arrays.items()},
            "outer": "long long outer",
            "stride": "long long stride",
            "scale": f"{real} scale",
        }
        untyped = {
            name: f"{'const ' if pointer.startswith('const') else ''}void* {name}"
            for name, pointer in arrays.items()
        }
        return {
            "whole": whole,
            "passed": passed,
            "asked": asked,
            "host_declarations": declarations,
            # The same for C, which knows no type of ours; and these with their types again.
            "c_declarations": declarations | untyped,
            "c_passed": [
                f"static_cast<{arrays[name]}>({name})" if name in arrays else name for name in asked
            ],
            "needed_arch": needed_arch(problem, config, self.overlapped),
        }

    def _arrays(self, whole: str, names: Mapping[str, Any]) -> dict[str, str]:
        """Return the types of the arrays that the host's function takes, by their names."""
        real, out = names["real"], names["out"]
        return {
            whole: "Element*",
            "input": "const Element*",
            "grad": "const Element*",
            "mask": "const Element*",
            "ids": "const Id*",
            **dict.fromkeys(names["of_rows"], f"const {real}*"),
            "output": f"{out}Element*",
            **{name: f"{kind}*" for name, kind in names["types_too"].items()},
            "scratch": f"{'State' if self.config.splits_launches else real}*",
        }

    def _expressions(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """C++ expressions that depend on the types and on the config."""
        problem, config = self.problem, self.config
        scaled, forward = names["scaled"], not names["backward"]
        pairs = names["packed"] and (names["block_max"] or names["per_row"])
        staged_pairs = names["span"] and not names["scalar"] and not names["online"]
        return {
            # The maximum of 16-bit elements that lie in pairs is found two at a time.
            "folds_pairs": not scaled and (pairs or (staged_pairs and config.rows_per_thread == 1)),
            "factor": ", scale" if scaled else "",
            "normal": self._normal,
            "normalise": self._normalise,
            "rescale": self._rescale,
            "rescaled": self._rescaled,
            "load_word": self._load_word,
            "store_word": self._store_word,
            "stored": self._stored,
            "element": problem.dtype.cuda.as_element,
            # What stands in place of elements that do not count.
            "filler": problem.dtype.cuda.as_element(
                "-infinity()" if forward else f"0.0{names['f']}"
            ),
            "neutral": "-inf, which changes neither maximum nor sum"
            if forward
            else "0, which changes no sum",
            "output_element": problem.output_dtype.cuda.as_element,
            "number": problem.dtype.cuda.as_number,
            "output_number": problem.output_dtype.cuda.as_number,
            "reference_of": self._reference_of,
            "reference_kept": self._reference_kept,
            "normaliser": self._normaliser,
            "result": self._result,
            "summed": self._summed,
            "reduced": partial(_reduced, names),
            "exponent": self._exponent,
            "no_template": self._no_template,
            "each_element": self._each_element,
        }

    def _checks(self) -> dict[str, Any]:
        """Return what a program that checks the kernel has as its example, and allows."""
        problem = self.problem
        error = self_check.allowed(problem, problem.output_dtype.errors.rounded)
        digits = 1 if problem.softcap else 0
        return {
            "usual_tolerance": f"{error:.{digits}e}".replace("e-0", "e-"),
            "smallest_in_hex": self_check.smallest(problem).hex().replace(".0000000000000", ""),
            # Logits up to twice the cap, in few digits: the noise's own factors of it are finite.
            "most_noise": float(f"{min(2 * self_check.reach(problem), 1e30):.4g}"),
        }

    def _smoothing(self) -> dict[str, str]:
        """Return the numbers of a loss's options, and what they change of each share of a sum."""
        suffix = self.problem.dtype.arithmetic.cuda.suffix
        cols = "kCols" if self.config.static_cols else "cols"
        names = ("label_smoothing", "z_loss", "softcap")
        numbers = {name: getattr(self.problem, name) for name in names}
        is_smoothed = bool(numbers["label_smoothing"])
        return {
            **{name: f"{value!r}{suffix}" if value else "" for name, value in numbers.items()},
            "given_back": f" + (kSmoothing - kSmoothing / {cols})" if is_smoothed else "",
            "more_and_less": (f" * (1.0{suffix} + more)" if numbers["z_loss"] else "")
            + (" - lost" if is_smoothed else ""),
        }

    @property
    def _each_element(self) -> str:
        """The head of a loop over a thread's elements of a row, one at a time."""
        config = self.config
        cols = "kCols" if config.static_cols else "cols"
        if config.threads_per_row == 1:
            return f"for (int i = 0; i < {cols}; ++i)"
        end = cols if config.threads == config.threads_per_row else "count"
        return f"for (int i = thread_in_row; i < {end}; i += kThreadsPerRow)"

    def _reference_of(self, maximum: str) -> str:
        """Return what exponentials are relative to, given the maximum."""
        finite = not self.problem.fills_rows or self.problem.has_target
        changed = self._folded or finite
        return f"reference_of({maximum})" if changed else maximum

    def _reference_kept(self, maximum: str) -> str:
        """Return the same where a running sum is relative to it."""
        compensated = self.config.sum == "compensated"
        return f"whole_reference({maximum})" if compensated else self._reference_of(maximum)

    def _normaliser(self, total: str) -> str:
        """Return what exponentials are divided by or multiplied with, or logarithms lessened by."""
        if self.config.sum == "compensated":
            total = f"rounded({total})"
        suffix = self.problem.dtype.arithmetic.cuda.suffix
        if self.problem.operator.is_log:
            return f"log{suffix}({total})"
        return total if self.config.normalise == "divide" else f"1.0{suffix} / {total}"

    def _normalise(self, x: str, normal: str) -> str:
        """Normalise an exponential, or an element below its maximum, by the row's `normaliser`."""
        if self.problem.operator.is_log:
            return f"{x} - {normal}"
        return f"{x} {'/' if self.config.normalise == 'divide' else '*'} {normal}"

    def _rescaled(self, x: str, correction: str, normal: str) -> str:
        """Normalise an exponential relative to another maximum than the row's."""
        if self.config.normalise == "divide":
            return f"{x} * {correction} / {normal}"
        return f"{x} * ({correction} * {normal})"

    def _rescale(self, old: str, new: str) -> str:
        """Return the factor that makes a sum relative to one reference relative to another."""
        if self._folded:
            return f"{self._function()}({old} - {new})"
        return f"exponential({old}, {new})"

    def _load_word(self, base: str, number: str) -> str:
        """Word `number` from `base` on, by the load that the config asks for."""
        if self.config.load_hint == "default":
            return f"{base}[{number}]"
        return f"load_word({base})" if number == "0" else f"load_word({base} + {number})"

    def _store_word(self, base: str, number: str, word: str) -> str:
        """Store a word as word `number` from `base` on."""
        if self.config.store_hint == "default":
            return f"{base}[{number}] = {word}"
        place = base if number == "0" else f"{base} + {number}"
        return f"store_word({place}, {word})"

    def _stored(self, output: str) -> str:
        """Store `vector` as vector `k` of `output`."""
        if self.problem.output_dtype is self.problem.dtype:
            return self._store_word(f"reinterpret_cast<Word*>({output})", "k", "as_word(vector)")
        return f"store_words({output}, k, vector)"

    def _summed(self, total: str) -> str:
        """Return a sum as one number."""
        if self.config.sum != "compensated":
            return total
        is_name = total.isidentifier()
        return f"{total}.sum + {total}.rest" if is_name else f"rounded({total})"

    def _exponent(self, x: str, maximum: str) -> str:
        """e^(x - maximum), without a function of our own where C++ has one."""
        if self.config.exp in ("expf", "__expf"):
            return f"{self._function()}({x} - {maximum})"
        return f"exponential({x}, {maximum})"

    def _result(self, x: str, reference: str) -> str:
        """Return what becomes of an element, given its row's reference."""
        if self.problem.operator.is_log:
            return f"{x} - {reference} - log_sum"
        return self._normalise(f"exponential({x}, {reference})", self._normal)

    @property
    def _normal(self) -> str:
        """The name of a row's `normaliser`."""
        if self.problem.operator.is_log:
            return "log_sum"
        return "total" if self.config.normalise == "divide" else "inverse_sum"

    def _no_template(self, parameter: str) -> NoReturn:
        """End a switch of a template that has no text for a value; raises InvalidInput."""
        problem, config = self.problem, self.config
        raise InvalidInput(
            f"config parameter '{parameter}' is {getattr(config, parameter)!r}; there is no "
            f"template for it with {problem.op}, algorithm {config.algorithm} and inner "
            f"{problem.inner}"
        )


_NUMBERS = {
    "rows": "long long rows",
    "cols": "int cols",
    "inner": "long long inner",
    "input_stride": "long long input_stride",
    "output_stride": "long long output_stride",
    "ids_stride": "long long ids_stride",
    "mask_rows": "long long mask_rows",
}
"""The declarations of the numbers that a kernel takes, the scale left aside."""


def _reduced(names: Mapping[str, Any], value: str, kind: str) -> str:
    """Combine a thread's value with those of the other threads of its row, if there are any."""
    if names["reduces_nothing"]:
        return value
    return f"reduce_row({value}, {kind}{{}})" if names["several_kinds"] else f"reduce_row({value})"


def each_of(names: Iterable[str], texts: Mapping[str, str]) -> list[str]:
    """Return the text of each name."""
    return [texts[name] for name in names]


def renamed(names: Iterable[str], new: Mapping[str, str]) -> list[str]:
    """Return names, some of them replaced."""
    return [new.get(name, name) for name in names]
