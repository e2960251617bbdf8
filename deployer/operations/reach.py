"""How a service is reached from its own host: at which address, with which key."""

from deployer.operations.secrets import fetch_secrets
from deployer.schema.service import Secrets, Service


def reachable_address(bind: str) -> str:
    """Where a service that listens on this address is reached from its own host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def api_key(service: Service) -> str | None:
    """The key that clients of the service must send."""
    if service.secrets.api_key is None:
        return None
    alone = service.model_copy(update={"secrets": Secrets(api_key=service.secrets.api_key)})
    return fetch_secrets(alone)["api_key"]
