"""bench: a served model measured at several loads, and the run recorded."""

from collections.abc import Callable, Sequence
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
from deployer.operations.background_watch import watched
from deployer.operations.engine_log import checked
from deployer.operations.facts import ask_facts, facts_request
from deployer.operations.meanwhile import beside_switches
from deployer.operations.observe import command_of
from deployer.operations.plan import make_plan, place_of, read_models, release_of
from deployer.operations.reach import api_key, reachable_address
from deployer.planning.plan import engine_version
from deployer.schema.bench import Run, Subject
from deployer.schema.desired import Desired
from deployer.schema.facts import HostFacts, ServiceNow
from deployer.schema.memory import GpuMemory
from deployer.schema.service import Service


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
        seed=plan.seed,
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
    desired: Callable[[str], Desired] | None = None,
    observed: bool = False,
) -> Run:
    """The same for a service of a host, over the connection that is there."""
    facts, memory = _facts_and_memory(channel, service, desired)
    subject = subject_of(channel.host, service, facts)
    with (
        port_of_host(channel, reachable_address(service.host_bind), service.port) as (address, port),
        watched(channel, service, gpus=bool(subject.gpus), wanted=observed) as watching,
    ):
        endpoint = Endpoint(address, port, f"{address}:{port}", api_key=api_key(service))
        run = bench(aimed(plan, endpoint, subject), subject, watch, label=label, samples=samples)
    run = beside_switches(checked(run, channel, service.name), channel, service.name)
    hours = campaign(run.levels, samples)
    run = run.model_copy(update={"memory": memory, "observation": watching.recording, "hours": hours})
    save(run)
    return run


def _facts_and_memory(
    channel: AgentChannel, service: Service, desired: Callable[[str], Desired] | None
) -> tuple[HostFacts, tuple[GpuMemory, ...]]:
    """The host's facts, and what each GPU should hold by the profile that serves; one conversation."""
    asked = facts_request(services=[service.name], gpus=True)
    if desired is None or not service.model_path.startswith("/"):
        return ask_facts(channel, asked), ()
    checkpoints, facts = read_models(channel, [service.model_path], [], asked)
    now = facts.service(service.name)
    try:
        wanted = desired((now.profile if now is not None else None) or "")
        plan = make_plan(
            wanted.profile,
            checkpoints,
            service.model_path,
            place_of(wanted, facts),
            release_of(None, engine_version(wanted, facts)),
            measure_free=True,
        )
    except (DeployError, KeyError):  # a profile that is not in the inventory, a model that tells too little
        return facts, ()
    return facts, plan.gpus


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
    # A busy engine may take longer for its /health than the host waits: the bench's own probe decides then.
    if now is None or now.state not in ("serving", "unknown"):
        state = "is not there" if now is None else f"is {now.state} ({now.detail})"
        raise DeployError(
            f"{service.name} on {host} {state}",
            where=host,
            hint=f"deploy status --host {host}; deploy switch makes it serve",
        )
    gpus = facts.gpus.gpus if facts.gpus is not None else ()
    measured = next((each for each in now.measured if each.release == now.release), None)
    argv, environment = command_of(now.unit_text or "")
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
        argv=tuple(argv),
        environment=environment,
        ready_seconds=None if measured is None else measured.ready_seconds,
        downtime_seconds=None if measured is None else measured.downtime_seconds,
    )


def _identity(now: ServiceNow) -> dict[str, object]:
    """The engine that was measured: where, which release, and with which patches."""
    engine = now.engine or {}
    told = {key: engine[key] for key in ("python", "python_version", "version", "package") if engine.get(key)}
    patches = sorted(str(each["patch"]) for each in engine.get("patches") or () if each.get("effective"))
    return told | {"patches": patches}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
