"""soak: watch the new service generate for a while before it counts as good."""

from typing import Any, Dict

from ..probes import Engine
from .journal import Reader
from .readiness import generated_tokens
from .state import StepFailed, Transaction
from .strategy import Step

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
PROBE_SECONDS = 120.0


def soak(tx: Transaction, step: Step) -> str:
    """The asked probes once, then soak.seconds of watching; a death, a restart or an empty answer fails it."""
    activation = tx.activation(step.target)
    assert activation is not None
    wanted: Dict[str, Any] = activation.get("soak", {})
    seconds = float(wanted.get("seconds", 0))
    if not seconds and not any(wanted.get(k) for k in ("streaming", "constrained", "long_prompt")):
        return "not asked for"
    engine, unit = tx.engine(activation), str(activation["unit_name"])
    reader = Reader(tx.ports.systemd, unit, tx.marks.get("start_cursor"), tx.rules)
    shown = tx.ports.systemd.unit(unit)
    before = tx.mark("soak_process", [shown.get("MainPID"), shown.get("NRestarts")])
    tx.mark("soak_since", tx.ports.clock.seconds())
    _probes(engine, str(activation["served_model_name"]), wanted)
    while True:
        shown = tx.ports.systemd.unit(unit)
        if [shown.get("MainPID"), shown.get("NRestarts")] != before or shown.get("ActiveState") != "active":
            reader.read()
            cause = reader.root_cause()
            raise StepFailed(
                cause.cause if cause else "died-after-ready",
                f"{unit} died within the soak time",
                cause.hint if cause else "",
                cause.evidence if cause else "",
                cause.permanent if cause else True,
                cause.rank if cause else "",
            )
        if tx.elapsed("soak_since") >= seconds:
            return f"watched for {seconds:g} s"
        _expect(engine, str(activation["served_model_name"]), "generate")
        tx.ports.clock.sleep(min(1.0, seconds))


def _probes(engine: Engine, model: str, wanted: Dict[str, Any]) -> None:
    if wanted.get("long_prompt"):
        _expect(engine, model, "long prompt", prompt="The quick brown fox jumps over the lazy dog. " * 100)
    if wanted.get("constrained"):
        _expect(
            engine,
            model,
            "constrained request",
            tokens=32,
            ignore_eos=False,
            response_format={"type": "json_schema", "json_schema": {"name": "ok", "schema": SCHEMA}},
        )
    if wanted.get("streaming"):
        answer = engine.generate(model, PROBE_SECONDS, stream=True)
        if answer.status != 200 or b"data: [DONE]" not in answer.body:
            raise StepFailed("soak-failed", f"a streamed request did not end well (status {answer.status})")


def _expect(engine: Engine, model: str, what: str, **more: Any) -> None:
    answer = engine.generate(model, PROBE_SECONDS, **more)
    if answer.status != 200 or not generated_tokens(answer.json()):
        raise StepFailed(
            "soak-failed",
            f"the soak's {what} failed: status {answer.status} {answer.reason}",
            evidence=answer.body.decode("utf-8", "replace")[:300],
        )
