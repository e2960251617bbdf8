"""bench: a served model measured at several loads, and the run recorded."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from deployer import __version__
from deployer.bench.campaign import STORY_SAMPLES, campaign
from deployer.bench.endpoint import Endpoint
from deployer.bench.recordings import check_writable, new_name, save
from deployer.bench.session import BenchPlan, Watcher
from deployer.bench.session import run as measure
from deployer.bench.verdicts import differences
from deployer.errors import DeployError
from deployer.hosts.forward import port_of_host
from deployer.hosts.port import AgentChannel
from deployer.operations.facts import read_facts
from deployer.operations.secrets import fetch_secrets
from deployer.schema.bench import Run, Subject
from deployer.schema.facts import HostFacts, ServiceNow
from deployer.schema.service import Secrets, Service


def bench(
    plan: BenchPlan,
    subject: Subject,
    watch: Watcher,
    *,
    label: str = "",
    samples: Sequence[int] = STORY_SAMPLES,
    folder: Path | None = None,
) -> Run:
    """Measure the subject and record what was found; a run that was interrupted is recorded too."""
    check_writable(folder)
    started_at = _now()
    measured = measure(plan, watch)
    subject = subject.model_copy(update={"model": measured.model})
    notes = (*measured.server.notes, *measured.notes)
    run = Run(
        run=new_name(subject.profile or subject.service or measured.model),
        started_at=started_at,
        ended_at=_now(),
        deploy_version=__version__,
        label=label,
        subject=subject,
        workload=plan.workload,
        levels=tuple(measured.levels),
        hours=campaign(measured.levels, samples),
        interrupted=measured.interrupted,
        notes=notes,
    )
    save(run, folder)
    return run


def bench_service(
    channel: AgentChannel,
    service: Service,
    plan: BenchPlan,
    watch: Watcher,
    *,
    label: str = "",
    samples: Sequence[int] = STORY_SAMPLES,
) -> Run:
    """The same for a service of a host, over the connection that is there."""
    facts = read_facts(channel, services=[service.name], gpus=True)
    subject = subject_of(channel.host, service, facts)
    with port_of_host(channel, reachable_address(service.host_bind), service.port) as (address, port):
        endpoint = Endpoint(address, port, f"{address}:{port}", api_key=api_key(service))
        return bench(aimed(plan, endpoint, subject), subject, watch, label=label, samples=samples)


def aimed(plan: BenchPlan, endpoint: Endpoint, subject: Subject) -> BenchPlan:
    """The plan for an endpoint; a baseline that measured something else is refused."""
    baseline = plan.baseline
    if baseline is not None:
        ours = baseline.model_copy(
            update={
                "subject": subject.model_copy(update={"model": baseline.subject.model}),
                "workload": plan.workload,
            }
        )
        if found := differences(baseline, ours):
            raise DeployError(
                f"run {baseline.run} is no baseline for this: {found[0]}", hint="choose its workload"
            )
    return replace(plan, endpoint=endpoint, model=plan.model or subject.model or None)


def subject_of(host: str, service: Service, facts: HostFacts) -> Subject:
    """What is measured, as the host says it."""
    now = facts.service(service.name)
    if now is None or now.state != "serving":
        state = "is not there" if now is None else f"is {now.state} ({now.detail})"
        raise DeployError(
            f"{service.name} on {host} {state}",
            where=host,
            hint=f"deploy status --host {host}; deploy switch makes it serve",
        )
    gpus = facts.gpus.gpus if facts.gpus is not None else ()
    measured = next((each for each in now.measured if each.release == now.release), None)
    return Subject(
        url=f"http://{service.host_bind}:{service.port}",
        model=service.served_model_name,
        route="ssh",
        host=host,
        service=service.name,
        release=now.release,
        profile=now.profile,
        engine=_identity(now),
        gpus=tuple(gpu.name for gpu in gpus if gpu.index in now.gpus),
        unit_digest=now.digest,
        ready_seconds=None if measured is None else measured.ready_seconds,
        downtime_seconds=None if measured is None else measured.downtime_seconds,
    )


def _identity(now: ServiceNow) -> dict[str, object]:
    """The engine that was measured: where, which release, and with which patches."""
    engine = now.engine or {}
    told = {key: engine[key] for key in ("python", "python_version", "version", "package") if engine.get(key)}
    patches = sorted(str(each["patch"]) for each in engine.get("patches") or () if each.get("effective"))
    return told | {"patches": patches}


def reachable_address(bind: str) -> str:
    """Where a service that listens on this address is reached from its own host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def api_key(service: Service) -> str | None:
    """The key that clients of the service must send."""
    if service.secrets.api_key is None:
        return None
    alone = service.model_copy(update={"secrets": Secrets(api_key=service.secrets.api_key)})
    return fetch_secrets(alone)["api_key"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
