"""The recordings that are shipped: of the templates as they are, large enough, below the limit."""

import random
from statistics import median

import pytest

from explorer.codegen import emit
from explorer.devices.recorded import list_recordings, load_recording
from explorer.evaluate.space_version import space_version
from explorer.outcome import Measured

SHIPPED = sorted(file.name for file in list_recordings() if file.name.startswith("h200-"))


def test_the_promised_problems_are_there():
    assert {"h200-f32-1024", "h200-f32-4096", "h200-f32-32768"} <= set(SHIPPED)


def test_they_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(SHIPPED) <= {file.name for file in list_recordings()}


@pytest.mark.parametrize("name", SHIPPED)
def test_at_least_400_kernels_were_measured(name):
    measured = [k for k in load_recording(name).kernels if isinstance(k.outcome, Measured)]
    assert len({k.digest for k in measured}) >= 400


@pytest.mark.parametrize("name", SHIPPED)
def test_a_replay_says_if_templates_emit_other_kernels_than_were_measured(name):
    """Else it would speak of code that nobody can get."""
    recording = load_recording(name)
    kernels = random.Random(0).sample(list(recording.kernels), 60)
    same = [emit(recording.header.problem, k.config).digest == k.digest for k in kernels]
    assert all(same) or recording.header.circumstances.space_version != space_version()


@pytest.mark.parametrize("name", SHIPPED)
def test_no_kernel_is_faster_than_copy_beyond_noise(name):
    """Copy is the limit: were a softmax faster, a better copy would be missing."""
    comparison = load_recording(name).comparison
    copy_us = median(comparison.copy_us)
    for samples in comparison.samples_us:
        assert median(samples) > 0.995 * copy_us
