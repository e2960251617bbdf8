"""Energy counters of the GPUs by NVML, where its library is: power as a difference of them misses no moment.

nvidia-smi's power.draw is a mean of the last second on most GPUs, and on some the sensor sees a quarter of the time
only (arXiv 2312.02741).
"""

import ctypes
import queue
import threading
from typing import Any, Callable, Dict, List, Optional

LIBRARY = "libnvidia-ml.so.1"
SECONDS = 1.0
GOOD = 0


class NoEnergy(Exception):
    """There is no counter to read, and why."""


class EnergyReader:
    """The counters of all GPUs, in the order of nvidia-smi."""

    def __init__(self, library: Optional[Any] = None) -> None:
        try:
            self.library = ctypes.CDLL(LIBRARY) if library is None else library
            self._call("nvmlInit_v2")
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            self.devices = [self._device(number) for number in range(count.value)]
        except (OSError, AttributeError) as error:  # no library, or one without these functions
            raise NoEnergy(str(error)) from error
        if all(used is None for used in self.joules()):
            raise NoEnergy("NVML counts no energy on these GPUs")

    def joules(self) -> List[Optional[float]]:
        """Used since the driver was loaded; None of a GPU that does not count."""
        return [self._joules(device) for device in self.devices]

    def _joules(self, device: ctypes.c_void_p) -> Optional[float]:
        used = ctypes.c_ulonglong()
        try:
            self._call("nvmlDeviceGetTotalEnergyConsumption", device, ctypes.byref(used))
        except (NoEnergy, AttributeError):
            return None
        return used.value / 1000

    def _device(self, number: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(device))
        return device

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != GOOD:
            raise NoEnergy(f"{name}: NVML error {status}")


class EnergyPoller(threading.Thread):
    """Reads once a second until told to stop; in a thread, since a sick driver never answers."""

    def __init__(
        self, seconds: Callable[[], float], reader: Callable[[], EnergyReader] = EnergyReader
    ) -> None:
        super().__init__(name="energy-poller", daemon=True)
        self.seconds = seconds
        self.reader = reader
        self.events: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        self.ended = threading.Event()

    def run(self) -> None:
        """One reading after the other; none where there is nothing to read, which is told."""
        began = self.seconds()
        try:
            reader = self.reader()
        except NoEnergy as error:
            gap = {"source": "energy", "since": round(began, 3), "ended": False, "message": str(error)}
            self.events.put(dict(gap, event="gap", t=round(self.seconds(), 3)))
            return
        while not self.ended.is_set():
            t = self.seconds()
            self.events.put({"event": "energy", "t": round(t, 3), "joules": reader.joules()})
            self.ended.wait(SECONDS)
