"""The verbs begin and attach: hand a plan over to the host, and follow its transaction to the end."""

import os
import re
import select
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import durable
from .errors import AgentError
from .layout import Layout, ServiceLayout
from .released import units_of
from .store import Store, locked
from .transaction.start import allowed_path
from .transaction.state import Ports, own_archive
from .transaction.strategy import STRATEGIES, forward, left_out, unfit

HEARTBEAT_SECONDS = 5.0
TRANSACTION = re.compile(r"[0-9a-f]{32}\Z")
ACTIVATION_TEMPLATE = "deployer-activate@.service"

Emit = Callable[[Dict[str, Any]], None]


def begin(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Stage the release, open the transaction, start its unit, follow it; the outcome is the result."""
    paths = layout.service(str(request["service"]))
    if not TRANSACTION.match(str(request["transaction"])):
        raise AgentError("bad-request", "the transaction's name is not 32 hexadecimal digits", exit_code=2)
    if request.get("strategy") not in STRATEGIES:
        raise AgentError(
            "bad-request", f"this host knows no strategy {request.get('strategy')!r}", exit_code=2
        )
    store = Store(paths)
    try:
        store.prepare()
        with durable.guarded(paths.guard):
            if controller_gone():  # a request that arrives after its sender gave up: nobody knows of it
                raise AgentError("controller-gone", "the controller went away before it began")
            state = _open(request, paths, store, ports)
    except OSError as error:
        raise AgentError(
            "host-not-writable",
            f"the release could not be staged: {error}",
            hint="nothing was changed; make room or remount, and run it again",
        ) from error
    emit(
        {
            "event": "begun",
            "transaction": state["transaction"],
            "release": state["release"],
            "previous_release": state["previous"],
        }
    )
    return follow(paths, ports, emit, str(state["transaction"]))


def _open(request: Dict[str, Any], paths: ServiceLayout, store: Store, ports: Ports) -> Dict[str, Any]:
    """Everything up to the first durable sign that a transaction is open, under the guard."""
    under_way = store.open_transaction()
    if under_way is not None:
        keep_going(paths, ports)
        raise locked(under_way)
    current = store.current()
    if request["expect_current"] != current:
        raise AgentError(
            "stale-plan",
            f"the plan was made against release {request['expect_current']}, "
            f"but release {current} is current now",
            hint="run the command again",
        )
    _check_request(request, paths, store)
    for path in (paths.agent, paths.verifier):
        with open(own_archive(), "rb") as file:
            durable.write_file(path, file.read(), 0o600)
    _install_activation_unit(request, paths, ports)
    # Its process waits for the guard. So whatever ends this one, from here on somebody goes on with what was
    # saved, or clears it away. A restart, because the last transaction's process may still be on its way out.
    ports.systemd.enable(paths.activation_unit)
    ports.systemd.restart(paths.activation_unit)
    store.tidy()
    durable.write_ballast(paths.ballast)
    record = store.release(_release(request, paths, store))
    state = _first_state(request, store, ports, record, current)
    durable.remove(paths.events)
    store.save(state)
    durable.remove(paths.staging)
    return state


def _check_request(request: Dict[str, Any], paths: ServiceLayout, store: Store) -> None:
    """A request that could never become a release, or not by its strategy, is refused before anything is written."""
    if request.get("release") is not None:
        new = store.release(int(request["release"]))["activation"]
    else:
        new = request["bundle"]["activation"]
        for entry in request["bundle"]["files"]:
            allowed_path(paths, str(entry["path"]))
        for unit in units_of(new):
            paths.host.unit(unit)
    current = store.current()
    reason = unfit(
        request["strategy"], new, None if current is None else store.release(current)["activation"]
    )
    if reason:
        raise AgentError("bad-request", f"strategy {request['strategy']}: {reason}", exit_code=2)


def _release(request: Dict[str, Any], paths: ServiceLayout, store: Store) -> int:
    """The number of the release to go to: one that is here already, or the plan's bundle written whole."""
    if request.get("release") is not None:
        return int(store.release(int(request["release"]))["release"])
    bundle = request["bundle"]
    contents = [str(entry["content"]).encode("utf-8", "surrogateescape") for entry in bundle["files"]]
    files = [{key: value for key, value in entry.items() if key != "content"} for entry in bundle["files"]]
    record = {
        "service": paths.name,
        "profile": bundle["profile"],
        "digest": bundle["digest"],
        "files": files,
        "activation": bundle["activation"],
        "created_at": request["created_at"],
        "created_by": request["holder"],
        "engine": request.get("engine", {}),
        "patch_entries": request.get("patches", []),
        # What a later rollback to this release looks at, too; what was asked for this once is not kept.
        "preflight": {k: v for k, v in request.get("preflight", {}).items() if k not in ("deep", "ignore")},
    }
    return store.add_release(record, contents)


def _first_state(
    request: Dict[str, Any], store: Store, ports: Ports, record: Dict[str, Any], current: Optional[int]
) -> Dict[str, Any]:
    number = int(record["release"])
    old = None if current is None else store.release(current)["activation"]
    spared = left_out(record["activation"], old)
    return {
        "transaction": str(request["transaction"]),
        "service": record["service"],
        "profile": record["profile"],
        "action": request["action"],
        "strategy": request["strategy"],
        "order": request["strategy"],
        "left_out": spared,
        "release": number,
        "previous": current,
        "holder": request["holder"],
        "policy": {"rollback": bool(request.get("rollback", True))},
        "started_at": ports.clock.now(),
        "boot_id": ports.clock.boot_id(),
        "direction": "forward",
        "position": forward(request["strategy"])[0].name,
        "begun": [],
        "steps": [],
        "findings": [],
        "marks": {},
        "rules": request.get("rules", []),
        "preflight": request.get("preflight", {}),
        "keep_releases": int(request.get("keep_releases", 10)),
        "measured_seconds": {
            "new": measured(store, number, record["profile"]),
            "old": None if current is None else measured(store, current, ""),
        },
        "closed": False,
        "outcome": None,
    }


def measured(store: Store, number: int, profile: str) -> Optional[float]:
    """Seconds to ready as last measured here: of this release, else of its profile."""
    good = [e for e in store.history() if e.get("outcome") == "committed" and e.get("ready_seconds")]
    same = [e for e in good if e.get("release") == number] or [e for e in good if e.get("profile") == profile]
    return float(same[-1]["ready_seconds"]) if same else None


def _install_activation_unit(request: Dict[str, Any], paths: ServiceLayout, ports: Ports) -> None:
    path = os.path.join(paths.host.units, ACTIVATION_TEMPLATE)
    text = str(request["activation_unit"]).encode()
    try:
        with open(path, "rb") as file:
            same = file.read() == text
    except FileNotFoundError:
        same = False
    if not same:
        durable.write_file(path, text, 0o644)
        ports.systemd.reload()


def attach(request: Dict[str, Any], layout: Layout, ports: Ports, emit: Emit) -> Dict[str, Any]:
    """Follow a service's transaction, the named one or the last, or tell its end."""
    paths = layout.service(str(request["service"]))
    store = Store(paths)
    if not os.path.isdir(paths.folder):
        raise AgentError("no-transaction", f"{paths.name} has had no transaction on this host")
    with durable.guarded(paths.guard):  # one that is just being opened is seen
        state = store.transaction()
    identity = str(request.get("transaction") or (state or {}).get("transaction"))
    told = state if state is not None and state["transaction"] == identity else store.result(identity)
    if told is None:
        raise AgentError(
            "no-transaction",
            f"{paths.name} has had no {'such ' if request.get('transaction') else ''}transaction on this host",
        )
    previous = told["previous"] if told is state else told["previous_release"]
    ended = told.get("result") if told is state else told
    emit(
        {
            "event": "begun",
            "transaction": identity,
            "release": told["release"],
            "previous_release": previous,
            "ended_at": ended["ended_at"] if ended else None,
        }
    )
    return follow(paths, ports, emit, identity, after=int(request.get("after", 0)))


def follow(paths: ServiceLayout, ports: Ports, emit: Emit, identity: str, after: int = 0) -> Dict[str, Any]:
    """Pass events on as they are written until the transaction is closed; the controller's end ends it too."""
    store, seen = Store(paths), after
    quiet_since = checked = ports.clock.seconds()
    while True:
        state = store.transaction()
        if state is None or state["transaction"] != identity:  # closed, and another one began since
            return store.result(identity) or _vanished(paths, identity)
        for event in _newer(paths, seen):
            seen = int(event["seq"])
            emit(event)
            quiet_since = ports.clock.seconds()
        if state.get("closed"):
            return dict(state["result"])
        now = ports.clock.seconds()
        if now - quiet_since > HEARTBEAT_SECONDS:
            emit({"event": "alive"})
            quiet_since = now
        if now - checked > HEARTBEAT_SECONDS:
            checked = now
            keep_going(paths, ports)
        if controller_gone():
            raise AgentError(
                "controller-gone", "the controller went away; the transaction goes on", exit_code=130
            )
        ports.clock.sleep(0.1)


def _vanished(paths: ServiceLayout, identity: str) -> Dict[str, Any]:
    raise AgentError("no-transaction", f"the history of {paths.name} has no transaction {identity}")


def _newer(paths: ServiceLayout, seen: int) -> Iterator[Dict[str, Any]]:
    return (event for event in durable.read_lines(paths.events) if int(event.get("seq", 0)) > seen)


def keep_going(paths: ServiceLayout, ports: Ports) -> None:
    """An open transaction whose process is gone for good is started again by whoever looks."""
    if ports.systemd.unit(paths.activation_unit).get("ActiveState") in ("inactive", "failed"):
        ports.systemd.reset_failed(paths.activation_unit)
        ports.systemd.start(paths.activation_unit, block=False)


def controller_gone() -> bool:
    """Whether the other end of standard input was closed."""
    readable: List[Any] = select.select([sys.stdin], [], [], 0)[0]
    return bool(readable) and os.read(sys.stdin.fileno(), 4096) == b""
