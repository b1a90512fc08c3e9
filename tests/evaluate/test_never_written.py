"""What is never written has a line too: that of the store which was to write it."""

from explorer.codegen.units import emit
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import read_emitted
from explorer.model.config import Config
from explorer.model.problem import Problem
from explorer.ptx_emulator.findings import Kind

STORE = "  reinterpret_cast<Word*>(output)[k] = as_word(vector);\n"


def never_written(tmp_path, source):
    path = tmp_path / "mine.cu"
    path.write_text(source)
    told = Emulator("sm_90").verify(read_emitted(path)).deciding_run
    return next(f for f in told.findings if f.kind is Kind.NEVER_WRITTEN)


def test_a_tail_that_is_not_stored_names_the_store(tmp_path):
    source = emit(Problem(8, 1000), Config(threads=128, threads_per_row=128)).source
    short = source.replace("k >= kRowVectors) return;", "k >= kRowVectors - 1) return;")
    assert short != source
    finding = never_written(tmp_path, short)
    assert finding.ptx_line > 0
    assert finding.source.file.endswith("mine.cu")


def test_a_kernel_without_a_store_says_so(tmp_path):
    source = emit(Problem(8, 1000), Config(threads=128, threads_per_row=128)).source
    assert STORE in source
    finding = never_written(tmp_path, source.replace(STORE, ""))
    assert "no store to global memory" in finding.message
