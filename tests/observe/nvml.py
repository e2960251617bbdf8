"""STAND-IN for libnvidia-ml: functions as ctypes gives them, that count energy."""

from __future__ import annotations

import time
from typing import Any

NOT_SUPPORTED = 3


class Library:
    """GPUs that draw so many watts each; None: one that counts nothing."""

    def __init__(self, watts: list[float | None]) -> None:
        self.watts = watts
        self.began = time.monotonic() - 1000
        self.status = 0

    def nvmlInit_v2(self) -> int:
        return self.status

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.watts)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: Any, device: Any) -> int:
        device._obj.value = number.value + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, used: Any) -> int:
        watts = self.watts[device.value - 1]
        if watts is None:
            return NOT_SUPPORTED
        used._obj.value = int(1000 * watts * (time.monotonic() - self.began))
        return 0
