"""Where a folder's bytes come from: its file system, and how many bytes that has read so far."""

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "9p",
    "beegfs",
    "gpfs",
    "wekafs",
    "glusterfs",
    "afs",
    "ocfs",
)
MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
SECTOR_BYTES = 512
ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mounted file system."""

    device: str
    place: str
    filesystem: str
    source: str


class Storage:
    """What a path is stored on."""

    def __init__(self, path: str, mountinfo: str = "/proc/self/mountinfo") -> None:
        self.path = os.path.realpath(path)
        self.mount = _mount(self.path, mountinfo)

    def document(self) -> Dict[str, Any]:
        """As JSON."""
        mount = self.mount
        return {
            "path": self.path,
            "mount": mount.place if mount else None,
            "filesystem": mount.filesystem if mount else None,
            "kind": kind_of(mount.filesystem) if mount else "unknown",
        }

    def read_bytes(self) -> Optional[int]:
        """Bytes read from the device or the server since it was mounted; None where nobody counts them."""
        mount = self.mount
        if mount is None:
            return None
        if mount.filesystem.startswith("nfs"):
            return _nfs_bytes(mount.place)
        try:
            with open(f"/sys/dev/block/{mount.device}/stat", encoding="ascii") as file:
                return int(file.read().split()[2]) * SECTOR_BYTES
        except (OSError, ValueError, IndexError):
            return None


def kind_of(filesystem: str) -> str:
    """`network`, `memory` or `disk`; what a FUSE program does with it is not known."""
    name = filesystem.rsplit(".", 1)[-1]
    if name.startswith(NETWORK):
        return "network"
    if name in MEMORY:
        return "memory"
    return "unknown" if filesystem.startswith("fuse") else "disk"


def _mount(path: str, mountinfo: str) -> Optional[Mount]:
    found: Optional[Mount] = None
    try:
        with open(mountinfo, encoding="utf-8", errors="replace") as file:
            for line in file:
                mount = _parsed(line.split())
                inside = mount and (path == mount.place or path.startswith(mount.place.rstrip("/") + "/"))
                # A later mount on the same place hides the earlier one.
                if mount and inside and (found is None or len(mount.place) >= len(found.place)):
                    found = mount
    except OSError:
        pass
    return found


def _parsed(words: List[str]) -> Optional[Mount]:
    """A line of proc(5)'s mountinfo: optional fields end with a dash."""
    if "-" not in words[6:]:
        return None
    dash = words.index("-", 6)
    place = ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), words[4])
    return Mount(words[2], place, words[dash + 1], words[dash + 2])


def _nfs_bytes(place: str) -> Optional[int]:
    """The fifth number of `bytes:` in mountstats counts what the server sent."""
    here = False
    try:
        with open("/proc/self/mountstats", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("device "):
                    here = f" mounted on {place} with " in line
                elif here and line.split()[:1] == ["bytes:"]:
                    return int(line.split()[5])
    except (OSError, ValueError, IndexError):
        pass
    return None
