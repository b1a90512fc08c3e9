"""Peers by name: those of the package without its metadata, those that entry points add."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from explorer.model.errors import InvalidInput
from explorer.peers import chosen_peers, known_peers
from explorer.peers.registry import AHEAD, BUILT_IN, GROUP

ROOT = Path(__file__).resolve().parents[2]


def test_the_packages_entry_points_are_the_built_in_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == BUILT_IN


def test_every_target_has_its_file_and_function():
    for target in BUILT_IN.values():
        module, _, function = target.partition(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        assert f"def {function}(problem: Problem" in path.read_text()


def test_what_is_compiled_ahead_has_its_file_and_function():
    assert set(AHEAD) < set(BUILT_IN.values())
    for target in AHEAD.values():
        module, _, function = target.partition(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        assert f"def {function}(problem: Problem, gpu: GpuSpec)" in path.read_text()


def test_entry_points_add_and_replace(monkeypatch):
    def points(group):
        assert group == GROUP
        return [
            EntryPoint("mine", "my.module:prepare", GROUP),
            EntryPoint("torch", "o:p", GROUP),
            EntryPoint("triton-tuned", "explorer.peers.triton_softmax:of_an_older_version", GROUP),
        ]

    monkeypatch.setattr("explorer.peers.registry.entry_points", points)
    known = known_peers()
    assert known["mine"].target == "my.module:prepare" and known["torch"].target == "o:p"
    assert set(known) == {*BUILT_IN, "mine"}


def test_peers_are_chosen_by_name_family_and_target():
    assert [peer.name for peer in chosen_peers([])] == list(known_peers())
    assert [peer.name for peer in chosen_peers(["triton", "torch", "triton-tuned"])] == [
        "triton-tuned.constexpr",
        "triton-tuned.runtime",
        "triton-tutorial",
        "torch",
    ]
    assert len(chosen_peers(["triton-tuned"])) == 2
    (one,) = chosen_peers(["triton-tuned.runtime"])
    assert one.target.endswith(":prepare_runtime")
    (own,) = chosen_peers(["mine.softmax:prepare"])
    assert (own.name, own.target) == ("softmax", "mine.softmax:prepare")
    with pytest.raises(InvalidInput, match="'troch' is not known; did you mean torch"):
        chosen_peers(["troch"])
    with pytest.raises(InvalidInput, match=r"'foo' is not known; there are .*, and module:attr"):
        chosen_peers(["foo"])
