"""Settings that systemd accepts and that break an engine: restarts, stops, limits, hardening."""

from collections.abc import Callable, Iterator

from deployer.units.mistake import NO, YES, Lint, at, launch_of
from deployer.units.reading import Directive, Unit
from deployer.units.spans import INFINITE, bytes_of, seconds_of

# After a drain late releases wait 15 s for their schedulers and up to 60 s for their children.
SHORTEST_STOP_SECONDS = 90.0
DEFAULT_BURST, DEFAULT_INTERVAL_SECONDS = 5, 10.0
# From here on somebody means the load of the model.
USUAL_START_SECONDS = 180.0
# How long an engine lives at least before it fails: imports alone take longer.
SHORTEST_LIFE_SECONDS = 5.0


def _restart_limits(unit: Unit) -> Iterator[Lint]:
    restart = unit.one("Restart")
    for key in ("StartLimitIntervalSec", "StartLimitInterval", "StartLimitBurst"):
        for directive in unit.all(key):
            if key == "StartLimitIntervalSec":
                message = "belongs into [Unit]; in [Service] systemd ignores it"
                yield at(directive, "start-limit-section", "error", f"{key} {message}", "move it to [Unit]")
    if restart is None or restart.value in ("no", "on-success"):
        return
    burst, interval = _limits(unit)
    pause = seconds_of(unit.get("RestartSec")) or 0.1
    if interval == 0:
        yield at(restart, "no-start-limit", "warning", "no start limit: an engine that cannot start is tried for ever",
                 "StartLimitIntervalSec= in [Unit], several times as long as a start takes")  # fmt: skip
    elif burst * (pause + SHORTEST_LIFE_SECONDS) > interval:
        yield at(
            restart,
            "start-limit-cannot-trip",
            "warning",
            f"{burst} starts within {interval:g} s can never happen, with {pause:g} s between them and a start that takes "
            "longer: an engine that cannot start is tried for ever",
            f"StartLimitIntervalSec= in [Unit] of more than {burst} times the longest failing start",
        )


def _limits(unit: Unit) -> tuple[int, float]:
    burst = unit.get("StartLimitBurst", "Unit") or unit.get("StartLimitBurst")
    interval = (
        unit.get("StartLimitIntervalSec", "Unit")
        or unit.get("StartLimitInterval", "Unit")
        or unit.get("StartLimitInterval")
    )
    seconds = seconds_of(interval) if interval else DEFAULT_INTERVAL_SECONDS
    return int(
        burst
    ) if burst.isdigit() else DEFAULT_BURST, DEFAULT_INTERVAL_SECONDS if seconds is None else seconds


def _restarts(unit: Unit) -> Iterator[Lint]:
    restart = unit.one("Restart")
    launch = launch_of(unit)
    if launch.kind != "sglang":
        return
    if (
        restart is not None
        and restart.value in ("on-failure", "on-abnormal", "on-abort")
        and unit.get("SuccessExitStatus")
    ):
        message = "a crash of SGLang is a SIGKILL of itself; with SuccessExitStatus= it is a success: nothing restarts it"
        yield at(restart, "restart-never", "error", message, "Restart=always")
    oneshot = unit.one("Type")
    if oneshot is not None and oneshot.value == "oneshot":
        message = "Type=oneshot with a server: systemd thinks it starts for ever, and does not see it die"
        yield at(oneshot, "oneshot", "error", message, "Type=exec")
    if oneshot is not None and oneshot.value in ("notify", "forking"):
        message = (
            f"Type={oneshot.value}: SGLang tells systemd nothing and does not fork, so the start times out"
        )
        yield at(oneshot, "type", "error", message, "Type=exec")


def _stops(unit: Unit) -> Iterator[Lint]:
    start = unit.one("ExecStart")
    if start is None or launch_of(unit).kind != "sglang":
        return
    kill = unit.one("KillMode")
    if kill is None or kill.value == "control-group":
        message = "KillMode=control-group: the schedulers get SIGTERM too, have no handler, and running requests break"
        yield at(kill or start, "kill-mode", "warning", message, "KillMode=mixed")
    elif kill.value in ("process", "none"):
        message = f"KillMode={kill.value}: schedulers that outlive the main process keep their GPU memory"
        yield at(kill, "kill-mode", "error", message, "KillMode=mixed")
    send = unit.one("SendSIGKILL")
    if send is not None and send.value.lower() in NO:
        message = "an engine that hangs is never ended: it keeps the GPUs until somebody comes"
        yield at(send, "no-sigkill", "error", message, "take the line away")
    stop = unit.one("TimeoutStopSec") or unit.one("TimeoutSec")
    seconds = seconds_of(stop.value) if stop is not None else SHORTEST_STOP_SECONDS
    if (seconds is not None and seconds < SHORTEST_STOP_SECONDS) or stop is None:
        said = "the default of 90 s" if stop is None else f"{seconds:g} s"
        message = (
            f"{said} to stop: SGLang first waits for running requests, without a limit, then up to 75 s for its children; "
            "what is left is killed in the middle of its work"
        )
        yield at(
            stop or start, "stop-too-short", "warning", message, "TimeoutStopSec= the longest drain plus 90 s"
        )
    signal = unit.one("KillSignal")
    if signal is not None and signal.value not in ("SIGTERM", "TERM", "15"):
        message = f"{signal.value} does not drain: running requests are lost"
        yield at(signal, "kill-signal", "warning", message, "KillSignal=SIGTERM")


