"""The explorer's own inputs, and the stream that is a limit, executed on the emulator."""

import numpy as np
import pytest

from explorer.compile import Compiler
from explorer.devices.cuda.tools import check_source, limit_source
from explorer.problem import Mask, Problem

ROWS, COLS = 64, 512
STREAM = limit_source(Problem(ROWS, COLS, mask=Mask.CAUSAL)).split("#define STREAM_STORES")[0]
"""The stream without its many instances."""


@pytest.fixture
def filled(run, out):
    """What a fill makes: ROWS x COLS numbers."""
    ptx = Compiler("sm_90").compile(check_source(Problem(ROWS, COLS))).ptx

    def fill(entry, *cols, dtype=np.float32):
        size = ROWS * COLS
        into = out(size, dtype)
        arguments = into, np.int64(size), *cols, np.uint32(1)
        ran = run(ptx, *arguments, ptx=True, entry=entry, grid=9, block=256)
        assert not ran.findings, ran.text
        return ran["out0"].reshape(ROWS, COLS)

    return fill


def test_noise_is_normal_but_for_outliers(filled):
    noise = filled("fill_noise")
    outliers = noise > 4.5
    assert outliers.mean() == pytest.approx(1 / 512, rel=0.3)
    assert noise[~outliers].mean() == pytest.approx(0, abs=0.02)
    assert noise[~outliers].std() == pytest.approx(1, abs=0.02)


def test_a_gradients_input_is_what_the_forward_could_have_put_out(filled):
    softmax, log_softmax = (
        filled(f"fill_{op}", np.int32(COLS)) for op in ("softmax", "log_softmax")
    )
    assert softmax.min() > 0
    assert softmax.sum(axis=1).mean() == pytest.approx(1, abs=0.3)
    np.testing.assert_allclose(np.exp(log_softmax), softmax, rtol=1e-5)


def test_a_quarter_of_the_lengths_is_whole(filled):
    lengths = filled("fill_lengths", np.int32(COLS), dtype=np.int32)
    assert lengths.min() == 1 and lengths.max() == COLS
    assert (lengths == COLS).mean() == pytest.approx(1 / 4, abs=0.02)


@pytest.mark.parametrize("word", ["uint2", "uint4"])
@pytest.mark.parametrize(
    ("first", "second", "written"), [(1000, 0, 1000), (4096, 131, 77), (5, 3001, 3001), (1, 0, 1)]
)
def test_a_stream_reads_and_writes_each_word_once(run, out, word, first, second, written):
    threads, unroll = 64, 2
    source = f"{STREAM}\nSTREAM(k, {word}, {unroll}, kPlain, kPlain)"
    size = 8 if word == "uint2" else 16
    rng = np.random.default_rng(0)
    ins = [rng.integers(1, 256, words * size, np.uint8) for words in (first, max(1, second))]
    to = out(written * size // 4)
    blocks = -(-max(first, second, written) // (threads * unroll))
    counts = (np.int64(words) for words in (first, second, written))
    arguments = (ins[0], next(counts), ins[1], next(counts), to, next(counts))
    ran = run(source, *arguments, grid=blocks, block=threads)
    assert not ran.findings, ran.text
    assert ran.counters.global_loads.bytes == (first + second) * size
    assert ran.counters.global_stores.bytes == written * size
