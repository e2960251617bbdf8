"""How warm a start would be: kernels, byte code, weights in memory, and the seconds that follow from what was measured."""

from collections.abc import Iterator

from deployer.render.environment import cache_root, cache_variables
from deployer.schema.desired import Desired
from deployer.schema.facts import Measured, ServiceNow, Warmth
from deployer.schema.warmth import WarmItem, Warmness

GIB = 2**30
# A few files of large packages never compile; a file's last pages may be read by nobody.
ENOUGH = 0.98


def warmth_request(desired: Desired) -> dict[str, object]:
    """What to ask a host of a service's next start, before the engine's release is known."""
    said = desired.profile.environment or {}
    home = said.get("HF_HOME") or cache_variables(desired, "any")["HF_HOME"]
    return {
        "engine_python": desired.engine.python,
        "model_path": desired.service.model_path,
        "hubs": [said.get("HF_HUB_CACHE") or f"{home}/hub"],
        "caches": f"{desired.service.cache_folder}/{desired.service.name}",
    }


def warm_items(desired: Desired, version: str, found: Warmth | None) -> tuple[WarmItem, ...]:
    """Each thing that makes a start slow when it is missing, and how it stands."""
    return tuple(_items(found, cache_root(desired, version))) if found else ()


def kept_items(found: Warmth | None) -> tuple[WarmItem, ...]:
    """The same of a release that is kept: of kernels the host tells of the one folder that is its own, if it has one."""
    root = found.kernels[0].folder if found and found.kernels else None
    return tuple(_items(found, root)) if found else ()


def _items(found: Warmth, root: str | None) -> Iterator[WarmItem]:
    if root is not None:
        yield _kernels(found, root)
    if found.bytecode is not None:
        text = f"{found.bytecode.compiled} of {found.bytecode.files} files of the engine's packages"
        yield WarmItem(
            item="byte code", state=_state(found.bytecode.compiled, found.bytecode.files), detail=text
        )
    if found.weights is not None:
        there, size = found.weights.resident_bytes, found.weights.bytes
        text = f"{_size(there)} of {_size(size)} in memory"
        yield WarmItem(item="weights", state=_state(there, size), detail=text)


def _kernels(found: Warmth, root: str) -> WarmItem:
    kernels = found.kernels_in(root)
    if kernels is not None and kernels.files:
        text = f"{kernels.files} files, {_size(kernels.bytes)} in {root}"
        return WarmItem(item="kernels", state="warm", detail=text)
    others = sum(1 for each in found.kernels if each.files)
    beside = f"; {others} other cache folders are for other releases, GPUs or patches" if others else ""
    text = f"nothing in {root} yet, the first start compiles them{beside}"
    return WarmItem(item="kernels", state="cold", detail=text)


def _state(there: int, whole: int) -> Warmness:
    if there >= ENOUGH * whole:
        return "warm"
    return "cold" if there < (1 - ENOUGH) * whole else "partly"


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.1f} MiB"


def alike_starts(
    now: ServiceNow | None, profile: str, items: tuple[WarmItem, ...] = (), release: int | None = None
) -> tuple[Measured, ...]:
    """What this host measured of the release, else of its profile, with kernels as they are now; the newest first.

    Byte code and weights are not asked: a switch brings them near before it stops anything, and what was measured had
    that too. Where nobody looked at the kernels, any start will do.
    """
    cold = next((item.state == "cold" for item in items if item.item == "kernels"), None)
    starts = _starts(now, profile, release)
    return tuple(each for each in starts if cold is None or was_cold(each) in (None, cold))


def colder_start(now: ServiceNow | None, profile: str, release: int | None = None) -> Measured | None:
    """The newest start that had to compile its kernels: what one takes no longer than when they are there."""
    return next((each for each in _starts(now, profile, release) if was_cold(each)), None)


def _starts(now: ServiceNow | None, profile: str, release: int | None) -> list[Measured]:
    measured = [each for each in (now.measured if now else ()) if each.ready_seconds is not None]
    same = [m for m in measured if m.release == release] or [m for m in measured if m.profile == profile]
    return sorted(same, key=lambda each: each.release, reverse=True)


def expected_start(
    now: ServiceNow | None, profile: str, items: tuple[WarmItem, ...] = (), release: int | None = None
) -> float | None:
    """Seconds to ready as last measured on this host."""
    return next((each.ready_seconds for each in alike_starts(now, profile, items, release)), None)


def was_cold(measured: Measured) -> bool | None:
    """Whether a measured start had to compile its kernels; None where that was not looked at."""
    if measured.warmth is None or not measured.warmth.kernels:
        return None
    return not any(each.files for each in measured.warmth.kernels)
