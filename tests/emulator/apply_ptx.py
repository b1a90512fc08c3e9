"""One PTX instruction applied to arrays: a kernel around it, run on the emulator."""

import numpy as np

from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import GlobalMemory
from explorer.ptx_emulator.parser import parse
from explorer.ptx_emulator.program import DTYPES

MEMORY_TYPE = {
    "f16": "b16",
    "bf16": "b16",
    "f16x2": "b32",
    "bf16x2": "b32",
    "f32x2": "b64",
    "pred": "u32",
}


def _load(number, ptx_type):
    memory = MEMORY_TYPE.get(ptx_type, ptx_type)
    size = DTYPES[memory].itemsize
    register = "b16" if size == 1 else f"b{8 * size}"
    lines = [
        f".reg .{register} %in{number}; .reg .u64 %a{number}, %o{number};",
        f"ld.param.u64 %a{number}, [p{number}];",
        f"mul.wide.u32 %o{number}, %t, {size};",
        f"add.s64 %a{number}, %a{number}, %o{number};",
        f"ld.global.{memory} %in{number}, [%a{number}];",
    ]
    if ptx_type == "pred":
        lines += [f".reg .pred %q{number};", f"setp.ne.u32 %q{number}, %in{number}, 0;"]
    return "\n".join(lines)


def apply(instruction, output_type, *inputs):
    """`instruction` names {d} and {a}, {b}, {c}; `inputs` are (PTX type, array) pairs."""
    names = {}
    for number, (ptx_type, _) in enumerate(inputs):
        names["abcd"[number] if number < 3 else "e"] = (
            f"%{'q' if ptx_type == 'pred' else 'in'}{number}"
        )
    memory_type = MEMORY_TYPE.get(output_type, output_type)
    size = DTYPES[memory_type].itemsize
    register = "b16" if size == 1 else f"b{8 * size}"
    result = "%dp" if output_type == "pred" else "%d"
    last = len(inputs)
    params = ", ".join(f".param .u64 p{n}" for n in range(last + 1))
    text = f""".version 8.5
.target sm_90
.address_size 64
.visible .entry k({params}) {{
.reg .u32 %t, %bt, %nt; .reg .{register} %d; .reg .pred %dp; .reg .u64 %r, %ro;
mov.u32 %t, %tid.x;
mov.u32 %bt, %ctaid.x;
mov.u32 %nt, %ntid.x;
mad.lo.u32 %t, %bt, %nt, %t;
{chr(10).join(_load(n, ptx_type) for n, (ptx_type, _) in enumerate(inputs))}
{instruction.format(d=result, **names)};
{"selp.u32 %d, 1, 0, %dp;" if output_type == "pred" else ""}
ld.param.u64 %r, [p{last}];
mul.wide.u32 %ro, %t, {size};
add.s64 %r, %r, %ro;
st.global.{memory_type} [%r], %d;
ret; }}"""
    return _run(text, output_type, [array for _, array in inputs])


def _run(text, output_type, arrays):
    count = len(arrays[0])
    padded = -(-count // 32) * 32
    memory = GlobalMemory()
    args = []
    for number, array in enumerate(arrays):
        full = np.zeros(padded, array.dtype)
        full[:count] = array
        args.append(memory.allocate(full, name=f"in{number}", writable=False))
    dtype = np.dtype(np.uint32) if output_type == "pred" else DTYPES[output_type]
    out = memory.allocate(np.zeros(padded, dtype), name="out")
    grid = (padded // 32, 1, 1)
    result = launch(parse(text), "k", grid=grid, block=(32, 1, 1), args=[*args, out], memory=memory)
    assert not result.findings, [str(f) for f in result.findings]
    return memory.read(out)[:count]
