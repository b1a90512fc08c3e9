"""Kernels that persons write, right and wrong, and those of published series: each verdict."""

import re
from pathlib import Path

import pytest

from explorer.compile.compiler import include_dir
from explorer.devices.device import Setting
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.own_kernel import OwnLaunch, read_own
from explorer.devices.verdict import Status
from explorer.model.query import ProblemQuery
from explorer.ptx_emulator import Kind
from explorer.report.verification import hint_lines

FOLDER = Path(__file__).resolve().parent
ALL = "input,output,rows,cols"
TILES = "(rows + 63) / 64"

RIGHT = {
    "thread_per_row": {},
    "block_tree": {},
    "warp_per_row": {},
    "vectors_and_tail": {"args": "input,output,cols", "grid": "rows"},
    "online": {},
    "row_in_shared": {"args": "input,output,cols", "grid": "rows"},
    "registers_of_a_warp<__nv_bfloat16, 36>": {
        "args": "input,output,rows",
        "block": "64",
        "grid": "(rows + 1) / 2",
    },
    "striding": {"op": "log_softmax"},
    "scaled": {"scale": 0.5, "args": f"{ALL},input_stride,scale", "block": "64"},
    "talkative": {},
}
"""Kernels of right.cu, with what its text does not tell of them."""

WRONG = {
    "identity_of_max": "the maximum looks as if it began at 0",
    "missing_barrier": Kind.SHARED_RACE,
    "tail_of_sum": "a tail is missing",
    "tail_of_output": Kind.NEVER_WRITTEN,
    "unwritten_partials": Kind.UNINITIALISED_SHARED,
    "barrier_of_some": Kind.BARRIER,
    "missing_guard": Kind.OUT_OF_BOUNDS,
    "not_rescaled": "the running sum looks as if it were not multiplied",
    "half_a_warp": "the first half of the threads have added up alone",
    "lanes_that_left": Kind.WARP_MASK,
    "lanes_not_rescaled": "the lanes' sums look as if they were added up without exp(own maximum",
    "endless": Kind.DEADLOCK,
}
"""Kernels of wrong.cu, with the kind of finding, or what their numbers look like."""

PUBLISHED = {
    "one_thread_a_block": ({"block": "1"}, None),
    "shared_serial": ({"block": "256"}, None),
    "tree_of_float4": ({"block": "256", "shared": "1024"}, None),
    "register_float4<36>": ({"block": "32", "args": "input,output"}, "began at 0"),
    "fused": ({"block": "64", "grid": TILES}, None),
    "online": ({"block": "64", "grid": TILES}, None),
    "warp_state": ({"block": "256"}, Kind.UNINITIALISED_SHARED),
    "early_return": (
        {
            "block": "128",
            "shared": "16",
            "grid": "(rows + 3) / 4",
            "args": "output,input,rows,cols",
        },
        Kind.BARRIER,
    ),
}
"""Kernels of published.cu, with how they are launched, and what is found."""

COLS = 36


def judged(file, kernel, cols=COLS, *, op="softmax", scale=None, **said):
    """Return the verdict of a kernel of a file here."""
    launch = OwnLaunch(kernel=kernel, **said)
    query = ProblemQuery(cols, op=op, scale=scale)
    program = read_own(FOLDER / file, launch, query, reads_dtype=True)
    emulator = Emulator("sm_90")
    emulator.open(Setting(program.problem))
    return emulator.verify(program)


def marked_lines(file, kernel):
    """Return the numbers of the lines of a kernel that are marked."""
    lines = (FOLDER / file).read_text().splitlines()
    name = kernel.partition("<")[0]
    first = next(n for n, line in enumerate(lines) if re.search(rf"void {name}\(", line))
    last = next(n for n, line in enumerate(lines) if n > first and line == "}")
    return {n + 1 for n in range(first, last) if lines[n].endswith("// here")}


def named_lines(verdict):
    """Return the lines that a verdict names first."""
    if verdict.findings:
        places = [p for f in verdict.findings for p in (f.source, f.other) if p is not None]
        return {p.line for p in places} | {p.inlined_at for p in places}
    return {int(n) for text in hint_lines(verdict) for n in re.findall(r"\.cu:(\d+)", text)}


def check_wrong(file, kernel, verdict, what):
    assert verdict.status is Status.WRONG
    if isinstance(what, Kind):
        assert what in {finding.kind for finding in verdict.findings}
    else:
        assert not verdict.findings and what in verdict.hint
    assert named_lines(verdict) & marked_lines(file, kernel), hint_lines(verdict)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kernel", RIGHT)
def test_a_right_kernel_is_verified(kernel):
    verdict = judged("right.cu", kernel, **{"args": ALL, **RIGHT[kernel]})
    assert verdict.status is Status.VERIFIED, verdict.sentence
    assert not verdict.hint


@pytest.mark.skipif(
    not (include_dir() / "cccl" / "cub").is_dir(), reason="nvidia-cuda-cccl is not installed"
)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", ["group_a_row", "block_of_cub", "of_std"])
def test_a_kernel_that_libraries_help_is_verified(kernel):
    verdict = judged("libraries.cu", kernel, 100, args=ALL)
    assert verdict.status is Status.VERIFIED, verdict.sentence


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kernel", WRONG)
def test_a_mistake_is_found_with_its_line(kernel):
    check_wrong("wrong.cu", kernel, judged("wrong.cu", kernel), WRONG[kernel])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kernel", PUBLISHED)
def test_a_published_kernel_is_right_or_has_its_known_fault(kernel):
    said, what = PUBLISHED[kernel]
    verdict = judged("published.cu", kernel, **{"args": ALL, **said})
    if what is None:
        assert verdict.status is Status.VERIFIED, verdict.sentence
    else:
        check_wrong("published.cu", kernel, verdict, what)


def test_rows_with_infinities_do_not_decide_but_are_told():
    said, _ = PUBLISHED["online"]
    verdict = judged("published.cu", "online", 8, args=ALL, **said)
    assert verdict.status is Status.VERIFIED
    assert "rows that hold -inf among numbers, as a mask leaves it" in " ".join(
        verdict.runs[0].remarks
    )


@pytest.mark.exhaustive
def test_a_long_sum_of_one_thread_is_inaccurate_and_no_mistake():
    said, _ = PUBLISHED["one_thread_a_block"]
    verdict = judged("published.cu", "one_thread_a_block", 2000, args=ALL, **said)
    assert verdict.status is Status.INACCURATE
    (line,) = hint_lines(verdict)
    assert line.startswith("it looks like rounding alone")


def test_the_guide_says_which_published_kernels_are_right():
    guide = (FOLDER.parents[1] / "explorer" / "guide" / "your-kernel.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (\w[\w ]*) \|", guide, re.MULTILINE))
    told = {name.partition("<")[0]: what for name, (_, what) in PUBLISHED.items()}
    assert rows.pop("unfused_max") == "not served"
    assert rows == {name: "right" if what is None else "wrong" for name, what in told.items()}
