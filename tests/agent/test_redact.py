"""Secrets are hidden in every form in which an engine or a tool prints them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.agent import redact as redaction
from deployer.agent.layout import Layout
from deployer.agent.redact import HIDDEN, clean_evidence, known_secrets, redact, secrets_in
from deployer.render.quoting import quote_environment_file
from deployer.render.secret_files import engine_config

KEY = "k!\"$%\\{}'y-92"
TOKEN = "first % \"line\" \\ $HOME 'x'\nsecond line `id`"


@pytest.fixture
def secrets(tmp_path: Path) -> list[str]:
    paths = Layout(str(tmp_path)).service("s")
    folder = Path(paths.secrets)
    folder.mkdir(parents=True)
    (folder / "engine-1.yaml").write_text(engine_config({"api_key": KEY, "admin_api_key": "admin-key-1"}))
    (folder / "environment-1").write_text(
        quote_environment_file({"HF_TOKEN": TOKEN, "EMPTY": "", "TINY": "on"})
    )
    (folder / "not-text").write_bytes(b"\xff\xfe")
    return known_secrets(paths)


def test_what_the_controller_wrote_is_read_back_as_the_engine_gets_it() -> None:
    assert secrets_in(engine_config({"api_key": KEY, "admin_api_key": "b"})) == [KEY, "b"]
    assert secrets_in(quote_environment_file({"A": TOKEN, "B": ""})) == [TOKEN, ""]


def test_every_form_is_hidden(secrets: list[str]) -> None:
    for text in (KEY, repr(KEY), f"x{KEY}y", repr({"api": [KEY]}), TOKEN, repr(TOKEN), *TOKEN.splitlines()):
        hidden = redact(text, secrets)
        assert HIDDEN in hidden
        assert not [part for part in ("y-92", "{}", "second", "HOME", "id`") if part in hidden], hidden
    assert redact("on the first day", secrets) == "on the first day"


def test_a_text_that_was_cut_in_the_middle_of_a_secret(secrets: list[str]) -> None:
    for length in range(4, len(KEY)):
        assert redact(f"args: {KEY[:length]}", secrets) == f"args: {HIDDEN}"
    assert redact(f"args: {KEY[:3]}", secrets) == f"args: {KEY[:3]}"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (
            "server_args=ServerArgs(api_key='abc', port=1)",
            f"server_args=ServerArgs(api_key='{HIDDEN}', port=1)",
        ),
        ("api_key=None, admin_api_key=None", "api_key=None, admin_api_key=None"),
        ("--api-key abc --port 1", f"--api-key {HIDDEN} --port 1"),
        ("Authorization: Bearer abc", f"Authorization: Bearer {HIDDEN}"),
        ("token hf_abcdefghijklmnopqrstuv end", f"token {HIDDEN} end"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_too(text: str, hidden: str) -> None:
    assert redact(text).replace("Bearer [redacted]", "[redacted]") == hidden.replace(
        "Bearer [redacted]", "[redacted]"
    )


@given(st.one_of(st.text(), st.from_regex(redaction._KEYED), st.from_regex(redaction._TOKENS)))
def test_lines_that_are_passed_over_hold_nothing(text: str) -> None:
    """The quick look before the expressions never lets one through that they would have changed."""
    if not redaction._may_hold(text):
        assert not redaction._KEYED.search(text) and not redaction._TOKENS.search(text)


def test_only_evidence_of_a_diagnosis_is_touched(secrets: list[str]) -> None:
    diagnosis = {
        "cause": "x",
        "hint": "set the api_key again",
        "evidence": f"a {KEY}",
        "causes": [{"evidence": KEY}],
    }
    assert clean_evidence(diagnosis, secrets) == {
        "cause": "x",
        "hint": "set the api_key again",
        "evidence": f"a {HIDDEN}",
        "causes": [{"evidence": HIDDEN}],
    }
