"""What systemd says of a unit's end: a cause where the journal has none."""

from collections.abc import Mapping

from deployer.schema.outcome import Diagnosis

# systemd.exec(5), Process Exit Codes: what the service manager itself could not do.
STATUSES = {
    "200": ("working-directory", "the unit's WorkingDirectory= is not there"),
    "203": ("exec-failed", "the program of ExecStart= is not there or not executable"),
    "208": ("environment-file", "an EnvironmentFile= or standard input of the unit cannot be read"),
    "216": ("no-user", "the unit's Group= does not exist on this host"),
    "217": ("no-user", "the unit's User= does not exist on this host"),
    "226": ("namespace", "a path that the unit's hardening names is not there"),
}
SIGNALS = {
    "6": "it aborted (SIGABRT): an assertion in C++ code, whose last line stands in the journal",
    "7": "SIGBUS: /dev/shm is full, or a mapped shard was cut off",
    "9": "SGLang ends itself with SIGKILL after a child's failure, and up to 0.5.18 after every stop too; the kernel's "
    "out-of-memory killer would say Result=oom-kill",
    "11": "it crashed (SIGSEGV) in compiled code; often an ABI mismatch of kernels and torch",
    "15": "somebody sent SIGTERM",
}


def exit_cause(shown: Mapping[str, str]) -> Diagnosis | None:
    """The cause that `systemctl show` names; None where it names none."""
    result, status = shown.get("Result", ""), shown.get("ExecMainStatus", "")
    evidence = f"Result={result} ExecMainStatus={status}"
    if result == "oom-kill":
        hint = "the kernel ended it because the host's own memory, or the unit's MemoryMax=, ran out"
        return Diagnosis(cause="host-oom", permanent=True, evidence=evidence, hint=hint)
    if result == "exit-code" and status in STATUSES:
        cause, hint = STATUSES[status]
        return Diagnosis(cause=cause, permanent=True, evidence=evidence, hint=hint)
    if result == "exit-code" and status == "2":
        hint = "status 2 is what argparse ends with: a flag that this release does not take"
        return Diagnosis(cause="unknown-flag", permanent=True, evidence=evidence, hint=hint)
    if result == "timeout" and shown.get("SubState") in ("start", "start-pre", "start-post", "failed"):
        hint = "TimeoutStartSec= or TimeoutStopSec= of the unit was too short"
        return Diagnosis(cause="unit-timeout", permanent=True, evidence=evidence, hint=hint)
    if result in ("signal", "core-dump") and status in SIGNALS:
        return Diagnosis(cause="unknown", permanent=False, evidence=evidence, hint=SIGNALS[status])
    return None
