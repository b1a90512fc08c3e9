"""The compiled function's library: built once, kept whole, never loaded where it is not ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

from explorer.compile import built_libraries
from explorer.compile.built_libraries import Unavailable
from explorer.runtime import fast_call
from explorer.runtime.fast_call import build, compiler, load

INCLUDE = sysconfig.get_paths()["include"]

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, fast_call.COMPILERS)) or not (Path(INCLUDE) / "Python.h").is_file(),
    reason="needs a C compiler and Python's headers",
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache folder that is this test's own."""
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def library():
    """The bytes of a library, built once for these tests."""
    return build(compiler(), INCLUDE)


@pytest.fixture
def builds(library, monkeypatch):
    """Build by giving out the same bytes; the list has a word for each time."""
    done = []

    def quick(command, include):
        done.append(command[0])
        return library

    monkeypatch.setattr(fast_call, "build", quick)
    return done


def stored(folder, monkeypatch):
    """Build the library and return its file; it is not loaded, since tests write into it."""
    with monkeypatch.context() as patch:
        patch.setattr(fast_call, "_loaded", lambda path, named: None)
        load()
    return kept(folder)


def kept(folder):
    """The one library in the cache."""
    (path,) = (folder / "calls").rglob("*.so")
    return path


# ------------------------------------------------------------------ built once


@needs_compiler
def test_the_source_compiles_without_a_warning(library):
    strict = (*compiler(), "-Wall", "-Wextra", "-Werror", "-std=c11")
    assert library.startswith(b"\x7fELF")
    assert build(strict, INCLUDE).startswith(b"\x7fELF")


@needs_compiler
def test_what_is_built_is_found_again(builds, folder):
    first = load()
    assert load().call is not None and len(builds) == 1
    assert Path(first.__file__) == kept(folder)


@needs_compiler
def test_many_threads_build_it_once(builds):
    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


@needs_compiler
def test_another_compiler_and_another_source_have_another_file(
    builds, folder, monkeypatch, tmp_path
):
    load()
    monkeypatch.setenv("CC", f"{compiler()[0]} -O1")
    load()
    source = tmp_path / "fast_call.c"
    source.write_text(fast_call.SOURCE.read_text() + "\n")
    monkeypatch.setattr(fast_call, "SOURCE", source)
    load()
    assert len(builds) == 3 and len(list((folder / "calls").rglob("*.so"))) == 3


@needs_compiler
def test_before_it_is_configured_a_call_is_an_error(library):
    ran = python("print(fast_call.load().call(1))")
    assert ran.returncode == 1 and "after configure" in ran.stderr
    told = "(), None, 0, 0, 1"
    ran = python(f"fast_call.load().configure({told})")
    assert ran.returncode == 1 and "PyCapsule_GetPointer" in ran.stderr


def python(code):
    start = "from explorer.runtime import fast_call; "
    return subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, check=False
    )


# ------------------------------------------------------------------ damage


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def replaced_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "a bit of its code": lambda path: flip(path, 5000),
    "a bit of its digest": lambda path: flip(path, -1),
    "without a digest": lambda path: path.write_bytes(path.read_bytes()[:-32]),
    "another library, whole": lambda path: path.write_bytes(
        b"other" + built_libraries.digest("another key", b"other")
    ),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": replaced_by_a_pipe,
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_library_is_not_loaded_but_made_anew(damage, builds, folder, monkeypatch):
    path = stored(folder, monkeypatch)
    damage(path)
    if path.is_dir():  # nothing can take its name
        with pytest.raises(Unavailable, match="the cache folder cannot be written"):
            load()
        return
    load()
    assert len(builds) == 2 and built_libraries.is_whole(path, path.stem)


@needs_compiler
def test_a_library_that_does_not_load_is_made_anew(builds, folder, monkeypatch):
    path = stored(folder, monkeypatch)
    built_libraries.store(path, path.stem, bad := b"whole, but no library")
    ran = python("print(fast_call.load().call)")  # this process may know a library of that name
    assert ran.returncode == 0 and ran.stdout.startswith("<built-in function call>"), ran.stderr
    assert not path.read_bytes().startswith(bad) and built_libraries.is_whole(path, path.stem)


