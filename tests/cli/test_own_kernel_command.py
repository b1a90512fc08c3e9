"""A CUDA file of a person's own on the command line: what is read, asked for, named, and shown."""

import json
import shutil
from pathlib import Path

import pytest
from test_time_command import gpu  # noqa: F401  a fixture

FOLDER = Path(__file__).resolve().parents[1] / "own_kernels"
ALL = ("--args", "input,output,rows,cols")
KERNELS = (
    "thread_per_row, block_tree, warp_per_row, vectors_and_tail, online, row_in_shared, "
    "lesson::registers_of_a_warp, striding, scaled, talkative"
)


@pytest.fixture
def mine(explorer, tmp_path):
    """Return the files, where commands are run."""
    for path in FOLDER.glob("*.cu"):
        shutil.copy(path, tmp_path)
    return tmp_path


BAD = {
    "verify right.cu": "right.cu has no 'explorer emit' line in its header comment, so that it is "
    "taken for a kernel of your own, and its columns are missing: give --cols 1000",
    "verify right.cu --cols 64": f"right.cu has several kernels, {KERNELS}: name one by "
    "--kernel; a softmax that takes several launches cannot be checked as one",
    "verify right.cu --cols 64 --kernel onlin": f"right.cu has no kernel 'onlin'; it has "
    f"{KERNELS}; the nearest is online",
    "verify right.cu --cols 64 --kernel online,talkative": "kernel is 'online,talkative'; one "
    "kernel in one launch is checked, and a softmax that takes several launches cannot be: name "
    "one",
    "verify right.cu:online --cols 64 --kernel online": "the kernel is said twice: online and "
    "--kernel online; give one",
    "verify right.cu:registers_of_a_warp --cols 64": "lesson::registers_of_a_warp is a template of "
    "T, COLS, and right.cu does not say what COLS is: write --kernel "
    "'lesson::registers_of_a_warp<T, COLS>' with a type or a number for each",
    "diff right.cu:online right.cu:online --cols 64 --block 1 --block 2 --block 3": "--block is "
    "given 3 times, for 2 files: give it once for all, or once for each",
    "verify right.cu:online --cols 64 --block 1 --block 2": "--block is given 2 times, for 1 file: "
    "give it once",
    "verify published.cu:warp_state --cols 64 --block 64": "what published.cu passes to "
    "warp_state(const float* x, float* y, int M, int N) cannot be read from the names of its "
    "parameters (input,output,?,?): say it in their order by --args, such as --args "
    "input,output,rows,cols",
    "verify right.cu:online --cols 64 --args input,output": "args are input,output, 2 of them, and "
    "online(const float* x, float* y, int rows, int cols) takes 4: give one for each, in order",
    "verify right.cu:online --cols 64 --args output,rows,input,cols": "args pass output "
    "for const float* x of online, through which nothing is written: name what it reads, such as "
    "input",
    "verify right.cu:online --cols 64 --args input,rows,output,cols": "args pass rows, a number, "
    "for float* y of online: name an array there",
    "verify right.cu:online --cols 64 --args input,output,input,cols": "args pass input, an array, "
    "for int rows of online: name a number there, such as cols",
    "verify right.cu:online --cols 64 --args input,output,rows,width": "args name width, which is "
    "no operand: there are input, output, rows, cols, mask_rows, input_stride, output_stride, "
    "ids_stride, numbers such as 1.0f, and expressions such as cols/4",
    "verify right.cu:online --cols 64 --block 2000": "block is 2000; a block has 1 to 1024 "
    "threads: take fewer, and let each thread have several columns",
    "verify right.cu:online --cols 64 --block 32,8": "block is 32,8; blocks of two dimensions are "
    "not served: make it one of 32 * 8 threads, with threadIdx.x / 32 and threadIdx.x % 32",
    "verify right.cu:online --cols 64 --block many": "block is 'many'; write its threads, such as "
    "256",
    "verify published.cu:fused --cols 64": "published.cu does not launch fused, so that its "
    "threads are not known: give --block 256, its threads, and --grid '(rows + 7) / 8' if a block "
    "works on 8 rows",
    "verify right.cu:online --cols 64 --grid rows/8": "grid is rows/8, which is 0 for 1 row: write "
    "it so that the last rows have a block, too, such as (rows + 7) / 8",
    "verify right.cu:online --cols 64 --grid M": "grid is 'M', which cannot be evaluated: write it "
    "in rows, cols, whole numbers, + - * / %, min and max, such as (rows + 7) / 8",
    "verify right.cu:online --cols 64 --shared cols*40000": "the launch of online<<<rows, 256, "
    "cols*40000>>>(input, output, rows, cols): shared is 2560000 at rows = 524288, cols = 64; CUDA "
    "allows 0 to 232448 bytes of shared memory a block: mend that, or ask for fewer --cols",
    "verify right.cu:online --cols 64 --dtype bf16": "const float* x of online points to float, "
    "and input has elements of __nv_bfloat16: give the kernel's "
    "--dtype, and --out-dtype for its output",
    "verify right.cu:online --cols 65 --cols-multiple 4": "cols is 65, and --cols-multiple 4 says "
    "that the kernel is for multiples of that: give --cols 68",
    "verify right.cu:online --cols 64 --op decode_attention": "a kernel of one's own is checked "
    "over the rows of a matrix, not for attention: leave --axis and --inner out, and give another "
    "--op",
    "verify right.cu:online --cols 64 --objectives time,error": "--objectives says nothing of a "
    "kernel of your own; leave it out",
    "verify shared-tree --cols 1000 --block 64": "--block says how a kernel of your own is "
    "launched, and shared-tree is no file: leave it out",
    "verify --sample 2 --cols 64 --grid rows": "--grid says how a kernel of your own is launched, "
    "and --all and --sample check emitted kernels: leave it out",
    "profile shared-tree --cols 1000 --args input": "--args says how a kernel of your own is "
    "launched, and shared-tree is no file: leave it out",
    "diff shared-tree heuristic --cols 1000 --kernel a": "--kernel says how a kernel of your own "
    "is launched, and neither of the two is a file: leave it out",
    "time right.cu:online --cols 64": "a time needs a GPU, and there is none: no NVIDIA driver "
    "(libcuda.so.1 is not found); explorer profile counts what the kernel does without one, and "
    "this checks it: explorer verify right.cu",
}


