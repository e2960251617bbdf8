"""What a change means for those who are connected to the front."""

from collections.abc import Iterator

from deployer.planning.preflight import warning
from deployer.schema.facts import ServiceNow
from deployer.schema.outcome import Finding
from deployer.schema.release import ActivationFront


def front_findings(now: ServiceNow | None, new: ActivationFront | None) -> Iterator[Finding]:
    """A front that comes, changes or goes interrupts its clients once."""
    old = now.standing.front if now is not None and now.standing is not None else None
    if now is None or now.standing is None or old == new:
        return
    if old is None and new is not None:
        text = f"{new.unit_name} takes over {new.bind}:{new.port}: clients are refused until it leads to the new engine"
    elif old is not None and new is None:
        text = f"{old.unit_name} is taken away: its clients' connections end, and the engine listens there itself"
        yield warning("front-changes", text)
        return
    else:
        text = "the front's own unit changes: it is restarted, which breaks the connections of its clients"
    yield warning("front-changes", text, "later switches leave the front as it is")
