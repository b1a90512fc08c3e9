"""The compiled function for calls on PyTorch's tensors: built once from `fast_call.c`, then loaded.

The user's C compiler builds it, because a C extension fits one version of Python and a wheel of
this package fits all. It takes a second, and the result stays in the cache folder.
"""

import hashlib
import json
import os
import shlex
import shutil
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from explorer.compile.built_libraries import Unavailable, built, load_kept

SOURCE = Path(__file__).with_name("fast_call.c")

FLAGS = ("-O2", "-shared", "-fPIC")

COMPILERS = ("cc", "gcc", "clang")
"""Compilers that are searched, in this order, if CC names none."""

LONGEST_S = 60.0
"""Seconds after which a compiler is stopped. It takes 0.5 s."""

NAME = "_fast_call"
"""The module's name, which is part of the name of its first function: PyInit__fast_call."""


def load() -> ModuleType:
    """Return the module, built unless the cache folder has it. Raises Unavailable."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unavailable("this Python is free-threaded, and the function relies on the GIL")
    command, include = compiler(), sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").is_file():
        raise Unavailable(f"{include} has no Python.h; install Python's headers")
    return load_kept(_key(command, include), lambda: build(command, include), _loaded)


def compiler() -> tuple[str, ...]:
    """Return the command of the user's C compiler, with its path. Raises Unavailable."""
    named = shlex.split(os.environ.get("CC", ""))
    for name in [named[0]] if named else COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return (path, *named[1:])
    raise Unavailable(
        f"no C compiler is found: {' or '.join(named[:1] or COMPILERS)}; install one, or name it "
        "in the environment variable CC"
    )


def build(command: tuple[str, ...], include: str) -> bytes:
    """Return the shared library that a compiler builds from the source. Raises Unavailable."""
    return built([*command, *FLAGS, f"-I{include}", str(SOURCE)], LONGEST_S)


def _key(command: tuple[str, ...], include: str) -> str:
    """Return a digest of everything that decides the library, with the compiler's size and time."""
    stat = Path(command[0]).stat()
    parts = [
        hashlib.sha256(SOURCE.read_bytes()).hexdigest(),
        sysconfig.get_config_var("SOABI"),
        sysconfig.get_python_version(),
        include,
        command,
        (stat.st_size, stat.st_mtime_ns),
        FLAGS,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _loaded(path: Path, named: Path) -> ModuleType:
    """Load a library as a module whose file is `named`. Raises ImportError."""
    loader = ExtensionFileLoader(NAME, str(path))
    spec = spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    module.__file__ = spec.origin = str(named)
    return module
