"""Time on the host: durations by the boot clock, which neither jumps nor stops in suspend; dates for people."""

import time
from datetime import datetime, timezone

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Clock:
    """The port to time; tests give another one."""

    def seconds(self) -> float:
        """Seconds since boot; comparable only within one boot id."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> str:
        """The date in UTC, ISO 8601."""
        return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def boot_id(self) -> str:
        """Which boot this is; a new one after every power cut."""
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
