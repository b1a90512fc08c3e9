"""Files that a user names: what is no regular file is refused at once, and nothing is lost."""

import os
import socket
from errno import ENOSPC
from pathlib import Path

import pytest

from explorer.model.errors import InvalidInput
from explorer.system.user_files import (
    append_line,
    check_writable,
    is_there,
    read_bytes,
    read_text,
    studies_folder,
    whole_lines,
    write_file,
)


def pipe(path):
    os.mkfifo(path)


def folder(path):
    path.mkdir()


def device(path):
    path.symlink_to("/dev/zero")


def full_device(path):
    path.symlink_to("/dev/full")


def loop(path):
    path.symlink_to(path.name)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


NO_FILES = [pipe, folder, device, full_device, loop, unix_socket]


def refused(call, *args, **options):
    with pytest.raises(InvalidInput) as raised:
        call(*args, **options)
    message = str(raised.value)
    assert "\n" not in message and "; " in message
    return message


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_is_not_read(tmp_path, make):
    make(tmp_path / "it")
    assert str(tmp_path / "it") in refused(read_text, tmp_path / "it")


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_is_not_written(tmp_path, make):
    path = tmp_path / "it"
    make(path)
    kind = path.lstat().st_mode
    assert "name another file" in refused(write_file, path, "text")
    assert "take that" in refused(check_writable, path, "take that")
    assert path.lstat().st_mode == kind
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize("name", ["a" * 300, "no\0such", "\ud800", "none"])
def test_a_name_that_cannot_be_is_not_read(tmp_path, name):
    assert "cannot be read" in refused(read_text, tmp_path / name)
    assert not is_there(tmp_path / name)


@pytest.mark.parametrize("name", ["a" * 300, "no\0such", "\ud800"])
def test_a_name_that_cannot_be_is_not_written(tmp_path, name):
    assert "cannot be written" in refused(write_file, tmp_path / name, "")
    assert "cannot be written" in refused(check_writable, tmp_path / name)


def test_a_file_beyond_the_bound_is_not_read(tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 2**40)
    assert f"it has {2**40} bytes, and at most 5 are read" in refused(
        read_bytes, path, most_bytes=5
    )
    os.truncate(path, 5)
    assert read_bytes(path, most_bytes=5) == bytes(5)


def test_a_file_without_a_size_is_read_to_the_bound():
    assert "more than 10 bytes" in refused(read_bytes, "/proc/self/maps", most_bytes=10)


def test_what_is_not_text_is_said(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(b"abc\xff")
    assert "not text in UTF-8 from byte 3" in refused(read_text, path)
    path.write_bytes("µ\r\n".encode())
    assert read_text(path) == "µ\r\n"


def test_a_file_is_written_through_a_link_and_keeps_its_mode(tmp_path):
    path, link = tmp_path / "new" / "a.txt", tmp_path / "link"
    path.parent.mkdir()
    link.symlink_to(path)
    write_file(path, "one")
    path.chmod(0o640)
    write_file(link, b"two")
    assert path.read_text() == "two" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in path.parent.iterdir()] == ["a.txt"]


def test_a_disk_that_is_full_half_way_costs_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def full(_):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(write_file, path, "after")
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_is_a_file_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(check_writable, tmp_path / "file" / "a.txt")
    assert "cannot be written" in refused(write_file, tmp_path / "file" / "a.txt", "")


@pytest.mark.parametrize("asked", [check_writable, lambda path: write_file(path, "after")])
def test_a_read_only_file_is_left(tmp_path, monkeypatch, asked):
    path = tmp_path / "a.txt"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
    assert "it is read-only" in refused(asked, path)
    assert path.read_text() == "before"


def test_asking_leaves_nothing(tmp_path):
    check_writable(tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_only_where_files_of_ours_lie(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for asked in (check_writable, lambda path: write_file(path, "it")):
        assert f"there is no folder {tmp_path}/new/er" in refused(asked, Path("new/er/a.txt"))
    assert list(tmp_path.iterdir()) == []
    write_file(Path("generated/of/a.cu"), "it")
    write_file(studies_folder() / "recorded" / "a.json.gz", "it")
    assert (tmp_path / "generated/of/a.cu").exists()


def test_lines_that_are_appended_come_back_but_for_a_torn_one(tmp_path):
    path = tmp_path / "lines"
    assert whole_lines(path) == []
    append_line(path, "one")
    append_line(path, "two")
    with path.open("a") as file:
        file.write("thr")
    assert whole_lines(path) == ["one", "two"]
    assert path.read_text() == "one\ntwo\n"
    path.unlink()
    full_device(path)
    with pytest.raises(InvalidInput, match="cannot be written: No space left on device; name"):
        append_line(path, "one")


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    append_line(path, "one")
    monkeypatch.setattr("explorer.system.user_files.os.fsync", full)
    with pytest.raises(InvalidInput, match="cannot be written: No space left on device; make room"):
        append_line(path, "two", "make room")
    monkeypatch.undo()
    append_line(path, "three")
    assert whole_lines(path) == ["one", "three"]


def full(file):
    raise OSError(ENOSPC, os.strerror(ENOSPC))
