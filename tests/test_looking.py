"""Functions that look at what there is: each gives what its command prints, typed, and as data."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import explorer
from explorer.cli import app
from explorer.model.query import several_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results"
COMPARED = {gpu: str(RESULTS / f"compare-{gpu}.json") for gpu in ("h200-f32", "h100")}
SHAPE = {"cols": 256, "rows": 64}
WORDS = ("--cols", "256", "--rows", "64")


@pytest.fixture(scope="session")
def searched(once):
    """Return a storage with a study, and the trials that its search evaluated."""

    def fill(folder):
        said = {"cols": 4096, "device": "recorded:h200-f32-4096", "trials": 12, "verify": False}
        result = explorer.search(**said, storage=folder / "a.db")
        (folder / "search.json").write_text(json.dumps(result.to_dict()))
        (folder / "records.json").write_text(json.dumps(result.records()))

    return once("looking", fill)


@pytest.fixture
def storage(searched):
    return searched / "a.db"


def printed(*words):
    ran = CliRunner().invoke(app, [str(word) for word in words], prog_name="explorer")
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout)


def plain(data):
    return json.loads(json.dumps(data))


def test_show_has_every_trial_and_what_the_command_prints(storage):
    study = explorer.show(cols=4096, storage=storage)
    assert isinstance(study, explorer.StudyHistory) and len(study.attempts) == 12
    words = ("--cols", "4096", "--storage", storage, "--json")
    assert study.to_dict() == printed("show", *words)
    assert [record["trial"] for record in study.records()] == [a.number for a in study.attempts]
    assert explorer.show(study="softmax", storage=storage) == study
    named = explorer.emit("best", study="softmax", storage=storage, verify=False)
    assert named.variant.config == study.view.best.config
    assert "12 trials" in repr(study) and "differs from the best by" in study._repr_html_()
    with pytest.raises(explorer.NotFound, match="has 'B200' in its name"):
        explorer.show(study="B200", storage=storage)
    with pytest.raises(explorer.InvalidInput, match="cols is missing"):
        explorer.show(storage=storage)


def test_a_verdict_has_what_the_command_prints_and_a_row_a_run(tmp_path):
    words = ("--cols", "100", "--rows", "4", "--gpu", "H100")
    said = {"cols": 100, "rows": 4, "gpu": "H100"}
    verdict = explorer.verify("oneflow-warp", **said, seed=7)
    assert isinstance(verdict, explorer.Verdict)
    data = printed("verify", "oneflow-warp", *words, "--seed", "7", "--json")
    assert plain(verdict.to_dict()) == data
    rows = verdict.records()
    assert [row["rows"] for row in rows] == [run.problem.rows for run in verdict.runs]
    assert {row["status"] for row in rows} == {"verified"}
    assert "verified<td>largest" in verdict._repr_html_() and "4 x 100" in verdict._repr_html_()
    emitted = explorer.emit("oneflow-warp", **said, output=tmp_path / "k.cu")
    assert isinstance(emitted.verdict, explorer.Verdict)
    broken = tmp_path / "broken.cu"
    broken.write_text(emitted.source.replace("fmaxf", "fminf"))
    wrong = explorer.verify(broken, seed=7)
    assert wrong.status == "wrong" and wrong.to_dict()["wrong"] == 1
    assert "broken.cu:" in wrong._repr_html_()


def test_a_search_and_a_study_have_the_same_fields(searched, storage):
    search, show = (
        json.loads((searched / "search.json").read_text()),
        explorer.show(cols=4096, storage=storage),
    )
    study = show.to_dict()
    assert list(search) == list(study)
    own = {"duplicates", "elapsed_s", "stopped", "verification", "emit"}
    same = [name for name in study if name not in own]
    assert {name: search[name] for name in same} == {name: study[name] for name in same}
    assert search["elapsed_s"] > 0 and study["elapsed_s"] is None
    assert json.loads((searched / "records.json").read_text()) == show.records()


def test_studies_are_a_sequence_of_summaries(storage):
    found = explorer.studies(storage=storage)
    assert len(found) == 1 and isinstance(found[0], explorer.StudySummary)
    assert [one.name for one in found] == [found[0].name] and found[:1] == (found[0],)
    assert found.to_dict() == printed("studies", "--storage", storage, "--json")
    assert repr(found) == "1 of studies"
    with pytest.raises(explorer.NotFound, match="no study yet"):
        explorer.studies(storage=storage.with_name("none.db"))


def test_two_results_stand_side_by_side():
    both = explorer.side_by_side(*COMPARED.values())
    assert isinstance(both, explorer.SideBySide)
    assert len(both.records()) == 2 * len(both.lines)
    with pytest.raises(explorer.InvalidInput, match="name two at least"):
        explorer.side_by_side(COMPARED["h100"])


def test_a_report_is_written_as_by_the_command(storage, tmp_path, monkeypatch):
    monkeypatch.setattr("explorer.report.page.script", lambda: "")
    path = explorer.write_report(study="softmax", storage=storage, output=tmp_path / "a.html")
    assert path == tmp_path / "a.html" and "report of a study" in path.read_text()
    with pytest.raises(explorer.InvalidInput, match="nothing to report on"):
        explorer.write_report(output=tmp_path / "b.html")
    with pytest.raises(explorer.InvalidInput, match=r"ends in \.html"):
        explorer.write_report(cols=4096, output=tmp_path / "b.txt")


@pytest.mark.exhaustive
def test_a_space_and_presets_are_those_of_the_commands():
    where = {"cache": "shared"}
    space = explorer.describe_space(**SHAPE, parameters=["cache"], where=where, gpu="H100")
    command = ("space", "cache", *WORDS, "--where", "cache=shared", "--gpu", "H100", "--json")
    assert space.to_dict() == printed(*command)
    assert {record["value"] for record in space.records()} == {"shared"}
    legal = explorer.find_presets(**SHAPE, legal=True, text="warp", gpu="H100")
    command = ("presets", "warp", *WORDS, "--legal", "--gpu", "H100", "--json")
    assert legal.to_dict() == printed(*command) and all(line.config for line in legal)
    of_op = explorer.find_presets(op="log_softmax", dtype="f16")
    command = ("presets", "--op", "log_softmax", "--dtype", "f16", "--json")
    assert of_op.to_dict() == printed(*command)
    with pytest.raises(explorer.InvalidInput, match="ask what a preset is for a problem"):
        explorer.find_presets(legal=True)


@pytest.mark.exhaustive
def test_a_kernel_is_profiled_and_held_against_another():
    profile = explorer.profile("heuristic", **SHAPE, gpu="H100")
    assert isinstance(profile, explorer.Profile)
    words = ("profile", "heuristic", *WORDS, "--gpu", "H100", "--json")
    assert plain(profile.to_dict()) == printed(*words)
    assert "NVIDIA H100" in repr(profile) and "<table" in profile._repr_html_()
    both = explorer.diff("heuristic", "oneflow-warp", **SHAPE, gpu="H100")
    words = ("diff", "heuristic", "oneflow-warp", *WORDS, "--gpu", "H100", "--json")
    printed_too = printed(*words, "--show", "source,ptx" + ",sass" * ("sass" in both.texts))
    assert plain(both.to_dict()) == printed_too
    assert len(both.records()) == 2 and "<table" in both._repr_html_()


def test_a_table_is_read_by_its_name():
    table = explorer.table("held-out/nvidia-h200")
    assert isinstance(table, explorer.Tuned) and len(table.records()) == len(table.table.problems)
    assert table.to_dict() == printed("table", "show", "held-out/nvidia-h200", "--json")
    assert "<table" in table._repr_html_()
    with pytest.raises(explorer.InvalidInput, match=r"none\.json cannot be read"):
        explorer.table("none.json")


def test_a_frame_has_the_columns_of_csv(storage, monkeypatch):
    study = explorer.show(cols=4096, storage=storage)
    frames = []

    class Pandas:
        """Stands for pandas, which the tests do not need."""

        @staticmethod
        def DataFrame(rows):  # noqa: N802 (as pandas calls it)
            frames.append(rows)
            return rows

    monkeypatch.setitem(__import__("sys").modules, "pandas", Pandas)
    study.to_frame()
    words = ["show", "--cols", "4096", "--storage", str(storage), "--csv"]
    header = CliRunner().invoke(app, words).stdout.splitlines()[0].split(",")
    names = dict.fromkeys(name for row in frames[0] for name in row)
    assert list(names) == header and len(frames[0]) == 12
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(explorer.InvalidInput, match="pip install pandas"):
        study.to_frame()


def test_problems_and_configs_are_said_as_lists_and_dicts():
    with pytest.raises(explorer.InvalidInput, match="tuning needs a GPU"):
        explorer.tune(cols=[512, 1024], dtype=["f32", "bf16"])
    with pytest.raises(explorer.InvalidInput, match="a comparison needs a GPU"):
        explorer.compare(cols=[1024], rows=8)
    with pytest.raises(explorer.InvalidInput, match="cols is empty"):
        explorer.tune(cols=[])
    problems = several_of(explorer.tune, None, {"cols": [8, 16], "op": "softmax", "rows": [2, 3]})
    assert [(one.cols, one.rows) for one in problems] == [(8, 2), (8, 3), (16, 2), (16, 3)]
    config = {"threads": 128, "threads_per_row": 128}
    emitted = explorer.emit(config, cols=1024, rows=64, verify=False)
    assert emitted.variant.config == explorer.Config(**config)