@pytest.mark.parametrize("command", BAD)
def test_what_cannot_be_used_is_one_sentence(explorer, mine, command):
    ran = explorer(*command.split(" "))
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {BAD[command]}\n")


HOST = "int main() { return 0; }"
SOURCES = {
    HOST: "has no kernel, which is a function that begins with __global__ void: name a file with "
    "one",
    "#include <torch/extension.h>\n__global__ void k(float* x) {}": ", line 1, includes "
    "torch/extension.h, and PyTorch's headers cannot be compiled here: put the kernel into a file "
    "without them",
    '#include "common.h"\n__global__ void k(float* x) {}': ", line 1, includes 'common.h', which "
    "is no header of CUDA's: put what the kernel needs of it into the file",
    "#ifdef __CUDACC_RTC__\n#endif\n__global__ void k(float* x) {}": ", line 1, asks for "
    "__CUDACC_RTC__, so that nvcc may compile another kernel than the one that is checked: take "
    "the condition out",
    "__global__ void k(float* input, float* output)\n{ output[threadIdx.y] = 0; }": ", line 2, "
    "uses threadIdx.y: blocks and grids of two dimensions are not served; make them one, with "
    "threadIdx.x / 32 and threadIdx.x % 32 for a block of 32 x 8",
    "__global__ void __cluster_dims__(2) k(float* input, float* output) {}": ", line 1, launches "
    "clusters of blocks, which is served for emitted kernels alone",
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_not_served_is_named_with_its_line(explorer, tmp_path, source):
    (tmp_path / "mine.cu").write_text(source)
    ran = explorer("verify", "mine.cu", "--cols", "64", "--block", "64")
    joint = "" if SOURCES[source].startswith(",") else " "
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"error: mine.cu{joint}{SOURCES[source]}\n"


def test_a_right_kernel_is_told_with_its_launch(explorer, mine):
    ran = explorer("verify", "right.cu:online", "--cols", "36", "--seed", "0")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(
        "softmax f32, 36 columns: online<<<rows, 256>>>(input, output, rows, cols)\n"
    )
    assert "other sizes of 1 to 35 columns: verified" in ran.out or "to 36 columns" in ran.out
    assert "not tried above 36 columns" in " ".join(ran.out.split())
    data = json.loads(
        explorer("verify", "right.cu:online", "--cols", "36", "--seed", "0", "--json").out
    )
    (program,) = data["programs"]
    assert program["launch"] == "online<<<rows, 256>>>(input, output, rows, cols)"
    assert "config" not in program and program["hint"] is None


def test_a_mistake_is_told_with_what_it_looks_like_and_its_lines(explorer, mine):
    ran = explorer("verify", "wrong.cu:identity_of_max", "--cols", "36")
    assert ran.code == 1
    assert "its identity is -INFINITY" in " ".join(ran.out.split())
    assert "see wrong.cu:23: float greatest = 0;  // here" in ran.out


def test_the_type_of_elements_is_read_and_printf_is_left_out(explorer, mine):
    ran = explorer("profile", "right.cu:row_in_shared", "--cols", "64", "--grid", "rows")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("softmax f16 1048576x64: row_in_shared<<<rows, 64, cols * sizeof")
    ran = explorer("verify", "right.cu:talkative", "--cols", "8")
    assert ran.code == 0 and "its calls of printf were left out" in ran.out


@pytest.mark.exhaustive
def test_two_kernels_of_one_file_stand_side_by_side(explorer, mine):
    words = ("diff", "right.cu:online", "right.cu:block_tree", "--cols", "64", *ALL)
    data = json.loads(explorer(*words, "--json", "--show", "none").out)
    assert data["a"]["launch"].startswith("online<<<rows, 256>>>")
    assert data["b"]["launch"].startswith("block_tree<<<rows, 128, 128 * sizeof(float)>>>")
    assert data["config"] is None and data["times"] is None
    assert data["a"]["digest"] != data["b"]["digest"]
    loads = [data[side]["counted"]["global_bytes_per_element"] for side in ("a", "b")]
    assert loads == [12.0, 20.0]
    ran = explorer("diff", "right.cu:online", "thread-per-row", "--cols", "64", "--show", "none")
    assert ran.code == 0 and "time     not known of a file" in ran.out
    assert "Config:" not in ran.out


def test_it_is_timed_as_an_emitted_file_is(explorer, mine, gpu):  # noqa: F811
    ran = explorer("time", "right.cu:online", "--cols", "64", "--rows", "128")
    assert ran.code == 0, ran.err
    assert "online<<<rows, 256>>>(input, output, rows, cols)" in ran.out
    assert "10.00 ± 0.03 µs" in ran.out
    problem, device, timing, _ = gpu.asked
    assert (problem.rows, problem.cols, device, timing) == (128, 64, 0, "cold")
