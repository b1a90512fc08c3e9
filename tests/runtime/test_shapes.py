"""The file of problems that a program met: counts, and problems that are read back as they were."""

import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.model.element import DType, IndexType
from explorer.model.errors import InvalidInput
from explorer.model.problem import MAX_COLS, MAX_ROWS, MAX_STRIDE, Layout, Mask, Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.runtime import shapes
from explorer.runtime.shapes import count_call, log_shapes, read_shapes

FIRST, SECOND = Problem(64, 96, DType.F16), Problem(3, 5, scale=1.0, in_place=True)
THIRD = Problem(12, 7, mask=Mask.CAUSAL)


@pytest.fixture(autouse=True)
def no_log_stays():
    yield
    shapes.logs = ()


def test_problems_are_counted_and_read_back(tmp_path):
    path = tmp_path / "met.csv"
    with log_shapes(path):
        assert shapes.logs
        for problem in (FIRST, SECOND, SECOND):
            count_call(problem)
    assert not shapes.logs
    count_call(FIRST)  # is not counted: the log is closed
    assert read_shapes(path) == [SECOND, FIRST]
    counts = [line.rpartition(",")[2] for line in path.read_text().splitlines()]
    assert counts == ["count", "2", "1"]


def test_counts_are_added_to_those_of_an_earlier_log(tmp_path):
    path = tmp_path / "met.csv"
    for listed in ([FIRST, SECOND, SECOND], [FIRST, FIRST, THIRD, THIRD], []):
        with log_shapes(path):
            for problem in listed:
                count_call(problem)
    assert read_shapes(path) == [FIRST, SECOND, THIRD]
    counts = [line.rpartition(",")[2] for line in path.read_text().splitlines()]
    assert counts == ["count", "3", "2", "2"]


def test_a_file_stays_as_it_is_where_nothing_was_counted(tmp_path):
    path = tmp_path / "met.csv"
    with log_shapes(path):
        count_call(FIRST)
    told = path.read_text().replace("\n", "\r\n")  # as a spreadsheet writes it
    path.write_bytes(told.encode())
    with log_shapes(path):
        pass
    assert path.read_bytes() == told.encode()
    with log_shapes(path):
        count_call(FIRST)
    assert path.read_text().endswith(",2\n")


@pytest.mark.parametrize("content", ["", "\n", ",".join([*shapes.COLUMNS, shapes.COUNT]) + "\n"])
def test_an_empty_file_is_written(content, tmp_path):
    path = tmp_path / "met.csv"
    path.write_text(content)
    with log_shapes(path):
        count_call(FIRST)
    assert read_shapes(path) == [FIRST]


def test_another_file_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in ("__global__ void mine() {}\n", "rows,cols\n3,5\n"):
        (tmp_path / "edited.cu").write_text(content)
        with pytest.raises(InvalidInput) as told:
            log_shapes("edited.cu")
        assert str(told.value) == (
            "edited.cu exists and is no file of explorer.log_shapes; name another file"
        )
        assert (tmp_path / "edited.cu").read_text() == content and not shapes.logs


@pytest.mark.parametrize("count", ["", "many", "-1", "1.5"])
def test_a_wrong_count_is_told_at_once(count, tmp_path):
    path = tmp_path / "met.csv"
    with log_shapes(path):
        count_call(FIRST)
    path.write_text(path.read_text().removesuffix("1\n") + f"{count}\n")
    with pytest.raises(InvalidInput, match=f"line 2: count is '{count}'; it must be a whole"):
        log_shapes(path)


def test_without_a_log_nothing_is_counted():
    assert not shapes.logs
    count_call(FIRST)


def test_a_log_is_closed_once(tmp_path):
    path = tmp_path / "met.csv"
    log = log_shapes(path)
    count_call(FIRST)
    log.close()
    path.write_text("the user's own")
    log.close()
    log.add(SECOND)
    assert path.read_text() == "the user's own"


def test_logs_that_are_open_at_once_count_each_from_its_beginning_on(tmp_path):
    first, second = log_shapes(tmp_path / "1.csv"), log_shapes(tmp_path / "2.csv")
    count_call(FIRST)
    first.close()
    assert shapes.logs
    count_call(SECOND)
    second.close()
    assert read_shapes(tmp_path / "1.csv") == [FIRST]
    assert sorted(read_shapes(tmp_path / "2.csv"), key=str) == sorted([FIRST, SECOND], key=str)


