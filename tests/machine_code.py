"""The machine code of recorded kernels: what was measured stays current while only texts change.

    python -m tests.machine_code

compiles a few kernels of each recording and compares their machine code with what is kept of it. If
all is the same, it writes the digests of today's texts into the recordings. The templates' digest
then goes into `SAME_CODE` of `explorer/evaluate/space_version.py`, and the space's into `GROWN`.
"""

import hashlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler, nvrtc_version
from explorer.compile.resources import cubin_sections, read_cubin
from explorer.devices.recording import Recording, list_recordings, load_recording, write_recording
from explorer.model.config import Config

FILE = Path(__file__).with_suffix(".json")
KERNELS = 12
"""How many of each recording are compiled."""


def digest_of(cubin: bytes) -> str:
    """Return a digest of a cubin's instructions, constants and resources, without any name."""
    digest = hashlib.sha256(repr(read_cubin(cubin)).encode())
    for name, data, _ in sorted(cubin_sections(cubin)):
        if name.startswith((".text.", ".nv.constant")):
            digest.update(data)
    return digest.hexdigest()[:16]


def machine_code(recording: Recording, configs: list[Config]) -> dict[str, str]:
    """Return the digests of the machine code of some of a recording's kernels, by config."""
    compiler = Compiler(recording.header.gpu.arch)
    sources = {c.to_json(brief=True): emit(recording.header.problem, c).source for c in configs}
    return {name: digest_of(compiler.compile(text).cubin) for name, text in sources.items()}


def kept() -> dict[str, dict[str, str]]:
    """Return what is kept, by recording and config, or nothing for another NVRTC."""
    data = json.loads(FILE.read_text())
    return data["kernels"] if data["nvrtc"] == nvrtc_version() else {}


def of_today(recording: Recording) -> Recording:
    """Return the recording with the digests of the texts that are emitted today."""
    problem = recording.header.problem
    new = {k.digest: emit(problem, k.config).digest for k in recording.kernels}
    comparison = recording.comparison
    if comparison is not None:
        comparison = replace(comparison, digests=tuple(new[d] for d in comparison.digests))
    kernels = tuple(replace(k, digest=new[k.digest]) for k in recording.kernels)
    return replace(recording, kernels=kernels, comparison=comparison)


def main() -> int:
    """Compare, and write recordings; or, with the word `keep`, keep what is emitted today."""
    shipped = [f for f in list_recordings() if f.name.startswith(("h100-", "h200-"))]
    recordings = {file.name: load_recording(file.name) for file in shipped}
    if sys.argv[1:] == ["keep"]:
        drawn = {n: random.Random(2).sample(r.kernels, KERNELS) for n, r in recordings.items()}
        code = {n: machine_code(r, [k.config for k in drawn[n]]) for n, r in recordings.items()}
        FILE.write_text(json.dumps({"nvrtc": nvrtc_version(), "kernels": code}, indent=1) + "\n")
        return 0
    for name, kernels in kept().items():
        configs = [Config.from_json(text) for text in kernels]
        if machine_code(recordings[name], configs) != kernels:
            print(f"the kernels of {name} have other machine code: measure them again")
            return 1
    for file in shipped:
        write_recording(of_today(recordings[file.name]), file.path)
    print(f"{len(shipped)} recordings have the digests of today's texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
