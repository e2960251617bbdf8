"""What becomes of each setting of a unit: taken over, replaced by deploy's own template, or left for a person."""

from deployer.units.reading import Directive

# Read into the service and the profile.
TAKEN = frozenset(
    [
        "ExecStart",
        "Environment",
        "EnvironmentFile",
        "User",
        "WorkingDirectory",
        "Image",
        "Exec",
        "PublishPort",
        "Volume",
    ]
)

# deploy's template says this itself; why it may differ.
REPLACED = {
    "Description": "deploy writes its own",
    "Documentation": "deploy writes none",
    "Type": "deploy's units are Type=exec; readiness is asked of the engine itself",
    "RemainAfterExit": "deploy's units are Type=exec",
    "NotifyAccess": "deploy's units are Type=exec",
    "Restart": "Restart=always with a start limit made from the measured start time",
    "RestartSec": "5 s",
    "StartLimitIntervalSec": "made from the measured start time",
    "StartLimitInterval": "made from the measured start time",
    "StartLimitBurst": "4 starts",
    "KillMode": "KillMode=mixed: with control-group running requests break",
    "KillSignal": "SIGTERM, after deploy's own drain",
    "SendSIGKILL": "yes, or a wedged engine keeps the GPUs",
    "TimeoutStartSec": "readiness has a deadline of its own (deadlines.ready_seconds)",
    "TimeoutStopSec": "made from drain_seconds (deadlines.stop_seconds)",
    "TimeoutSec": "made from the profile's deadlines",
    "LimitNOFILE": "1048576",
    "LimitMEMLOCK": "infinity",
    "LimitCORE": "0",
    "LimitSTACK": "8M:infinity",
    "TasksMax": "infinity",
    "LimitNPROC": "TasksMax=infinity",
    "OOMScoreAdjust": "-500",
    "OOMPolicy": "stop",
    "SyslogIdentifier": "the unit's own name",
    "SuccessExitStatus": "deploy judges a stop by its own record",
    "RestartPreventExitStatus": "2, which argparse ends with",
    "ProtectSystem": "full",
    "ProtectControlGroups": "yes",
    "LogRateLimitIntervalSec": "0: no line of a traceback is lost",
    "LogRateLimitBurst": "no limit",
    "WantedBy": "multi-user.target",
    "RequiresMountsFor": "the model and cache folders",
}
NETWORK = {
    "network.target",
    "network-online.target",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
}
USUAL_OUTPUT = {"journal", "inherit", "journal+console", "syslog"}

# Other settings that mean something; the reason why deploy does not take them over.
LEFT = {
    "ExecStartPre": "deploy runs nothing of yours before a start",
    "ExecStartPost": "deploy asks the engine itself whether it is ready",
    "ExecStop": "deploy drains and then sends SIGTERM",
    "ExecStopPost": "deploy runs nothing of yours after a stop",
    "ExecReload": "an engine cannot reload",
    "ExecCondition": "deploy runs nothing of yours before a start",
    "DynamicUser": "deploy wants a user that stays: useradd --system",
    "Group": "the user's own group is used",
    "PassEnvironment": "write the variables into the profile's environment",
    "LoadCredential": "use the service's secrets",
    "SetCredential": "use the service's secrets",
}
KNOWN_SECTIONS = {"Unit", "Service", "Install", "Container"}
# Of the hundreds of settings of systemd.exec(5) and its neighbours: a name that looks like one of them.
HARDENING = (
    "Protect", "Private", "Restrict", "SystemCall", "Capabilit",
    "Ambient", "NoNewPrivileges", "MemoryDeny", "LockPersonality",
    "ReadWritePaths", "ReadOnlyPaths", "Inaccessible", "Bind", "Device", "RootDirectory", "Remove", "UMask", "KeyringMode",
)  # fmt: skip


def fate_of(directive: Directive) -> tuple[str, str]:
    """`taken`, `replaced` or `left`, and why."""
    key, value = directive.key, directive.value
    if directive.section.startswith("X-") or directive.section not in KNOWN_SECTIONS:
        return "left", f"the section [{directive.section}] is not one that deploy reads"
    if key in TAKEN:
        return "taken", ""
    if key in ("After", "Wants") and set(value.split()) <= NETWORK:
        return "replaced", "the network and NVIDIA's services"
    if key == "WantedBy" and value.split() != ["multi-user.target"]:
        return "left", "deploy's units start with multi-user.target"
    if key in ("StandardOutput", "StandardError"):
        usual = value in USUAL_OUTPUT
        return ("replaced", "the journal") if usual else ("left", "what the engine says goes to the journal")
    if key in REPLACED:
        return "replaced", REPLACED[key]
    if key in LEFT:
        return "left", LEFT[key]
    if key.startswith(HARDENING):
        return "left", "deploy's units have only the hardening that leaves CUDA, NCCL and compilers working"
    return "left", "deploy's template has no place for it; a template of your own in the inventory has"
