"""What calls of explorer's functions cost, beside PyTorch's own, on the GPU of this machine.

    python -m tests.runtime_costs [OUT.json]

Host times are medians of batches of calls on a small tensor, whose kernel takes less than the host;
GPU times are of CUDA graphs of calls that rotate over buffers of four times the L2, in turn.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import product
from pathlib import Path
from statistics import median

import torch

import explorer
from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.ops import Op
from explorer.runtime import functions, torch_fast_calls, torch_override
from explorer.runtime.kernels import ReadyKernel, alignment
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import Call
from explorer.runtime.torch_calls import TENSORS

SMALL = (32, 512)
BATCH, BATCHES, ROUNDS = 500, 30, 9

SHAPES = {
    "8192 x 4096 f32": ((8192, 4096), torch.float32),
    "32768 x 1024 f32": ((32768, 1024), torch.float32),
    "16384 x 4096 bf16": ((16384, 4096), torch.bfloat16),
    "8192 x 4097 bf16": ((8192, 4097), torch.bfloat16),
    "2048 x 50257 bf16": ((2048, 50257), torch.bfloat16),
    "512 x 131072 f32": ((512, 131072), torch.float32),
    "65536 x 128 bf16": ((65536, 128), torch.bfloat16),
    "1 x 1048576 f32": ((1, 1048576), torch.float32),
}


def host_us(call, batches=BATCHES):
    """Median microseconds of the host a call, over batches; the GPU is idle before each."""
    for _ in range(BATCH):
        call()
    times = []
    for _ in range(batches):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter() - begin) / BATCH * 1e6)
    torch.cuda.synchronize()
    return median(times)


def host_times():
    x = torch.randn(SMALL, device="cuda")
    out = torch.empty_like(x)
    wanting = x.clone().requires_grad_()
    with torch.no_grad():
        times = {
            "torch.softmax": host_us(lambda: torch.softmax(x, -1)),
            "torch.softmax, out=": host_us(lambda: torch.softmax(x, -1, out=out)),
            "explorer.softmax": host_us(lambda: explorer.softmax(x)),
            "explorer.softmax, out=": host_us(lambda: explorer.softmax(x, out=out)),
            "torch.empty_like": host_us(lambda: torch.empty_like(x)),
            "plan alone": host_us(plan_alone(x, out)),
        }
    times["torch.softmax, x requires a gradient"] = host_us(lambda: torch.softmax(wanting, -1))
    times["explorer.softmax, x requires a gradient"] = host_us(lambda: explorer.softmax(wanting))
    with explorer.register_torch(), torch.no_grad():
        for name, is_compiled in (("ours", True), ("PyTorch's", False)):
            explorer.set_options(compiled_calls=is_compiled)
            times[f"torch.softmax, registered, {name}"] = host_us(lambda: torch.softmax(x, -1))
    explorer.set_options(compiled_calls=True)
    y, grad = torch.softmax(x, -1), torch.randn_like(x)
    gradient = functools.partial(torch._softmax_backward_data, grad, y, -1, x.dtype)
    times["gradient, PyTorch's"] = host_us(gradient)
    with explorer.register_torch():
        times["gradient, registered, PyTorch's"] = host_us(gradient)
    return times


def compiled_calls():
    """Host times of Python's calls and of compiled ones, beside PyTorch's, measured in turn."""
    explorer.set_options(compiled_calls=True)
    if functions.compiled is None:
        return {"there are none": torch_fast_calls._reason}
    torch_fast_calls._library.forget()
    x = torch.randn(SMALL, device="cuda")
    out, compiled = torch.empty_like(x), functions.compiled
    calls = {
        "out=": (lambda: torch.softmax(x, -1, out=out), lambda: explorer.softmax(x, out=out)),
        "a new output": (lambda: torch.softmax(x, -1), lambda: explorer.softmax(x)),
        "out= and a scale": (
            lambda: torch.softmax(x * 0.125, -1, out=out),
            lambda: explorer.softmax(x, scale=0.125, out=out),
        ),
    }
    times = {name: {"torch": [], "python": [], "compiled": []} for name in calls}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, (theirs, ours) in calls.items():
                times[name]["torch"].append(host_us(theirs, 3))
                for path, function in (("python", None), ("compiled", compiled)):
                    functions.compiled = function
                    times[name][path].append(host_us(ours, 3))
        served = torch_fast_calls._library.size()
        assert served == len(calls), f"the table has {served} launches"
        results = {
            name: {path: median(samples) for path, samples in paths.items()}
            for name, paths in times.items()
        }
        results["10^5 calls"] = many_calls()
    return results


def empty_operator():
    """An operator of torch.library that does nothing but to allocate its result."""
    library = torch.library.Library("explorer_costs", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    library.impl("nothing", lambda x: torch.empty_like(x), "CUDA")
    torch.library.register_fake("explorer_costs::nothing", torch.empty_like, lib=library)
    return library


def under_torch_compile():
    """Host times of what `torch.compile` makes of a call, in turn with an operator that is empty.

    The code that it generates calls explorer's functions directly; `python` is with the option
    compiled_calls off. `beyond an empty operator` are medians of the differences of each round.
    """
    library = empty_operator()
    x = torch.randn(SMALL, device="cuda")
    half = x.bfloat16()
    calls = {
        "compiled": (True, lambda x: explorer.softmax(x)),
        "python": (False, lambda x: explorer.softmax(x)),
        "empty": (True, lambda x: torch.ops.explorer_costs.nothing(x)),
        "inductor": (True, lambda x: torch.softmax(x, -1)),
    }
    results = {"has compiled calls": False}
    for name, tensor in (("f32", x), ("bf16", half)):
        torch._dynamo.reset()
        times = {path: [] for path in calls}
        generated_anew = torch._inductor.config.patch(force_disable_caches=True)
        with generated_anew, torch.no_grad():
            made = {path: torch.compile(call, fullgraph=True) for path, (_, call) in calls.items()}
            for _ in range(ROUNDS):
                for path, (is_on, _) in calls.items():
                    explorer.set_options(compiled_calls=is_on)
                    results["has compiled calls"] |= functions.compiled is not None
                    times[path].append(host_us(functools.partial(made[path], tensor), 3))
        explorer.set_options(compiled_calls=True)
        results[name] = {path: median(samples) for path, samples in times.items()}
        results[name]["beyond an empty operator"] = {
            path: median(ours - empty for ours, empty in zip(samples, times["empty"], strict=True))
            for path, samples in times.items()
        }
    del library
    return results


def plan_alone(x, out):
    """The launch, without looking at the tensors."""
    plan = TENSORS.recipe(Call(Op.SOFTMAX, -1), x, out).plan
    stream, source, output = torch.cuda.current_stream().cuda_stream, x.data_ptr(), out.data_ptr()
    return lambda: plan.launch(stream, source, output)


def graph_of(call, sets):
    """A CUDA graph of a call on each set of buffers."""
    for buffers in sets:
        call(*buffers)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for buffers in sets:
            call(*buffers)
    return graph


def in_turn(graphs, launches, rounds=25):
    """Median microseconds a launch of each graph, replayed in turn."""
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / launches)
    return {name: median(samples) for name, samples in times.items()}


def gpu_times():
    properties = torch.cuda.get_device_properties(0)
    results = {}
    for name, (shape, dtype) in SHAPES.items():
        x = torch.randn(shape, device="cuda").to(dtype)
        number = max(2, -(-4 * properties.L2_cache_size // (2 * x.nbytes)))
        sets = [(x.clone(), torch.empty_like(x)) for _ in range(number)]
        plan = TENSORS.recipe(Call(Op.SOFTMAX, -1), x, sets[0][1]).plan

        def alone(source, output, plan=plan):
            stream = torch.cuda.current_stream().cuda_stream
            plan.launch(stream, source.data_ptr(), output.data_ptr(), **scratch_of(plan))

        problem, device = plan._loaded.problem, plan._loaded.gpu
        config = config_for(problem, device.spec)
        before = Plan(device.load(problem, compiled_alone(problem, config, device.spec.arch)))
        graphs = {
            "in order": graph_of(functools.partial(alone, plan=before), sets),
            "function": graph_of(lambda x, y: explorer.softmax(x, out=y), sets),
            "kernel": graph_of(alone, sets),
            "torch": graph_of(lambda x, y: torch.softmax(x, -1, out=y), sets),
            "copy": graph_of(lambda x, y: y.copy_(x), sets),
        }
        results[name] = in_turn(graphs, number)
    return results


def compiled_alone(problem, config, arch):
    """The kernel whose launch begins when the one before it has ended."""
    variant = emit(problem, config)
    cubin = Compiler(arch).compile(variant.source).cubin
    return ReadyKernel(cubin, variant.launches, variant.scratch_bytes, alignment(problem, config))


_scratch = {}


def scratch_of(plan):
    """The memory that a plan's launches share, kept for its graph."""
    size = plan.kernel.scratch_bytes
    if size and plan not in _scratch:
        _scratch[plan] = torch.empty(size, dtype=torch.uint8, device="cuda")
    return {"scratch": _scratch[plan].data_ptr()} if size else {}


