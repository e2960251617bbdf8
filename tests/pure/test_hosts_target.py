"""Where connections go."""

import pytest

from deployer.errors import UsageError
from deployer.hosts.target import Target, parse_jumps, target_of
from deployer.schema.inventory import Host


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("none", []),
        ("", []),
        ("gate", [("gate", None, None)]),
        ("ann@gate:2222", [("gate", "ann", 2222)]),
        ("a, b@c:1 ,d", [("a", None, None), ("c", "b", 1), ("d", None, None)]),
        ("ann@[::1]:2222", [("::1", "ann", 2222)]),
        ("[fe80::1]", [("fe80::1", None, None)]),
        ("fe80::1", [("fe80::1", None, None)]),
        ("ssh://ann@gate:22/", [("gate", "ann", 22)]),
        ("a@b@gate", [("gate", "a@b", None)]),
    ],
)
def test_jumps(text: str, hops: list[tuple[str, str | None, int | None]]) -> None:
    assert [(hop.address, hop.user, hop.port) for hop in parse_jumps(text)] == hops


@pytest.mark.parametrize("text", ["gate:x", "a,,b", "ann@", ":22"])
def test_what_is_no_jump(text: str) -> None:
    with pytest.raises(UsageError, match="no jump host"):
        parse_jumps(text)


def test_the_target_of_a_host() -> None:
    host = Host.model_validate({"name": "h1"})
    assert target_of(host) == Target("h1", "h1")
    host = Host.model_validate(
        {"name": "h1", "address": "[::1]", "user": "ann", "port": 2222, "jump": "gate"}
    )
    assert target_of(host) == Target("h1", "::1", "ann", 2222, None, "gate")
    assert target_of(host).ssh_options == "User ann\nPort 2222\n"
