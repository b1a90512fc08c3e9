"""Clocks and throttling, as NVML reports them. Read, never set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.driver import checked

_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that slow a kernel down."""

_SM_CLOCK, _MEMORY_CLOCK = 1, 2


@dataclass(frozen=True, slots=True)
class Clocks:
    """MHz at one moment, 0 where NVML does not say, and what holds them back."""

    sm_mhz: int = 0
    memory_mhz: int = 0
    throttle_reasons: str = ""

    @staticmethod
    def lowest(readings: "Sequence[Clocks]") -> "Clocks":
        """The lowest clocks of several readings, and all reasons of any."""
        reasons = dict.fromkeys(r for clocks in readings for r in clocks.reasons())
        return Clocks(
            sm_mhz=min((clocks.sm_mhz for clocks in readings), default=0),
            memory_mhz=min((clocks.memory_mhz for clocks in readings), default=0),
            throttle_reasons=", ".join(reasons),
        )

    def reasons(self) -> list[str]:
        """The reasons one by one."""
        return self.throttle_reasons.split(", ") if self.throttle_reasons else []


class ClockReader:
    """Reads a GPU's clocks; where NVML cannot be had, it reads nothing."""

    def __init__(self, device: Any) -> None:
        self._nvml: Any = None
        try:
            from cuda.bindings import nvml

            nvml.init_v2()
            bus_id = checked(driver.cuDeviceGetPCIBusId(32, device)).rstrip(b"\0").decode()
            self._handle = nvml.device_get_handle_by_pci_bus_id_v2(bus_id)
            self._nvml = nvml
        except Exception:  # NVML is a courtesy: containers often lack it, in many ways
            self._nvml = None

    def read(self) -> Clocks:
        """The clocks now."""
        if self._nvml is None:
            return Clocks()
        try:
            bits = int(self._nvml.device_get_current_clocks_event_reasons(self._handle))
            reasons = [name for bit, name in _REASONS.items() if bits & bit]
            return Clocks(
                sm_mhz=int(self._nvml.device_get_clock_info(self._handle, _SM_CLOCK)),
                memory_mhz=int(self._nvml.device_get_clock_info(self._handle, _MEMORY_CLOCK)),
                throttle_reasons=", ".join(reasons),
            )
        except Exception:  # as above
            return Clocks()

    def driver_version(self) -> str:
        """The driver's version, such as 580.159.03, or empty."""
        try:
            return str(self._nvml.system_get_driver_version()) if self._nvml else ""
        except Exception:  # as above
            return ""
