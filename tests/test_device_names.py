"""What each kind of command takes a device's name for, with a GPU and without one."""

import pytest

from explorer.devices import names
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu

ABSENT = "no NVIDIA driver"


@pytest.fixture(params=[None, ABSENT], ids=["driver", "no driver"])
def driver(request, monkeypatch):
    """Why there is no GPU, or None."""
    monkeypatch.setattr(names, "driver_problem", lambda: request.param)
    return request.param


def gpu_for_a_time(device):
    return names.gpu_alone(device, "a time", "do without")


def test_auto_is_the_first_gpu_or_what_needs_none(driver):
    assert names.gpu_or_recording("auto") == ("recorded:" if driver else "cuda:0")
    assert names.gpu_or_emulator("auto") == ("emulated" if driver else "cuda:0")


def test_a_device_that_is_named_is_taken(driver):
    assert names.gpu_or_recording("recorded:H200-x") == "recorded:H200-x"
    assert names.gpu_or_recording("recorded") == "recorded:"
    assert names.gpu_or_recording("cuda:12") == "cuda:12"  # opening it says that it is not there
    assert names.gpu_or_emulator("emulated") == "emulated"


def test_a_gpu_that_is_named_needs_a_driver(driver):
    for taken in (names.gpu_or_emulator, gpu_for_a_time):
        if driver is None:
            assert taken("cuda:12") == "cuda:12"
            continue
        with pytest.raises(InvalidInput, match=ABSENT):
            taken("cuda:12")


@pytest.mark.parametrize("device", ["cuda", "cuda:", "cuda:-1", "cuda:0,1", "auto:0", "hip:0", ""])
@pytest.mark.parametrize("taken", [names.gpu_or_recording, names.gpu_or_emulator, gpu_for_a_time])
def test_other_names_are_refused_with_those_that_serve(driver, taken, device):
    with pytest.raises(InvalidInput, match=rf"device (is )?'{device}'.*cuda:N such as cuda:0"):
        taken(device)


@pytest.mark.parametrize(
    ("taken", "device", "says"),
    [
        (names.gpu_or_recording, "emulated", "checks kernels and times none"),
        (names.gpu_or_emulator, "recorded:x", "is not known"),
        (gpu_for_a_time, "emulated", "a time needs a GPU"),
        (gpu_for_a_time, "recorded:x", "a time needs a GPU"),
    ],
)
def test_a_device_that_cannot_do_it_is_refused(driver, taken, device, says):
    with pytest.raises(InvalidInput, match=says):
        taken(device)


def test_a_gpu_is_named_by_a_part_of_its_name_or_by_its_architecture():
    assert known_gpu("a100") == known_gpu("NVIDIA A100-SXM4-80GB")
    assert known_gpu("H200") == known_gpu("NVIDIA H200")
    assert known_gpu("sm_89").name == "NVIDIA L4"
    for name, says in (
        ("4090", "name the architecture"),
        ("nvidia", "one of several"),
        ("", "not"),
    ):
        with pytest.raises(InvalidInput, match=says):
            known_gpu(name)