@needs_compiler
def test_another_users_library_is_not_loaded(builds, folder, monkeypatch):
    path = stored(folder, monkeypatch)
    whose = os.stat_result((0, 0, 0, 0, os.geteuid() + 1, 0, 0, 0, 0, 0))
    assert built_libraries.is_whole(path, path.stem)
    monkeypatch.setattr(Path, "stat", lambda self, **_: whose)
    assert not built_libraries.is_whole(path, path.stem)


@needs_compiler
def test_users_of_one_cache_have_folders_of_their_own(builds, folder):
    load()
    (own,) = (folder / "calls").iterdir()
    assert own.name == str(os.geteuid()) and own.stat().st_mode & 0o777 == 0o700


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_is_refused(builds, folder, monkeypatch, mode):
    own = stored(folder, monkeypatch).parent
    own.chmod(mode)
    with pytest.raises(Unavailable, match=f"other users can write {own}, .*; remove it, or set"):
        load()


@needs_compiler
def test_another_users_folder_is_refused(builds, folder, monkeypatch):
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(Unavailable, match=f"other users can write .*/{other}, "):
        load()
    assert not builds


@needs_compiler
def test_a_link_in_place_of_the_folder_is_refused(builds, folder, tmp_path):
    (folder / "calls").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir(0o700)
    (folder / "calls" / str(os.geteuid())).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="the cache folder cannot be written"):
        load()
    assert not any((tmp_path / "elsewhere").iterdir())


@needs_compiler
def test_a_cache_that_is_swapped_after_the_check_is_not_loaded(builds, folder, monkeypatch):
    """Whoever can write the cache folder may rename what lies in it at any time."""
    stored(folder, monkeypatch)
    checked = built_libraries.is_whole

    def swapped_after(path, key):
        is_whole = checked(path, key)
        (folder / "calls").rename(folder / "aside")
        planted = folder / "calls" / str(os.geteuid()) / f"{key}.so"
        planted.parent.mkdir(parents=True)
        planted.write_bytes(b"planted")
        return is_whole

    monkeypatch.setattr(built_libraries, "is_whole", swapped_after)
    assert load().call is not None and len(builds) == 1
    assert kept(folder).read_bytes() == b"planted"


# ------------------------------------------------------------------ where it cannot be built


def test_without_a_compiler_the_reason_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no C compiler is found: cc or gcc or clang; install"):
        load()
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(Unavailable, match="no C compiler is found: no-such-compiler; install"):
        load()


def stand_in(tmp_path, monkeypatch, script):
    """A compiler that does what a script says."""
    path = tmp_path / "stand-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))


FAILURES = {
    "an error": ("echo 'x.c:1: error: no' >&2; exit 1", "exit code 1: x.c:1: error: no"),
    "no word": ("exit 4", "exit code 4: no message"),
    "no file": ("exit 0", "failed: .*No such file"),
    "no library": ('while [ "$1" != -o ]; do shift; done; echo 1 > "$2"', "cannot be loaded"),
    "no end": ("exec sleep 60", "timed out"),
}


@pytest.mark.parametrize("script, reason", FAILURES.values(), ids=FAILURES)
def test_a_compiler_that_fails_is_the_reason(tmp_path, monkeypatch, script, reason):
    if not (Path(INCLUDE) / "Python.h").is_file():
        pytest.skip("needs Python's headers")
    monkeypatch.setattr(fast_call, "LONGEST_S", 0.5)
    stand_in(tmp_path, monkeypatch, script)
    with pytest.raises(Unavailable, match=reason):
        load()


def test_without_headers_and_on_a_free_threaded_python_nothing_is_built(monkeypatch, tmp_path):
    monkeypatch.setattr(fast_call, "compiler", lambda: ("cc",))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Unavailable, match=r"has no Python\.h; install Python's headers"):
        load()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1)
    with pytest.raises(Unavailable, match="free-threaded"):
        load()


@needs_compiler
def test_a_cache_that_cannot_be_written_is_the_reason(builds, folder):
    folder.write_text("in the way")
    with pytest.raises(Unavailable, match="the cache folder cannot be written"):
        load()
