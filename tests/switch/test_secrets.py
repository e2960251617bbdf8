"""A service with keys: the engine asks for them, clients need them, and they are nowhere that others read."""

from __future__ import annotations

import pytest

from tests.switch.services import NewService
from tests.switch.stage import Ran, Service, Stage

pytestmark = pytest.mark.lab

KEY, OTHER_KEY, TOKEN = "lab-key-J8s2!\"$%\\{}'", "another-key-72Xq", "lab token % $HOME 'x' \"y\" \\ z"


@pytest.fixture
def guarded(new_service: NewService) -> Service:
    """Not yet deployed."""
    secrets = {"api_key": {"env": "LAB_KEY"}, "environment": {"HF_TOKEN": {"env": "LAB_TOKEN"}}}
    service = new_service(secrets=secrets)
    service.environment = {"LAB_KEY": KEY, "LAB_TOKEN": TOKEN}
    service.key = KEY
    return service


def pieces(*secrets: str) -> set[str]:
    """Every part of a secret that is long enough to help somebody, as it is and as Python shows it."""
    forms = [form for secret in secrets for form in (secret, repr(secret)[1:-1])]
    return {form[at : at + 8] for form in forms for at in range(len(form) - 7)}


def everything_readable(service: Service, ran: Ran) -> dict[str, str]:
    """All text that a secret must not be in, by where it stands."""
    host, name = service.stage.host, service.name
    commands = {
        "argv": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
        "units": f"cat /etc/systemd/system/sglang-{name}-* /etc/systemd/system/deployer-*; "
        f"systemctl show 'sglang-{name}-*' 'deployer-activate@{name}'",
        "run": "cat /run/deployer/*",
        "records": f"cat {service.folder}/history.jsonl {service.folder}/transaction/*.json* {service.folder}/releases/*/*.json",
        "activation journal": f"journalctl -o cat -u deployer-activate@{name}",
    }
    found = {where: host.run(command, check=False).stdout for where, command in commands.items()}
    for words in (("logs",), ("history",), ("status",), ("attach",)):
        told = service.stage.deploy(*words, *(() if words == ("status",) else ("--service", name)))
        found[" ".join(words)] = told.out + told.err
    return found | {"answer": ran.out + ran.err}


def test_keys_are_needed_and_stand_nowhere(stage: Stage, guarded: Service) -> None:
    ran = guarded.switch("tp1")
    assert (ran.code, ran.json["outcome"]) == (0, "committed"), str(ran)
    guarded.assert_serves("tp1", 1)
    guarded.key = "wrong"
    assert guarded.request("GET", "/v1/models")[0] == 401
    guarded.key = KEY

    # It falls silent right after it has printed its arguments, so they are the last thing in its journal.
    fault = {"STANDIN_FAIL": "hang-distributed"}
    hangs = {"tensor_parallel": 1, "environment": fault, "deadlines": {"stall_seconds": 2}}
    stage.profiles({"hangs": hangs})
    failed = guarded.switch("hangs")
    assert failed.code == 3, str(failed)
    assert "server_args" in failed.json["diagnosis"]["evidence"]
    for where, text in (everything_readable(guarded, failed) | {"first answer": ran.out + ran.err}).items():
        assert text.strip() or where == "run", where
        for piece in pieces(KEY, TOKEN):
            assert piece not in text, where
    # The engine itself says its key at the start, so the test would see it.
    raw = stage.host.run(f"journalctl -o cat -u {guarded.unit('tp1')}").stdout
    assert repr(KEY)[1:-1] in raw
    modes = stage.host.run(f"stat -c '%a %U' /etc/deployer/{guarded.name}/*").stdout.split("\n")
    assert set(modes[:-1]) == {"600 root"}
    environment = stage.host.run(f"tr '\\0' '\\n' </proc/{guarded.main_pid('tp1')}/environ").stdout
    assert f"HF_TOKEN={TOKEN}\n" in environment


def test_a_new_key_is_a_new_release(guarded: Service) -> None:
    guarded.serve("tp1")
    assert guarded.switch("tp1").json["outcome"] == "no-change"
    guarded.environment["LAB_KEY"] = OTHER_KEY
    plan = guarded.deploy("switch", "--profile", "tp1", "--plan").json
    assert plan["changes"] is True
    assert guarded.serve("tp1")["release"] == 2
    assert not guarded.completion()
    guarded.key = OTHER_KEY
    guarded.assert_serves("tp1", 2)
    guarded.key = KEY
    assert guarded.deploy("rollback", "-y").json["outcome"] == "committed"
    guarded.assert_serves("tp1", 1)


def test_a_missing_secret_is_said_before_anything(guarded: Service) -> None:
    del guarded.environment["LAB_KEY"]
    ran = guarded.switch("tp1")
    assert ran.code == 2
    assert "LAB_KEY" in ran.json["error"]["where"]
    assert guarded.history() == []


def test_a_service_user(stage: Stage, new_service: NewService) -> None:
    """The unit runs as that user, its caches can be written, its key file can be read."""
    service = new_service(user="sglang", secrets={"api_key": {"env": "LAB_KEY"}})
    service.environment, service.key = {"LAB_KEY": KEY}, KEY
    service.serve("tp1")
    service.assert_serves("tp1", 1)
    pid = service.main_pid("tp1")
    assert stage.host.run(["stat", "-c", "%U", f"/proc/{pid}"]).stdout == "sglang\n"
    variables = ("HOME", "HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    environment = dict(
        line.split("=", 1)
        for line in stage.host.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout.splitlines()
    )
    touch = " && ".join(f"touch '{environment[name]}/made'" for name in variables)
    stage.host.run(f'setpriv --reuid=sglang --regid=sglang --init-groups sh -c "{touch}"')
    modes = stage.host.run(f"stat -c '%a %U' /etc/deployer/{service.name}/*").stdout
    assert modes == "600 sglang\n"

    service.change(user="daemon")  # whose caches these are not
    ran = service.switch("tp1")
    assert (ran.code, ran.json["diagnosis"]["cause"]) == (1, "jit-cache-permission"), str(ran)
    assert ran.json["diagnosis"]["hint"].startswith("chown -R daemon ")
    service.change(user="nobody-of-that-name")
    ran = service.switch("tp1")
    assert (ran.code, ran.json["diagnosis"]["cause"]) == (1, "no-user"), str(ran)
    service.assert_serves("tp1", 1)
