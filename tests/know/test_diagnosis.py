"""deploy diagnose: the right cause first, with its permanence, rank and numbers; unknown where nothing is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from deployer.agent.causes import Rules
from deployer.cli.app import root
from deployer.diagnosis.diagnose import diagnose, merged, split_runs, squeezed
from deployer.diagnosis.gpus import GpuSample, hang_signature, read_samples
from deployer.diagnosis.rules import load_rules, rules_with
from deployer.patches.catalogue import load_catalogue

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = YAML(typ="safe").load((HERE / "logs.yaml").read_text())
SYMPTOMS = tuple(load_catalogue())
# Real journals of SGLang 0.5.23 (CPU), 0.5.12 (three hosts, one H200 each) and 0.5.17 (two H200s): file -> cause, permanent, rank.
REAL = {
    "bad-flag": ("unknown-flag", True, ""),
    "bad-model-path": ("model-path", True, ""),
    "no-memory": ("kv-no-room", True, ""),
    "port-in-use": ("port-in-use", False, ""),
    "killed-scheduler": ("scheduler-killed", False, ""),
    "jit-rank0": ("peer-lost", False, "PP0"),
    "jit-rank1": ("jit-cache-permission", True, "PP1"),
    "jit-rank2": ("peer-lost", False, "PP2"),
    "pp2-uneven": ("triton-pp", True, "PP1"),
    "healthy": ("unknown", False, ""),
}


def real(name: str) -> list[str]:
    return squeezed((HERE / "real" / f"{name}.log").read_text(errors="replace").splitlines())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_written_journals(case: dict[str, Any]) -> None:
    first = diagnose(case["log"].splitlines(), symptoms=SYMPTOMS)[0]
    assert (first.cause, first.permanent) == (case["cause"], case["permanent"]), first
    assert first.rank == case.get("rank", first.rank)
    if case.get("evidence") == "":
        assert first.evidence == ""
    assert case.get("evidence", "") in first.evidence
    assert case.get("hint", "") in first.hint
    assert "[[" not in first.hint and "{" not in first.hint


@pytest.mark.parametrize("name", REAL)
def test_real_journals(name: str) -> None:
    first = diagnose(real(name), symptoms=SYMPTOMS)[0]
    assert (first.cause, first.permanent, first.rank) == REAL[name], first


def test_the_host_judges_alike() -> None:
    """The agent has the rules as JSON of the plan."""
    rules = Rules(json.loads(json.dumps([rule.model_dump() for rule in rules_with(SYMPTOMS)])))
    for name, (cause, permanent, rank) in REAL.items():
        root_cause = rules.root(real(name))
        found = ("unknown", False, "") if root_cause is None else tuple(root_cause[i] for i in (0, 1, 5))
        assert found == (cause, permanent, rank), name


def test_the_first_failing_host_of_several() -> None:
    """Rank 0's journal says only that somebody went away."""
    found = merged(
        {name: diagnose(real(name), symptoms=SYMPTOMS) for name in ("jit-rank0", "jit-rank1", "jit-rank2")}
    )
    assert found[0].cause == "jit-cache-permission"
    assert found[0].rank == "PP1 (jit-rank1)"
    assert found[-1].cause == "peer-lost"


def test_the_last_start_is_the_one_asked_about() -> None:
    """A unit with Restart=always: what was repaired an hour ago is not the cause now."""
    log = [
        "Nov 29 12:00:00 box systemd[1]: Started sglang.service - SGLang.",
        "Nov 29 12:00:09 box python[1]: OSError: /m does not appear to have a file named config.json.",
        "Nov 29 12:00:30 box systemd[1]: Started sglang.service - SGLang.",
        "Nov 29 12:00:39 box python[2]: launch_server.py: error: unrecognized arguments: --x",
    ]
    assert len(split_runs(log)) == 2
    assert [each.cause for each in diagnose(log)] == ["unknown-flag", "model-path"]