# ------------------------------------------------------------------ whole uses


def attention():
    scores = torch.randn(4, 16, 2048, 2048, device="cuda", dtype=torch.bfloat16)
    hidden = ~torch.ones(2048, 2048, device="cuda", dtype=torch.bool).tril()
    return lambda: torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)


def attention_by_its_mask():
    """The same through explorer's own mask, which reads the scores once."""
    scores = torch.randn(4, 16, 2048, 2048, device="cuda", dtype=torch.bfloat16)
    return lambda: explorer.softmax(scores, mask="causal")


def vocabulary():
    x = torch.randn(1024, 151936, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(x)

    def step():
        x.grad = None
        torch.log_softmax(x, -1).backward(grad)

    return step


def router():
    logits = torch.randn(65536, 128, device="cuda", dtype=torch.float32)
    return lambda: torch.softmax(logits, -1)


def event_us(call, number=30):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / number


def whole_uses():
    results = {}
    for make in (attention, vocabulary, router):
        call = make()
        results[make.__name__] = dict(
            zip(("torch", "registered"), torch_and_registered(call, 30), strict=True)
        )
        del call
        torch.cuda.empty_cache()
    own = attention_by_its_mask()
    results["attention"]["explorer.softmax, mask='causal'"] = median(
        event_us(own) for _ in range(9)
    )
    return results


# ------------------------------------------------------------------ where register_torch takes over


ROWS_OF_SMALL = (1, 4, 16, 64, 256, 1024)
KIB_OF_SMALL = (16, 32, 64, 128, 256, 512, 1024, 2048)


def small_tensors():
    """Microseconds a call for small tensors and for their gradients, as `[torch, ours]`.

    The calls are made in a loop, so that the time is the host's or the GPU's, whichever is longer.
    The tensors are smaller and larger than the least one that register_torch takes over.
    """
    torch_override.LEAST_BYTES, least = 0, torch_override.LEAST_BYTES
    results = {}
    for dtype, kib, rows in product((torch.float32, torch.bfloat16), KIB_OF_SMALL, ROWS_OF_SMALL):
        x = torch.randn(rows, kib * 1024 // (rows * dtype.itemsize), device="cuda").to(dtype)
        y = torch.softmax(x, -1)
        calls = {
            "softmax": functools.partial(torch.softmax, x, -1),
            "gradient": functools.partial(torch._softmax_backward_data, x, y, -1, dtype),
        }
        for name, call in calls.items():
            shape = f"{rows} x {x.shape[1]} {dtype}".replace("torch.", "")
            results[f"{name}, {shape}"] = torch_and_registered(call, 100)
    torch_override.LEAST_BYTES = least
    return results


def torch_and_registered(call, number, rounds=9):
    """Median microseconds a call of PyTorch's own function, and of ours behind it, in turn."""
    times = [], []
    with explorer.register_torch():
        call()  # its kernel is found or compiled
    for _ in range(rounds):
        times[0].append(event_us(call, number))
        with explorer.register_torch():
            times[1].append(event_us(call, number))
    return [round(median(samples), 2) for samples in times]


def language_model():
    """Milliseconds to train GPT-2's smallest size for a step: 12 layers, 4 x 1024 tokens, bf16."""
    from tests.language_models import loss_and_gradients, model_of

    sizes = {"vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12}
    model = model_of("gpt2", "cuda", num_attention_heads=12, **sizes).to(torch.bfloat16)
    tokens = torch.randint(0, 50257, (4, 1024), device="cuda")

    def step():
        return loss_and_gradients(model, tokens)[0].item()

    times, losses = {"torch": [], "registered": []}, {}
    with explorer.register_torch():
        step()  # its kernels are found or compiled
    for _ in range(9):
        losses["torch"] = step()
        times["torch"].append(event_us(step, 2) * 1e-3)
        with explorer.register_torch():
            losses["registered"] = step()
            times["registered"].append(event_us(step, 2) * 1e-3)
    return {"ms": {name: median(samples) for name, samples in times.items()}, "loss": losses}


FIRST = """
import time, torch
torch.zeros(1, device="cuda"); x = torch.randn(4096, 4096, device="cuda"); torch.cuda.synchronize()
begin = time.perf_counter()
import explorer
import explorer.compile.compiler as compiler
def never(*_): raise SystemExit("compiled")
compiler.compile_source = never
y = explorer.softmax(x); torch.cuda.synchronize()
taken = time.perf_counter() - begin
import explorer.runtime.service as service
print(len(service.service._loaded), taken * 1e3)
"""


def first_result_ms():
    """Milliseconds to the first result in a new process, after the kernel was made by another."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "EXPLORER_CACHE_DIR": folder}
        warm = "import explorer, torch; explorer.set_options(wait=True); "
        warm += "explorer.softmax(torch.randn(4096, 4096, device='cuda'))"
        subprocess.run([sys.executable, "-c", warm], env=env, check=True)
        times = []
        for _ in range(3):
            ran = subprocess.run(
                [sys.executable, "-c", FIRST], env=env, check=True, capture_output=True, text=True
            )
            served, taken = ran.stdout.split()
            assert served == "1", ran.stdout
            times.append(float(taken))
    return times


def many_calls():
    """Same bits over replays and threads; what memory grows by from 10^5 calls to as many more."""
    x = torch.randn(256, 1000, device="cuda")
    expected = explorer.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = explorer.softmax(x)
    for _ in range(1000):
        graph.replay()
    torch.cuda.synchronize()
    replays_equal = torch.equal(captured, expected)
    streams = [torch.cuda.Stream() for _ in range(8)]
    differ = in_threads(streams)
    free, resident = torch.cuda.mem_get_info()[0], resident_mb()
    begin = time.perf_counter()
    differ += in_threads(streams)
    return {
        "replays equal": replays_equal,
        "threads that differ": differ,
        "seconds for 10^5 calls": time.perf_counter() - begin,
        "device bytes grown": free - torch.cuda.mem_get_info()[0],
        "host MB grown": resident_mb() - resident,
    }


def in_threads(streams):
    """Call 10^5 times from as many threads as streams; return those whose bits differed."""
    differ = []

    def work(number, stream):
        with torch.cuda.stream(stream), torch.no_grad():
            own = torch.randn(200 + number, 1000, device="cuda")
            truth = explorer.softmax(own)
            for call in range(100_000 // len(streams)):
                y = explorer.softmax(own)
                if call % 500 == 0 and not torch.equal(y, truth):
                    differ.append(number)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return differ


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main():
    explorer.set_options(wait=True, compiled_calls=True)  # which builds the function now
    results = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    results["date"] = time.strftime("%Y-%m-%d")
    parts = [first_result_ms, host_times, compiled_calls, under_torch_compile]
    parts += [gpu_times, whole_uses, small_tensors, many_calls]
    if importlib.util.find_spec("transformers") is not None:
        parts.append(language_model)
    for part in parts:
        begin = time.perf_counter()
        results[part.__name__] = part()
        print(part.__name__, f"({time.perf_counter() - begin:.0f} s)")
        print(json.dumps(results[part.__name__], indent=1), flush=True)
        if len(sys.argv) > 1:  # after each part, so that a run that is stopped leaves some
            Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
