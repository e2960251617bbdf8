"""hold and route: new connections wait at the front while nobody serves, and go to the target once it does."""

from .state import StepFailed, Transaction
from .strategy import Step

POLL_SECONDS = 0.1
SHORTEST_SECONDS = 60.0


def hold(tx: Transaction, step: Step) -> str:
    """Let new connections wait; from here on the service is interrupted."""
    activation = tx.activation(step.target)
    assert activation is not None
    front = tx.front(activation)
    front.ensure()  # one that somebody stopped cannot let anybody wait
    tx.mark("down_since", tx.ports.clock.seconds())
    tx.mark("held", True)
    front.hold()
    return "new connections wait"


def route(tx: Transaction, step: Step) -> str:
    """Give the clients to the target: added first, the others away only when the front itself finds it healthy."""
    activation = tx.activation(step.target)
    assert activation is not None
    front, port = tx.front(activation), int(activation["port"])
    front.ensure()
    front.add(port)
    since = tx.mark(f"{step.name}_since", tx.ports.clock.seconds())
    limit = max(SHORTEST_SECONDS, float(activation["front"].get("healthy_seconds") or 0))
    while not front.healthy(port):
        if tx.ports.clock.seconds() - float(since) > limit:
            raise StepFailed(
                "front-unhealthy",
                f"the front does not find the engine on port {port} healthy within {limit:.0f} s",
                hint=f"journalctl -u {activation['front']['unit_name']}",
            )
        tx.pause(POLL_SECONDS)
    for other in front.backends():
        if other != port:
            front.remove(other)
    front.release()
    return f"clients are served by port {port}"
