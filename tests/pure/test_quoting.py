"""Quoting for systemd: what is quoted reads back exactly, and what systemd cannot carry is refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployer.errors import UsageError
from deployer.render.quoting import (
    parse_environment,
    parse_environment_file,
    parse_exec_line,
    parse_words,
    quote_environment,
    quote_environment_file,
    quote_exec,
    quote_exec_arg,
    quote_specifiers,
)

NASTY = [
    "", " ", "a b", "\t", "\n", "\r\n", "a\nb", "$", "$$", "$HOME", "${HOME}", "$${x}", "%", "%%", "%i", "%n%", "\\",
    "\\\\", "\\n", "a\\", '"', "'", "'a b'", '"a b"', ";", "\\;", "#", "-x", "--flag=a b", "@", "+", "!", ":", "|",
    "{\"a\": [1, \"b c\", \"$x %i\"]}", "é", "日本語", "🙂", "\u00a0", "\u2028", "\x07", "\x1b[0m", "\x7f", "\x85", "~",
    "*", "`id`", "$(id)", "&&", "a=b", "NAME=$x",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0")) | st.sampled_from(
    NASTY
)
ENVIRONMENT = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), TEXT, max_size=4)


@given(arguments=st.lists(TEXT, max_size=6))
@example(arguments=NASTY)
def test_exec_line_round_trip(arguments: list[str]) -> None:
    argv = ["/opt/my venv/bin/python", *arguments]
    line = quote_exec(argv)
    assert parse_exec_line(line) == argv
    assert line.isascii() == "".join(argv).isascii()
    assert not set("\n\r\0") & set(line)


@given(values=ENVIRONMENT)
@example(values={f"N{index}": text for index, text in enumerate(NASTY)})
def test_environment_round_trip(values: dict[str, str]) -> None:
    line = " ".join(quote_environment(name, value) for name, value in values.items())
    assert parse_environment(line) == values
    assert not set("\n\r\0") & set(line)


@given(values=ENVIRONMENT)
@example(values={f"N{index}": text for index, text in enumerate(NASTY)})
def test_environment_file_round_trip(values: dict[str, str]) -> None:
    assert parse_environment_file(quote_environment_file(values)) == values


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain-1.0/x", "plain-1.0/x"),
        ("", '""'),
        ("a b", '"a b"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        (";", '";"'),
        ('{"a": "\\n"}', '"{\\"a\\": \\"\\\\n\\"}"'),
        ("a\nb\x01", '"a\\nb\\x01"'),
        ("é", '"é"'),
    ],
)
def test_exec_words_look_as_expected(text: str, quoted: str) -> None:
    assert quote_exec_arg(text) == quoted


def test_environment_leaves_dollars_alone() -> None:
    assert quote_environment("A", "1") == "A=1"
    assert quote_environment("A", "$x 5%") == '"A=$x 5%%"'
    assert quote_environment_file({"A": 'x"$`\\y'}) == 'A="x\\"\\$\\`\\\\y"\n'


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "\ufffe", "\uffff", "\ufdd0", "\U0001ffff"])
def test_what_systemd_cannot_carry_is_refused(text: str) -> None:
    for quote in (quote_exec_arg, lambda value: quote_environment("A", value), quote_specifiers):
        with pytest.raises(UsageError):
            quote(text)
    with pytest.raises(UsageError):
        quote_environment_file({"A": text})


@pytest.mark.parametrize("program", ["python", "-/bin/sh", "@/bin/sh", "!/bin/sh", "/a$b", ""])
def test_programs_are_absolute(program: str) -> None:
    with pytest.raises(UsageError, match="absolute path"):
        quote_exec([program])


@pytest.mark.parametrize("text", ["$HOME", "a$b", "%i", "%%%", "$$$"])
def test_parsing_refuses_what_systemd_would_expand(text: str) -> None:
    with pytest.raises(ValueError, match="would expand"):
        parse_exec_line(f"/bin/x {text}")


def test_parsing_knows_both_quotes_and_all_escapes() -> None:
    assert parse_words(r"""a 'b c' "d"e \x41\u00e9\U0001f642\s\t""") == ["a", "b c", "de", "Aé🙂 \t"]
    for text in ('"open', "\\", "\\q"):
        with pytest.raises(ValueError):
            parse_words(text)


def test_plain_settings_double_their_specifiers() -> None:
    assert quote_specifiers("50% of $x") == "50%% of $x"
    for text in ("a\nb", "a\\"):
        with pytest.raises(UsageError):
            quote_specifiers(text)
