"""Recorded kernels have the machine code of when they were measured, whatever text it comes of."""

import json

import pytest
from machine_code import FILE, KERNELS, kept, machine_code

from explorer.devices.recording import load_recording
from explorer.model.config import Config

RECORDED = json.loads(FILE.read_text())["kernels"]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", RECORDED)
def test_texts_of_today_have_the_machine_code_that_was_measured(name):
    if not kept():
        pytest.skip("what is kept was compiled by another NVRTC")
    configs = [Config.from_json(text) for text in RECORDED[name]]
    assert len(configs) == KERNELS
    assert machine_code(load_recording(name), configs) == RECORDED[name]
