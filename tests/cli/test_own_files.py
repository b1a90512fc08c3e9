"""Which files a page, a picture or a result replaces: those of its kind that this program wrote."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from explorer.model.errors import InvalidInput
from explorer.system.user_files import (
    COMPARISON,
    JOURNEY,
    PAGE,
    PICTURE,
    T4_RESULTS,
    check_replaceable,
)

pytestmark = pytest.mark.exhaustive

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results"
JOURNEY_FILE = RESULTS / "journey-h200-f32-4096.json"
COMPARISON_FILE = RESULTS / "compare-h200-f16.json"

WRITERS = {
    "it.html": (
        ("report", "--from", JOURNEY_FILE, "--output"),
        "a page that explorer report wrote",
    ),
    "it.svg": (("journey", "--from", JOURNEY_FILE, "--plot"), "a picture that explorer drew"),
    "it.png": (("compare", "--from", COMPARISON_FILE, "--plot"), "a picture that explorer drew"),
    "it.json": (("recordings", "h200-f32-128", "--t4"), "a T4 file that explorer recordings wrote"),
}
FOREIGN = {
    "text": b"my notes\n",
    "page": b"<!DOCTYPE html><html><head><title>softmax-explorer 0.2.0</title></head></html>",
    "picture": b'<svg xmlns="http://www.w3.org/2000/svg"><text>softmax-explorer </text></svg>',
    "binary": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "other tuner": b'{"schema_version":"1.0.0","results":[{"configuration":{"block_size_x":64}}]}',
    "line": b"\n",
}


def needs_charts(name):
    if not name.endswith(".json"):
        for library in ("altair", "vl_convert"):
            pytest.importorskip(library, reason="charts need the extra softmax-explorer[report]")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WRITERS)
def test_what_was_written_is_replaced_and_nothing_else(explorer, tmp_path, name):
    needs_charts(name)
    words, what = WRITERS[name]
    path = tmp_path / name
    path.touch()  # as mktemp does
    for _ in range(2):
        ran = explorer(*words, name)
        assert ran.code == 0, ran.err
        assert path.stat().st_size > 1000
    written = path.read_bytes()
    for kind, content in FOREIGN.items():
        if kind == "binary" and name.endswith((".svg", ".png")):
            continue  # a PNG has no mark, so that any picture may take its place
        path.write_bytes(content)
        ran = explorer(*words, name)
        option = words[-1]
        assert ran.code == 2 and ran.out == ""
        assert ran.err == (
            f"error: {name} exists and is not {what}; nothing was written: name another {option}\n"
        )
        assert path.read_bytes() == content
    for other, (more, _) in WRITERS.items():
        if Path(other).suffix not in (".html", ".json"):
            continue
        (tmp_path / other).write_bytes(written)
        if other != name:
            assert explorer(*more, other).code == 2
            assert (tmp_path / other).read_bytes() == written


def test_an_svg_names_its_program_in_metadata(explorer, tmp_path):
    needs_charts("it.svg")
    words, _ = WRITERS["it.svg"]
    assert explorer(*words, "it.svg").code == 0
    root = ElementTree.fromstring((tmp_path / "it.svg").read_text())
    creator = root.find(".//{http://purl.org/dc/elements/1.1/}creator")
    assert creator.text.startswith("softmax-explorer ")


def test_a_page_names_its_program_in_its_head(explorer, tmp_path):
    needs_charts("it.html")
    words, _ = WRITERS["it.html"]
    assert explorer(*words, "it.html").code == 0
    head = (tmp_path / "it.html").read_text().partition("<style>")[0]
    assert '<meta name="generator" content="softmax-explorer ' in head


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_comparison_is_kept_in_no_foreign_file(explorer, tmp_path, content):
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    ran = explorer("compare", "--cols", "8", "--save", "kept.json")
    assert ran.code == 2 and path.read_bytes() == content
    assert "is not a comparison that explorer compare --save kept; nothing was written" in ran.err
    shutil.copy(COMPARISON_FILE, path)
    assert "a comparison needs a GPU" in explorer("compare", "--cols", "8", "--save", path).err


def test_a_file_is_of_one_kind(tmp_path):
    for name in ("there.json", "empty.json"):
        for kind in (PAGE, PICTURE, T4_RESULTS, COMPARISON, JOURNEY):
            (tmp_path / "empty.json").touch()
            check_replaceable(tmp_path / name, kind, "remedy")
    kinds = {JOURNEY_FILE: JOURNEY, COMPARISON_FILE: COMPARISON}
    for path, own in kinds.items():
        check_replaceable(path, own, "remedy")
        for kind in (PAGE, PICTURE, T4_RESULTS, *(set(kinds.values()) - {own})):
            with pytest.raises(InvalidInput, match=r"; nothing was written: remedy$"):
                check_replaceable(path, kind, "remedy")
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"comparisons": "x" * 17 * 2**20}))
    with pytest.raises(InvalidInput, match="is not a comparison"):
        check_replaceable(large, COMPARISON, "remedy")