def _starts(unit: Unit) -> Iterator[Lint]:
    timeout = unit.one("TimeoutStartSec") or unit.one("TimeoutSec")
    waits = (
        unit.get("Type") in ("notify", "oneshot", "forking", "dbus")
        or unit.all("ExecStartPost")
        or unit.all("ExecStartPre")
    )
    seconds = seconds_of(timeout.value) if timeout is not None else None
    if (
        timeout is not None
        and not waits
        and seconds is not None
        and USUAL_START_SECONDS < seconds < INFINITE
        and unit.get("Type") in ("", "simple", "exec", "idle")
    ):
        message = "has no effect on the load of the model: for this Type= the start is over as soon as the program runs"
        yield at(
            timeout,
            "start-timeout-idle",
            "warning",
            f"TimeoutStartSec= {message}",
            "ask the engine itself whether it is ready",
        )
    if unit.all("ExecStartPost") and timeout is None:
        directive = unit.all("ExecStartPost")[-1]
        message = "the default start timeout of 90 s counts this too: a model that loads longer is killed"
        yield at(directive, "start-timeout", "warning", message, "TimeoutStartSec= longer than the load")


HIDING: dict[str, tuple[tuple[str, ...], str, str]] = {
    "PrivateDevices": (YES, "hides /dev/nvidia*: the engine sees no GPU", "error"),
    "MemoryDenyWriteExecute": (
        YES,
        "forbids what every JIT compiler does: Triton, torch.compile and CUDA fail",
        "error",
    ),
    "PrivateNetwork": (YES, "the engine has no network: nobody reaches its port", "error"),
    "RemoveIPC": (
        YES,
        "takes shared memory away under the engine when another session of the user ends",
        "warning",
    ),
    "PrivateUsers": (YES, "hides the user that owns the GPU devices and the model", "warning"),
    "ProtectKernelModules": (
        YES,
        "nvidia-modprobe cannot load the driver's modules (nvidia-uvm) on first use",
        "warning",
    ),
    "NoNewPrivileges": (
        YES,
        "nvidia-modprobe is setuid: it cannot make /dev/nvidia-uvm on first use",
        "warning",
    ),
}


def _hardening(unit: Unit) -> Iterator[Lint]:
    for key, (values, message, severity) in HIDING.items():
        directive = unit.one(key)
        if directive is not None and directive.value.lower() in values:
            yield at(directive, "hides-gpu", severity, f"{key}= {message}", "take the line away")
    home = unit.one("ProtectHome")
    text = " ".join(directive.value for directive in unit.directives if directive is not home)
    if home is not None and home.value.lower() in (*YES, "tmpfs") and ("/home/" in text or "/root" in text):
        message = f"ProtectHome={home.value} hides /home and /root, which other lines of the unit use"
        yield at(home, "hides-home", "error", message, "take the line away, or move what is there")
    for directive in unit.all("RestrictAddressFamilies"):
        families = directive.value.split()
        lacking = [one for one in ("AF_UNIX", "AF_INET", "AF_NETLINK") if one not in families]
        if not directive.value.startswith("~") and lacking and families != ["none"]:
            message = f"without {', '.join(lacking)} NCCL finds no interface, and ranks cannot talk"
            yield at(
                directive, "address-families", "error", message, "add AF_UNIX AF_INET AF_INET6 AF_NETLINK"
            )
    for directive in unit.all("SystemCallFilter"):
        message = "a filter of system calls breaks CUDA and NCCL in ways that name nothing (mbind, ioctl, process_vm_readv)"
        yield at(directive, "system-calls", "warning", message, "take the line away")
    for directive in unit.all("DevicePolicy"):
        allowed = " ".join(each.value for each in unit.all("DeviceAllow"))
        if directive.value in ("closed", "strict") and "nvidia" not in allowed:
            message = (
                f"DevicePolicy={directive.value} without DeviceAllow=char-nvidia*: the engine sees no GPU"
            )
            yield at(
                directive,
                "hides-gpu",
                "error",
                message,
                "DeviceAllow=char-nvidia-frontend rw, or take it away",
            )


def _resources(unit: Unit) -> Iterator[Lint]:
    if launch_of(unit).kind != "sglang":
        return
    start = unit.one("ExecStart")
    assert start is not None
    memlock = unit.one("LimitMEMLOCK")
    if memlock is None or (bytes_of(memlock.value) or 0) < INFINITE:
        message = (
            "locked memory is limited (8 MiB by default; limits.conf does not reach services): RDMA fails"
        )
        yield at(memlock or start, "memlock", "warning", message, "LimitMEMLOCK=infinity")
    for key in ("MemoryMax", "MemoryHigh", "MemoryLimit"):
        for directive in unit.all(key):
            if directive.value != "infinity":
                message = "the page cache of the weights counts too: loading gets slow or is killed"
                yield at(directive, "memory-limit", "warning", f"{key}: {message}", "take the line away")
    score = unit.one("OOMScoreAdjust")
    if score is not None and _is_immune(score):
        message = f"OOMScoreAdjust={score.value}: when host memory runs out, sshd and systemd die before the engine does"
        yield at(score, "oom-score", "warning", message, "-500")


def _is_immune(directive: Directive) -> bool:
    try:
        return int(directive.value) <= -900
    except ValueError:
        return False


SERVICE_RULES: tuple[Callable[[Unit], Iterator[Lint]], ...] = (
    _restart_limits, _restarts, _stops, _starts, _hardening, _resources,
)  # fmt: skip
