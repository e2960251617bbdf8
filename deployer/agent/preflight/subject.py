"""What a preflight is about: one service on this host, as the controller describes it or a release records it."""

import pwd
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..gpus import Gpus


class Account(NamedTuple):
    """A user of this host."""

    name: str
    uid: int
    gid: int


class Subject(NamedTuple):
    """A service and what its profile needs."""

    service: str
    python: str
    model_path: str
    hubs: List[str]
    load_format: str
    user: Optional[str]
    working_directory: Optional[str]
    port_block: Tuple[int, int]
    own_units: List[str]
    gpus: List[int]
    expected: Dict[str, Any]
    cache_folders: List[str]
    peer_access: str
    nodes: int
    argv: List[str]
    environment: Dict[str, str]
    front: Optional[Dict[str, Any]]
    nvidia: Gpus

    def account(self) -> Optional[Account]:
        """The user that the engine runs as, None for root."""
        if self.user in (None, "root"):
            return None
        entry = pwd.getpwnam(str(self.user))
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def subject_of(said: Dict[str, Any], nvidia: Gpus) -> Subject:
    """The subject of a request; what is not said is as for a service without GPUs."""
    environment = {str(name): str(value) for name, value in said.get("environment", {}).items()}
    home = environment.get("HF_HOME")
    first, last = said.get("port_block") or (0, 0)
    return Subject(
        service=str(said["service"]),
        python=str(said.get("engine_python", "")),
        model_path=str(said.get("model_path", "")),
        hubs=[environment.get("HF_HUB_CACHE") or f"{home}/hub"] if home else [],
        load_format=str(said.get("load_format") or "auto"),
        user=said.get("user"),
        working_directory=said.get("working_directory"),
        port_block=(int(first), int(last)),
        own_units=[str(unit) for unit in said.get("own_units", []) if unit],
        gpus=[int(index) for index in said.get("gpus", [])],
        expected=dict(said.get("expected") or {}),
        cache_folders=[str(folder) for folder in said.get("cache_folders", [])],
        peer_access=str(said.get("peer_access") or ""),
        nodes=int(said.get("nodes") or 1),
        argv=[str(word) for word in said.get("argv", [])],
        environment=environment,
        front=said.get("front"),
        nvidia=nvidia,
    )