def test_exit_states() -> None:
    def cause(**shown: str) -> tuple[str, bool]:
        first = diagnose([], exit_state=shown)[0]
        return first.cause, first.permanent

    assert cause(Result="oom-kill", ExecMainStatus="9") == ("host-oom", True)
    assert cause(Result="exit-code", ExecMainStatus="203") == ("exec-failed", True)
    assert cause(Result="exit-code", ExecMainStatus="217") == ("no-user", True)
    assert cause(Result="exit-code", ExecMainStatus="2") == ("unknown-flag", True)
    assert cause(Result="signal", ExecMainStatus="9") == ("unknown", False)
    assert "SIGKILL" in diagnose([], exit_state={"Result": "signal", "ExecMainStatus": "9"})[0].hint
    assert cause(Result="success", ExecMainStatus="0") == ("unknown", False)
    assert (
        diagnose(real("no-memory"), exit_state={"Result": "signal", "ExecMainStatus": "9"})[0].cause
        == "kv-no-room"
    )


def samples(power: float, busy: float = 100, memory: int = 60 << 30, grows: int = 0) -> list[GpuSample]:
    return [
        GpuSample(
            at_seconds=float(second),
            gpu=gpu,
            utilisation_percent=busy,
            memory_used_bytes=memory + second * grows,
            power_w=power,
            power_limit_w=600,
        )
        for second in range(60)
        for gpu in range(2)
    ]


def test_the_signature_of_a_hang() -> None:
    hang = diagnose(["[2026-01-02 03:04:05 TP0] Init torch distributed begin."], gpu_samples=samples(140))[0]
    assert (hang.cause, hang.permanent) == ("nccl-hang", True)
    assert "140" in hang.evidence
    assert hang_signature(samples(550)) is None, "they compute"
    assert hang_signature(samples(140, busy=3)) is None, "they idle"
    assert hang_signature(samples(140, grows=64 << 20)) is None, "they load"
    assert hang_signature(samples(140)[:20]) is None, "ten seconds say nothing"
    text = "t,gpu,util,used_mib,power_w\n" + "".join(f"{n},0,100,5000,130\n" for n in range(40))
    found = hang_signature(read_samples(text, "x"))
    assert found is not None and found.cause == "nccl-hang"
    assert diagnose(real("no-memory"), gpu_samples=samples(140))[0].cause == "kv-no-room"


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "x\n[2026-01-02 03:04:05] api_key='geheim99' [Errno 98] error while attempting to bind on address ('::1', 3): address already in use\n"
    )
    ran = CliRunner().invoke(root, ["diagnose", str(path), "--json"], standalone_mode=False)
    document = json.loads(ran.output)
    assert document["schema_version"] == 1
    assert set(document["causes"][0]) == {"cause", "permanent", "rank", "evidence", "hint"}
    assert document["causes"][0]["cause"] == "port-in-use"
    assert "geheim99" not in ran.output
    ran = CliRunner().invoke(root, ["diagnose", "-"], input="nothing\n", standalone_mode=False)
    assert ran.output.startswith("unknown")


def test_rules_are_in_order() -> None:
    """What only follows from something else stands behind everything that can be a cause."""
    causes = [rule.cause for rule in load_rules()]
    for weak in ("scheduler-killed", "python-error", "peer-lost", "warm-up-failed", "no-response"):
        assert causes.index(weak) > causes.index("nccl-error")
    assert all(rule.hint for rule in load_rules())


@pytest.mark.parametrize(
    ("line", "cause", "permanent"),
    [
        ("[IpcModelLoader] Weight cache daemon (pid=7) died while this engine holds its weights via CUDA IPC.",
         "weights-daemon-died", False),
        ("RuntimeError: [IpcModelLoader] Daemon socket exists at /tmp/a.sock but refused the connection. The daemon",
         "weights-daemon-silent", False),
        ("RuntimeError: [IpcModelLoader] Daemon config mismatch!", "weights-differ", True),
        ("sglang.srt.weight_cache.protocol.UnsupportedQuantForIPCError: [weight_cache:client] quantization method "
         "'awq_marlin' is not verified for CUDA IPC zero-copy weight sharing. Its", "weights-not-shareable", True),
        ("ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", "asked-while-asleep", False),
        ("AssertionError: release_memory_occupation should be called only when server is idle.",
         "released-while-busy", False),
    ],
)  # fmt: skip
def test_shared_weights_and_sleep(line: str, cause: str, permanent: bool) -> None:
    """Lines of SGLang 0.5.17; what follows from the death of a scheduler is weaker."""
    start = "[2026-01-02 03:04:05 TP0] Load weight begin. avail mem=90.00 GB"
    after = "[2026-01-02 03:04:06] Subprocess scheduler_0 (pid=8) crashed with exit code -9."
    found = diagnose([start, line, after])[0]
    assert (found.cause, found.permanent) == (cause, permanent)
