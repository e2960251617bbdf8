"""The front's units: sglang-router and its parking place, or systemd's socket with socket-proxyd.

What the front leads to changes with every switch and stands in an environment file that the agent keeps; the units
themselves stay the same, as a restart of the front breaks its clients' connections.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from deployer.render.quoting import quote_exec, quote_specifiers
from deployer.render.templates import render_template
from deployer.schema.desired import Desired
from deployer.schema.release import ActivationFront, ActivationParking, BundleFile
from deployer.schema.service import Service

ROUTER = "sglang-front-router.service.j2"
PROXY = "sglang-front-proxy.service.j2"
SOCKET = "sglang-front.socket.j2"
PROXYD = "/lib/systemd/systemd-socket-proxyd"
STOP_SECONDS = 30
# sglang-router takes its keys and workers from its command line only, where everybody on the host could read them.
PROGRAM = (
    "import os, sys; from sglang_router.launch_router import main; "
    "sys.argv += ['--worker-urls', *os.environ.get('FRONT_WORKERS', '').split(), "
    "'--control-plane-api-keys', 'deploy:deploy:admin:' + os.environ['FRONT_ADMIN_KEY']]; main()"
)
# By trial with 0.3.2. manual: the only policy without a memory of prompts that counts requests by worker. No circuit
# breaker: with one engine it only prolongs an outage by its 60 s. A busy engine may answer /health late.
ROUTER_FLAGS = (
    *("--policy", "manual", "--disable-circuit-breaker", "--log-level", "warn"),
    *("--health-check-interval-secs", "5", "--health-check-timeout-secs", "20"),
    *("--health-failure-threshold", "3", "--health-success-threshold", "1"),
    *("--worker-startup-timeout-secs", "86400", "--worker-startup-check-interval", "1"),
    *("--request-timeout-secs", "86400", "--shutdown-grace-period-secs", str(STOP_SECONDS)),
    *("--prometheus-host", "127.0.0.1"),
)


def front_of(desired: Desired) -> ActivationFront | None:
    """What the agent needs to know of a service's front; None where it has none."""
    found = service_front(desired.service, desired.engine.python)
    if found is None:
        return None
    text = "\0".join(file.content for file in front_files(desired, found))
    return found.model_copy(update={"digest": hashlib.sha256(text.encode()).hexdigest()[:16]})


def service_front(service: Service, engine_python: str) -> ActivationFront | None:
    """The front of a service whatever its profile; the digest of its unit files is left out."""
    front = service.front
    if front is None:
        return None
    stem = f"sglang-{service.name}"
    is_router = front.kind == "router"
    parking = ActivationParking(
        unit_name=f"{stem}-parking.service",
        socket_unit_name=f"{stem}-parking.socket",
        port=(service.front_ports or (0,))[0],
    )
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(service.host_bind, service.host_bind)
    return ActivationFront(
        kind=front.kind,
        unit_name=f"{stem}-front.service",
        socket_unit_name=None if is_router else f"{stem}-front.socket",
        python=(front.python or engine_python) if is_router else None,
        bind=service.host_bind,
        port=service.port,
        admin_url=f"http://{_endpoint(address, service.port)}" if is_router else None,
        hold_seconds=front.hold_seconds,
        parking=parking if is_router else None,
        metrics_port=service.front_ports[1] if is_router else None,
    )


def front_files(desired: Desired, front: ActivationFront) -> Iterator[BundleFile]:
    """The unit files of a front."""
    service = desired.service
    context: dict[str, Any] = {
        "service": service.name,
        "description": quote_specifiers(f"Front of SGLang service {service.name}"),
        "parking": False,
        "user": service.user,
        "environment_file": f"/var/lib/deployer/{service.name}/front.env",
        "started": f"/run/sglang-{service.name}-front",
        "held": f"/run/deployer/{service.name}.held",
        "hold_tenths": int(front.hold_seconds * 10),
        "stop_seconds": STOP_SECONDS + 10,
        "connections": 16384,
        "listen": _endpoint(service.host_bind, service.port),
        "exec_start": "",
    }
    if front.kind == "socket":
        proxy = f"{PROXYD} --connections-max=16384 ${{FRONT_BACKEND}}"
        yield _file(desired, front.unit_name, PROXY, {**context, "exec_start": proxy})
        yield _file(desired, front.socket_unit_name, SOCKET, context)
        return
    yield _file(
        desired, front.unit_name, ROUTER, {**context, "exec_start": quote_exec(router_argv(desired, front))}
    )
    assert front.parking is not None
    aside = {
        **context,
        "parking": True,
        "description": quote_specifiers(f"Parking place of the front of SGLang service {service.name}"),
        "listen": f"127.0.0.1:{front.parking.port}",
        # Few at a time: should the router ever send what comes from here back to here, that ends soon.
        "exec_start": f"{PROXYD} --connections-max=1024 {(front.admin_url or '').removeprefix('http://')}",
    }
    yield _file(desired, front.parking.unit_name, PROXY, aside)
    yield _file(desired, front.parking.socket_unit_name, SOCKET, aside)


def router_argv(desired: Desired, front: ActivationFront) -> list[str]:
    """The router's command line; keys and workers come to it through its environment."""
    argv = [str(front.python), "-c", PROGRAM, "--host", front.bind, "--port", str(front.port)]
    return [*argv, *ROUTER_FLAGS, "--prometheus-port", str(front.metrics_port)]


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _file(desired: Desired, unit: str | None, template: str, context: dict[str, Any]) -> BundleFile:
    text = render_template(template, {**context, "unit": unit}, desired.template_folder)
    return BundleFile(path=f"/etc/systemd/system/{unit}", mode=0o644, content=text)
