"""What Nsight Compute prints, and the command that makes it print that."""

import json
from math import isnan

from explorer.evaluate.nsight import METRICS, ncu_command, nsight_figures, parse_figures
from explorer.model.config import Config
from explorer.model.problem import Problem

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
PLACE = (
    '"0","4711","python3.12","127.0.0.1","softmax_f32_4096_kernel(const float *, float *, long '
    'long)","1","13","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics",'
)
ROWS = [
    ("dram__bytes_read.sum", "byte", "1,056,256"),
    ("dram__bytes_write.sum", "byte", "12,800"),
    ("gpu__time_duration.sum", "nsecond", "4,896"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "32,768"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", "32768"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", "11.87"),
    ("smsp__inst_executed.sum", "inst", "n/a"),
]
TEXT = "\n".join(
    [
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
        '==PROF== Profiling "softmax_f32_4096_kernel" - 0: 0%....50%....100% - 1 pass',
        "==PROF== Disconnected from process 4711",
        HEADER,
        *(f'{PLACE}"{name}","{unit}","{value}"' for name, unit, value in ROWS),
    ]
)


def test_figures_are_read_from_the_csv():
    figures = parse_figures(TEXT)
    assert figures is not None
    assert figures.load_sectors == figures.store_sectors == 32768
    assert figures.dram_read_bytes == 1056256 and figures.dram_write_bytes == 12800
    assert figures.duration_ns == 4896 and figures.occupancy_percent == 11.87
    assert isnan(figures.warp_instructions)


def test_text_without_figures_gives_none():
    assert parse_figures("") is None
    assert parse_figures("==ERROR== ERR_NVGPUCTRPERM - no permission\n") is None
    assert parse_figures(HEADER) is None


def test_the_command_names_kernel_metrics_and_problem():
    words = list(ncu_command("ncu", Problem(64, 4096), Config(), 1))
    assert words[0] == "ncu" and words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--metrics") + 1].split(",") == list(METRICS.values())
    assert words[-1] == "1"
    assert Problem.from_dict(json.loads(words[-2])) == Problem(64, 4096)
    assert Config.from_json(words[-3]) == Config()


def test_a_machine_without_ncu_says_so(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    told = nsight_figures(Problem(64, 4096), Config())
    assert isinstance(told, str) and "not on PATH" in told


def test_a_failing_ncu_says_why(monkeypatch, tmp_path):
    program = tmp_path / "ncu"
    program.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - no permission'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    told = nsight_figures(Problem(64, 4096), Config())
    assert isinstance(told, str) and "ERR_NVGPUCTRPERM" in told


def test_an_absurd_figure_is_none():
    figures = parse_figures(TEXT.replace('"11.87"', '"inf"').replace('"4,896"', '"-1"'))
    assert isnan(figures.occupancy_percent) and isnan(figures.duration_ns)
    assert figures.load_sectors == 32768
    assert parse_figures(f"{HEADER}\n{PLACE}{'x' * 200_000}") is None  # beyond what csv reads


def test_an_ncu_that_is_no_program_or_prints_no_text_says_so(monkeypatch, tmp_path):
    program = tmp_path / "ncu"
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    assert "cannot be run" in nsight_figures(Problem(64, 4096), Config())
    program.write_bytes(b"#!/bin/sh\nprintf '\\377\\376 ERROR \\200'\n")
    assert "ncu gave no figures" in nsight_figures(Problem(64, 4096), Config())
