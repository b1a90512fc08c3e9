"""The log of readers keeps of each word and thread the last entry, however it is sorted."""

import numpy as np
import pytest

from explorer.ptx_emulator.shadow import _last_by_places, _last_of_each


@pytest.mark.parametrize(
    ("words", "threads", "times"), [(50, 9, 30), (2**20, 2**14, 2**20), (2**20, 2**14, 2**31 - 1)]
)
def test_the_last_entry_of_each_word_and_thread_is_kept(words, threads, times):
    rng = np.random.default_rng(7)
    word, when = rng.integers(0, words, 4000), rng.integers(1, times, 4000)
    word, when = np.concatenate([word, word[:500]]), np.concatenate([when, when[::-1][:500]])
    thread = rng.integers(1, threads, 4000)
    stamps = when << 32 | np.concatenate([thread, thread[:500]])
    last = {}
    for one, stamp in zip(word.tolist(), stamps.tolist(), strict=True):
        pair = one, stamp & 0xFFFFFFFF
        last[pair] = max(last.get(pair, 0), stamp)
    assert len(last) < len(word)
    for way in (_last_of_each, _last_by_places):
        got_words, got_stamps = way(word, stamps)
        assert got_words.tolist() == [one for one, _ in sorted(last)]
        assert got_stamps.tolist() == [last[pair] for pair in sorted(last)]


def test_no_entries_are_none():
    nothing = np.zeros(0, np.int64)
    assert [len(part) for part in _last_of_each(nothing, nothing)] == [0, 0]
