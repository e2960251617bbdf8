"""deploy lint: the mistakes that systemd-analyze verify misses, each on its line; and silence where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deployer.cli.app import run
from deployer.render.bundle import render_bundle
from deployer.units.lint import lint
from deployer.units.reading import read_unit
from tests.pure.writing import desired

START = "ExecStart=/opt/v/bin/python -m sglang.launch_server --model-path /models/x"
GOOD = f"""[Unit]
StartLimitIntervalSec=3600
[Service]
Type=exec
{START} --json-model-override-args '{{"a": 1}}' --served-model-name 50%% --port $$
KillMode=mixed
TimeoutStopSec=infinity
LimitMEMLOCK=infinity
Restart=always
RestartSec=10
"""


def checks(text: str, name: str = "x.service") -> dict[str, int]:
    """Check -> line."""
    return {each.check: each.line for each in lint(read_unit(name, [(name, text)]))}


def test_nothing_to_say() -> None:
    assert checks(GOOD) == {}


def test_our_own_unit_is_clean(tmp_path: Path) -> None:
    bundle = render_bundle(desired(tmp_path), "0.5.10", secrets={})
    assert checks(bundle.unit_text) == {}


@pytest.mark.parametrize(
    ("check", "line"),
    [
        ("literal-dollar", 'Environment="PATH=/opt/v/bin:$PATH"'),
        ("unquoted-space", "Environment=MODE=very fast"),
        ("quotes", 'Environment="A=1'),
        ("environment-file", 'EnvironmentFile="/etc/default/x"'),
        ("secret-in-unit", "Environment=HF_TOKEN=hf_abcdefghijklmnopqr"),
        (
            "secret-in-command",
            "ExecStart=/opt/v/bin/python -m sglang.launch_server --api-key sk-abc --model-path x",
        ),
        ("json-quotes", 'ExecStart=/opt/v/bin/python -m sglang.launch_server --x {"a": 1} --model-path x'),
        (
            "literal-quotes",
            "ExecStart=/opt/v/bin/python -m sglang.launch_server --x \"'{a}'\" --model-path x",
        ),
        ("stray-percent", "ExecStart=/opt/v/bin/python -m sglang.launch_server --served-model-name 50%foo"),
        ("stray-percent", "ExecStart=/opt/v/bin/python -m sglang.launch_server --served-model-name 50%"),
        ("comment-in-command", "ExecStart=/opt/v/bin/python -m sglang.launch_server --tp-size 2 # two GPUs"),
        ("shell-sign", "ExecStart=/opt/v/bin/python -m sglang.launch_server --tp-size 2 >> /var/log/x 2>&1"),
        ("underscore-flag", "ExecStart=/opt/v/bin/python -m sglang.launch_server --tp_size 2"),
        ("shell-without-exec", "ExecStart=/bin/bash -c 'python -m sglang.launch_server --tp-size 2'"),
        ("user-specifier", "User=%i"),
        ("user-specifier", "User=%u"),
        ("no-home", "DynamicUser=yes\nUser=x"),
        ("placeholder", "User=__USER__"),
        ("start-limit-section", "StartLimitIntervalSec=60"),
        ("restart-never", "Restart=on-failure\nSuccessExitStatus=SIGKILL"),
        ("kill-mode", "KillMode=process"),
        ("no-sigkill", "SendSIGKILL=no"),
        ("stop-too-short", "TimeoutStopSec=30"),
        ("kill-signal", "KillSignal=SIGINT"),
        ("oneshot", "Type=oneshot"),
        ("type", "Type=notify"),
        ("start-timeout-idle", "TimeoutStartSec=600"),
        ("start-timeout", "ExecStartPost=/bin/wait-for-health"),
        ("hides-gpu", "PrivateDevices=yes"),
        ("hides-gpu", "MemoryDenyWriteExecute=true"),
        ("hides-gpu", "DevicePolicy=closed"),
        ("hides-home", "ProtectHome=yes\nEnvironment=HF_HOME=/home/x/hf"),
        ("address-families", "RestrictAddressFamilies=AF_INET AF_UNIX"),
        ("system-calls", "SystemCallFilter=@system-service"),
        ("memlock", "LimitMEMLOCK=8M"),
        ("memory-limit", "MemoryMax=64G"),
        ("oom-score", "OOMScoreAdjust=-999"),
        ("bad-span", "RestartSec=ten"),
        ("bad-limit", "LimitNOFILE=many"),
    ],
)
def test_each_mistake(check: str, line: str) -> None:
    key = line.partition("=")[0]
    kept = [each for each in GOOD.splitlines() if not each.startswith(f"{key}=")]
    text = "\n".join([*kept, line, ""])
    found = checks(text)
    assert check in found, found
    assert found[check] in (len(kept) + 1, len(kept) + 2)


def test_lines_of_a_long_command() -> None:
    text = (
        "[Service]\n"
        "ExecStart=/opt/v/bin/python -m sglang.launch_server \\\n"
        "  --model-path /m \\\n"
        "  --api-key sk-abcdefgh \\ \n"
        "  --tp-size 2\n"
    )
    found = checks(text)
    assert found["secret-in-command"] == 4
    assert found["broken-continuation"] == 4
    assert found["ignored-line"] == 5


def test_restarts_that_never_end() -> None:
    assert "start-limit-cannot-trip" in checks(f"[Service]\n{START}\nRestart=always\nRestartSec=10\n")
    assert "no-start-limit" in checks(
        f"[Unit]\nStartLimitIntervalSec=0\n[Service]\n{START}\nRestart=always\n"
    )
    assert not {"start-limit-cannot-trip", "no-start-limit"} & set(checks(GOOD))


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.service"
    path.write_text(GOOD)
    assert run(["lint", str(path)]) == 0
    assert "no mistakes" in capfd.readouterr().out
    (tmp_path / "x.service.d").mkdir()
    (tmp_path / "x.service.d" / "10-more.conf").write_text(
        "[Service]\nEnvironment=HF_TOKEN=hf_geheimgeheim\n"
    )
    assert run(["lint", str(path), "--json"]) == 1
    out = capfd.readouterr().out
    (finding,) = json.loads(out)["findings"]
    assert (finding["check"], finding["line"], finding["severity"]) == ("secret-in-unit", 2, "error")
    assert finding["file"].endswith("10-more.conf") and finding["hint"]
    assert "geheim" not in out
