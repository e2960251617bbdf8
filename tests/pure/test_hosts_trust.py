"""What known_hosts files say, in every form ssh writes them."""

import base64
import subprocess
import threading
from pathlib import Path

import pytest

from deployer.hosts.trust import KnownHosts, Trust, fingerprint, host_key_names, learn, parse_known_hosts

OURS = b"\0\0\0\x0bssh-ed25519 ours"
THEIRS = b"\0\0\0\x0bssh-ed25519 theirs"
RSA = b"\0\0\0\x07ssh-rsa ours"


def entry(names: str, blob: bytes = OURS, key_type: str = "ssh-ed25519") -> str:
    return f"{names} {key_type} {base64.b64encode(blob).decode()} a comment\n"


def known(text: str) -> KnownHosts:
    return KnownHosts(tuple(parse_known_hosts(text, "known_hosts")))


@pytest.mark.parametrize(
    ("text", "names", "trust"),
    [
        ("", ["ct200"], Trust.UNKNOWN),
        (entry("ct200"), ["ct200"], Trust.TRUSTED),
        (entry("CT200"), ["ct200"], Trust.TRUSTED),
        (entry("ct200"), ["CT200"], Trust.TRUSTED),
        (entry("ct2000"), ["ct200"], Trust.UNKNOWN),
        (entry("a,ct200,b"), ["ct200"], Trust.TRUSTED),
        (entry("ct200", THEIRS), ["ct200"], Trust.CHANGED),
        (entry("ct200", RSA, "ssh-rsa"), ["ct200"], Trust.CHANGED),
        (entry("ct200", RSA, "ssh-rsa") + entry("ct200"), ["ct200"], Trust.TRUSTED),
        (entry("ct200", THEIRS) + entry("ct200"), ["ct200"], Trust.TRUSTED),
        (entry("*.lan"), ["ct200.lan"], Trust.TRUSTED),
        (entry("ct?00"), ["ct200"], Trust.TRUSTED),
        (entry("*.lan,!ct200.lan"), ["ct200.lan"], Trust.UNKNOWN),
        (entry("!ct200.lan,*.lan"), ["ct200.lan"], Trust.UNKNOWN),
        (entry("ct200"), ["[ct200]:2222", "ct200"], Trust.TRUSTED),
        (entry("ct200", THEIRS), ["[ct200]:2222", "ct200"], Trust.UNKNOWN),
        (entry("[ct200]:2222", THEIRS) + entry("ct200"), ["[ct200]:2222", "ct200"], Trust.CHANGED),
        (entry("[ct200]:2222"), ["ct200"], Trust.UNKNOWN),
        (entry("[ct200]:*"), ["[ct200]:2222"], Trust.TRUSTED),
        (entry("[ct200]:2222"), ["2"], Trust.UNKNOWN),
        ("@revoked " + entry("*") + entry("ct200"), ["ct200"], Trust.REVOKED),
        (entry("ct200") + "@revoked " + entry("ct200"), ["ct200"], Trust.REVOKED),
        (entry("ct200") + "@revoked " + entry("other"), ["ct200"], Trust.TRUSTED),
        (entry("ct200") + "@revoked " + entry("*", THEIRS), ["ct200"], Trust.TRUSTED),
        ("@revoked " + entry("*", THEIRS), ["ct200"], Trust.UNKNOWN),
        ("@cert-authority " + entry("*"), ["ct200"], Trust.UNKNOWN),
        ("# " + entry("ct200"), ["ct200"], Trust.UNKNOWN),
        ("ct200 ssh-ed25519\nct200\n\nct200 ssh-ed25519 ***\n" + entry("ct200"), ["ct200"], Trust.TRUSTED),
        ("|1|broken " + entry("|1|x|y|z"), ["ct200"], Trust.UNKNOWN),
    ],
)
def test_judging(text: str, names: list[str], trust: Trust) -> None:
    assert known(text).judge(names, OURS).trust is trust


def test_the_deciding_line_is_named() -> None:
    line = known("# first\n\n" + entry("ct200", THEIRS)).judge(["ct200"], OURS).line
    assert line is not None
    assert line.where == "known_hosts:3"


def test_names_by_hash_as_openssh_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(entry("ct200") + entry("[ct201]:2222", THEIRS))
    if subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], capture_output=True, check=False).returncode:
        pytest.skip("needs ssh-keygen and takes only real keys")
    hosts = KnownHosts.load([file])
    assert "ct200" not in file.read_text()
    assert hosts.judge(["ct200"], OURS).trust is Trust.TRUSTED
    assert hosts.judge(["[ct201]:2222", "ct201"], OURS).trust is Trust.CHANGED


def test_types_of_key_to_ask_for() -> None:
    hosts = known(
        entry("ct200", RSA, "ssh-rsa") + entry("ct200") + "@revoked " + entry("ct200", b"x", "ssh-dss")
    )
    assert hosts.key_types(["ct200"]) == ("ssh-rsa", "ssh-ed25519")
    assert hosts.key_types(["ct201"]) == ()


def test_names_of_a_host() -> None:
    assert host_key_names("ct200", 22, None) == ("ct200",)
    assert host_key_names("ct200", 2222, None) == ("[ct200]:2222", "ct200")
    assert host_key_names("::1", 2222, "box") == ("box",)


def test_fingerprints_are_those_of_ssh() -> None:
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.mark.parametrize("hashed", [False, True])
def test_learning(tmp_path: Path, hashed: bool) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    for _ in range(2):
        learn(file, "[CT200]:2222", "ssh-ed25519", OURS, hashed=hashed)
    learn(file, "ct201", "ssh-ed25519", THEIRS, hashed=hashed)
    assert len(file.read_text().splitlines()) == 2
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert ("ct201" in file.read_text()) is not hashed
    assert KnownHosts.load([file]).judge(["[ct200]:2222"], OURS).trust is Trust.TRUSTED
    assert KnownHosts.load([file]).judge(["ct201"], THEIRS).trust is Trust.TRUSTED


def test_learning_by_many_at_once(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("# no newline")
    threads = [
        threading.Thread(
            target=learn, args=(file, f"h{number % 4}", "ssh-ed25519", OURS), kwargs={"hashed": False}
        )
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = file.read_text().splitlines()
    assert lines[0] == "# no newline"
    assert sorted(line.split()[0] for line in lines[1:]) == ["h0", "h1", "h2", "h3"]


def test_learning_into_nothing() -> None:
    learn(Path("/dev/null"), "ct200", "ssh-ed25519", OURS, hashed=False)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert KnownHosts.load([tmp_path / "none", Path("/dev/null/none")]).lines == ()