def test_calls_of_several_threads_are_all_counted(tmp_path):
    path = tmp_path / "met.csv"
    with log_shapes(path):
        threads = [
            threading.Thread(target=lambda: [count_call(FIRST) for _ in range(500)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert path.read_text().endswith(",2000\n")


def test_the_file_lies_where_it_was_named_though_the_program_moves(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    log = log_shapes("met.csv")
    monkeypatch.chdir(tmp_path / "elsewhere")
    log.close()
    assert (tmp_path / "met.csv").exists()


# ------------------------------------------------------------------ any problem


@st.composite
def problems_of_attention(draw, op):
    """Any problem of heads and keys."""
    group, heads = draw(st.integers(1, 8)), draw(st.integers(1, 1000))
    return Problem(
        group * heads * draw(st.integers(1, 1000)),
        draw(st.integers(1, MAX_COLS)),
        draw(st.sampled_from([dtype for dtype in DType if dtype is not DType.F64])),
        op,
        scale=draw(st.none() | st.floats(1e-37, 1e38)),
        mask=draw(st.sampled_from([Mask.NONE, Mask.LENGTHS])),
        also=draw(st.sampled_from(["", "lse"])),
        head_dim=draw(st.sampled_from([64, 128, 256])),
        group=group,
        key_heads=heads,
        layout=draw(st.sampled_from(Layout)),
    )


@st.composite
def problems(draw):
    """Any problem there is."""
    op = draw(st.sampled_from(Op))
    operator = OPERATORS[op]
    if operator.over is Extent.CACHE:
        return draw(problems_of_attention(op))
    has_ids = "ids" in operator.operands
    has_more = has_ids or "loss_grad" in operator.operands
    mask = Mask.NONE if operator.is_gradient or has_more else draw(st.sampled_from(Mask))
    inner = draw(st.sampled_from([1, 1, 4, 1000])) if mask is Mask.NONE and not has_more else 1
    cols = draw(st.integers(1, MAX_COLS))
    mask_rows = 0
    if mask in (Mask.CAUSAL, Mask.ADDITIVE):
        mask_rows = draw(st.integers(1, 1000))
    rows = max(1, mask_rows) * inner * draw(st.integers(1, MAX_ROWS // 10**6))
    dtype = draw(st.sampled_from(DType))
    others = [one for one in DType if (one is DType.F64) == (dtype is DType.F64)]
    problem = Problem(
        rows,
        cols,
        dtype,
        op,
        out_dtype=draw(st.sampled_from(others)),
        scale=draw(st.none() | st.just(0.0) | st.floats(1e-37, 1e38)),
        mask=mask,
        mask_rows=mask_rows,
        inner=inner,
        ids_dtype=draw(st.sampled_from(IndexType)) if has_ids else None,
        also=draw(st.sets(st.sampled_from(operator.on_request or [""])).map(",".join)),
    )
    if inner == 1:
        strides = st.integers(cols, MAX_STRIDE)
        problem = replace(problem, input_stride=draw(strides), output_stride=draw(strides))
    if has_ids:
        most = 1 if operator.options else cols
        counts = {"ids_per_row": draw(st.integers(1, most)), "ids_stride": MAX_STRIDE}
        problem = replace(problem, output_stride=problem.input_stride, **counts)
    if "ignore_index" in operator.options:
        problem = replace(problem, ignore_index=draw(st.integers(-(2**31), 2**31 - 1)))
    if problem.fills_rows and not operator.is_gradient and draw(st.booleans()):
        problem = replace(
            problem, out_dtype=dtype, output_stride=problem.input_stride, in_place=True
        )
    return problem


@given(st.lists(problems(), unique=True, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_field_of_every_problem_is_read_back(tmp_path_factory, listed):
    path = tmp_path_factory.mktemp("shapes") / "met.csv"
    with log_shapes(path):
        for problem in listed:
            count_call(problem)
    read = read_shapes(path)
    assert read == listed
    for problem, again in zip(listed, read, strict=True):
        for field in fields(Problem):
            ours, theirs = getattr(problem, field.name), getattr(again, field.name)
            assert ours == theirs and type(ours) is type(theirs), field.name


# ------------------------------------------------------------------ bad files


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, blocked / "met.csv", pipe, "/dev/null"):
        with pytest.raises(InvalidInput, match="cannot be written") as told:
            log_shapes(path)
        assert str(path) in str(told.value) and "\n" not in str(told.value)
    assert not shapes.logs


@pytest.mark.parametrize("path", [5, None, "", b"met.csv", []])
def test_what_is_no_path_is_told(path):
    with pytest.raises(InvalidInput) as told:
        log_shapes(path)
    assert str(told.value) == f"path is {path!r}; it must be the path of a CSV file"
    assert not shapes.logs


BROKEN = {
    "empty": (b"", "names no columns 'rows' and 'cols'"),
    "no table": (b"once upon a time\nthere was a kernel\n", "names no columns"),
    "binary": (b"\xff\xfe\0\1", "not text in UTF-8"),
    "zero bytes": (b"rows,cols\n\0,5\n", "met.csv"),
    "a first line alone": (
        b"rows,cols\n",
        "met.csv names no problem; give a line for each after the first",
    ),
    "no cols": (b"rows,dtype\n3,f32\n", "names no columns"),
    "a misspelled column": (b"rows,cols,dytpe\n3,5,bf16\n", "a column 'dytpe', which is not known"),
    "an empty cell": (b"rows,cols\n3,\n", "line 2: cols is missing"),
    "a short row": (b"rows,cols\n3,5\n3\n", "line 3: cols is missing"),
    "a word": (b"rows,cols\nmany,5\n", "line 2: rows is 'many'; it must be a whole number"),
    "none": (b"rows,cols\n0,5\n", "line 2: rows is '0'"),
    "a long number": (b"rows,cols\n" + b"9" * 5000 + b",5\n", "line 2: rows is"),
    "an unknown type": (b"rows,cols,dtype\n3,5,f8\n", "line 2: dtype 'f8' is not known"),
    "an unknown op": (b"rows,cols,op\n3,5,relu\n", "line 2: op 'relu' is not known"),
    "no flag": (
        b"rows,cols,in_place\n3,5,maybe\n",
        "in_place is 'maybe'; it must be True or False",
    ),
    "no scale": (b"rows,cols,scale\n3,5,nan\n", "scale is 'nan'"),
    "contradiction": (
        b"rows,cols,mask_rows\n3,5,1\n",
        "line 2: mask_rows is 1, but there is no mask",
    ),
    "strides": (b"rows,cols,input_stride\n3,5,4\n", "line 2: input_stride is 4"),
}


@pytest.mark.parametrize("content, told", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_told_in_a_sentence(content, told, tmp_path):
    path = tmp_path / "met.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as error:
        read_shapes(path)
    assert told in str(error.value) and str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file_a_folder_and_a_pipe_are_told(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidInput, match="cannot be read"):
            read_shapes(path)


def test_columns_of_a_users_own_are_passed_over(tmp_path):
    path = tmp_path / "met.csv"
    path.write_text("cols,rows,remark,dtype\n5,3,of the router,f16\n")
    assert read_shapes(path) == [Problem(3, 5, DType.F16)]


# ------------------------------------------------------------------ the end of a process


def run(code, *arguments):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout


def test_the_file_is_written_when_the_process_ends(tmp_path):
    path = tmp_path / "met.csv"
    run(
        """
        import sys
        import explorer
        from explorer.runtime.shapes import count_call
        explorer.log_shapes(sys.argv[1])
        count_call(explorer.Problem(3, 5))
        """,
        path,
    )
    assert read_shapes(path) == [Problem(3, 5)]


def test_a_forked_process_leaves_the_file_to_its_parent(tmp_path):
    path = tmp_path / "met.csv"
    run(
        """
        import os, sys
        import explorer
        from explorer.runtime import shapes
        log = explorer.log_shapes(sys.argv[1])
        shapes.count_call(explorer.Problem(3, 5))
        log._lock.acquire()  # as another thread may have at that moment
        child = os.fork()
        if not child:
            shapes.count_call(explorer.Problem(7, 7))
            assert not shapes.logs
            log._lock.release()
            log.close()
            sys.exit()
        log._lock.release()
        assert os.waitpid(child, 0)[1] == 0
        assert not os.path.exists(sys.argv[1])
        shapes.count_call(explorer.Problem(3, 5))
        """,
        path,
    )
    assert read_shapes(path) == [Problem(3, 5)]
    assert path.read_text().endswith(",2\n")
