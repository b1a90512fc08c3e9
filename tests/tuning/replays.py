"""Evaluators that replay a recording."""

from explorer.devices.recorded import RecordedDevice
from explorer.devices.recording import Recording
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.accuracy import Accuracy
from explorer.model.problem import Problem


def replay(recording: Recording, accuracy: Accuracy = Accuracy.DEFAULT) -> DeviceEvaluator:
    """Replay a recording that was read or made."""
    device = RecordedDevice(recording=recording)
    return DeviceEvaluator(recording.header.problem, device, accuracy=accuracy)


def replay_of(problem: Problem, name: str = "") -> DeviceEvaluator:
    """Replay the recording of a name, else the latest of the problem."""
    return DeviceEvaluator(problem, RecordedDevice(name))
