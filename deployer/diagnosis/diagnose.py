"""A journal, the unit's exit state and GPU samples -> causes, the root first; `unknown` rather than a wrong guess."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from deployer.agent.causes import COLOUR, JOURNAL, NEW_RUN, SYSTEMD_STARTS, Cause, Rules
from deployer.agent.redact import redact
from deployer.diagnosis.exits import exit_cause
from deployer.diagnosis.gpus import GpuSample, hang_signature
from deployer.diagnosis.rules import Symptom, rules_with
from deployer.schema.outcome import Diagnosis

UNKNOWN = "unknown"
READY = "The server is fired up and ready to roll!"
ERROR = re.compile(r"\b(error|exception|failed|fatal|traceback|killed|abort(ed)?)\b|Error\b", re.I)
# What only tells that something ended, or is well known and harmless.
NO_ERROR = re.compile(
    r"Ignore import error|UserWarning|DeprecationWarning|FutureWarning|warnings\.warn|Received sigquit|SIGQUIT received"
    r"|Traceback \(most recent call last\)|kill_process_tree|\bINFO:|log_level|server_args=|another exception occurred"
)
STATED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: ?|^error: |: error: |\bERROR\b")


def diagnose(
    lines: Sequence[str],
    *,
    exit_state: Mapping[str, str] | None = None,
    gpu_samples: Sequence[GpuSample] = (),
    symptoms: Iterable[Symptom] = (),
) -> tuple[Diagnosis, ...]:
    """Every cause that is shown, the root cause first; never empty."""
    rules = Rules([rule.model_dump() for rule in rules_with(symptoms)])
    found: list[Diagnosis] = []
    runs = split_runs(lines)
    for run in reversed(runs):  # the last start that shows a cause is the one that is asked about
        found += [_diagnosis(cause) for cause in rules.judge(run)]
    if (state := exit_cause(exit_state or {})) is not None:
        found = [state, *found] if state.cause == "host-oom" or not found else [*found, state]
    hang = hang_signature(gpu_samples)
    if hang is not None and not [each for each in found if each.permanent]:
        found.insert(0, hang)
    return _distinct(found) or (unknown(lines),)


def split_runs(lines: Sequence[str]) -> list[list[str]]:
    """The starts of an engine that a journal holds, one list of lines each; their order is kept."""
    runs: list[list[str]] = [[]]
    has_arguments = False
    for line in lines:
        begins = NEW_RUN.search(line) is not None
        if (SYSTEMD_STARTS.search(line) and JOURNAL.match(line) and "systemd" in line) or (
            begins and has_arguments
        ):
            runs.append([])
            has_arguments = False
        has_arguments = has_arguments or begins
        runs[-1].append(line)
    return [run for run in runs if run]


def unknown(lines: Sequence[str]) -> Diagnosis:
    """No rule knows it: the line that looks most like an error, and no more than that."""
    texts = [JOURNAL.sub("", COLOUR.sub("", line)).strip() for line in lines]
    errors = [text for text in texts if ERROR.search(text) and not NO_ERROR.search(text) and len(text) < 4000]
    stated = [text for text in errors if STATED.search(text)]
    served = any(READY in text for text in texts)  # then a word of failure before it was no failure
    evidence = next(iter(stated or ([] if served else errors)), "")
    hint = (
        "no rule knows this; read what stands around this line"
        if evidence
        else "no line here tells of a failure"
    )
    return Diagnosis(cause=UNKNOWN, permanent=False, evidence=redact(evidence)[:500], hint=hint)


def merged(by_file: Mapping[str, Sequence[Diagnosis]]) -> tuple[Diagnosis, ...]:
    """The causes of several hosts' journals of one start: what only follows from a cause elsewhere goes to the end."""
    follows = {"peer-lost", "scheduler-killed", "warm-up-failed", "no-response", UNKNOWN}
    named = [
        each.model_copy(update={"rank": " ".join(filter(None, (each.rank, f"({name})")))})
        for name, causes in by_file.items()
        for each in causes
    ]
    ordered = sorted(named, key=lambda each: each.cause in follows)
    known = [each for each in ordered if each.cause != UNKNOWN]
    return _distinct(known or ordered)


def _diagnosis(cause: Cause) -> Diagnosis:
    return Diagnosis(
        cause=cause.cause,
        permanent=cause.permanent,
        rank=cause.rank,
        evidence=redact(cause.evidence),
        hint=cause.hint,
    )


def _distinct(found: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """One entry a cause: the first."""
    kept: dict[str, Diagnosis] = {}
    for each in found:
        kept.setdefault(each.cause, each)
    return tuple(kept.values())


def squeezed(lines: Iterable[str]) -> list[str]:
    """Lines without the progress bars that a terminal draws over one another."""
    parts = (part for line in lines for part in line.rstrip("\n").split("\r"))
    return [line for line, _ in groupby(parts)]
