"""Mistakes in a unit that `systemd-analyze verify` does not find; each with its line, why it is one and what to do."""

import re
from collections.abc import Callable, Iterator

from deployer.render.quoting import parse_words
from deployer.schema.consistency import SECRET_NAME
from deployer.units.lint_service import SERVICE_RULES
from deployer.units.mistake import YES, Lint, at, launch_of
from deployer.units.reading import Directive, Unit, placeholders
from deployer.units.spans import bytes_of, seconds_of
from deployer.units.words import Expansion


def lint(unit: Unit) -> tuple[Lint, ...]:
    """Every mistake, in the order of the lines."""
    found = [each for rule in RULES for each in rule(unit)]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: (each.file, each.line)))


def _ignored_lines(unit: Unit) -> Iterator[Lint]:
    for stray in unit.strays:
        hint = (
            "is the '\\' of the line before followed by a space, or missing?"
            if "=" not in stray.text
            else "move it"
        )
        yield Lint(
            "ignored-line", "error", stray.line, stray.file, f"this line {stray.why}", hint, stray.text[:160]
        )


def _literal_path(unit: Unit) -> Iterator[Lint]:
    for directive in unit.all("Environment"):
        try:
            variables, _ = Expansion(unit.name).assignments(directive.value)
        except ValueError:
            continue
        for name, value in variables.items():
            if re.search(r"\$\{?[A-Za-z_]", value):
                yield at(
                    directive,
                    "literal-dollar",
                    "error",
                    f"systemd does not expand '$' in Environment=: {name} is literally {value!r}",
                    "write the whole value out",
                )


def _words_lost(unit: Unit) -> Iterator[Lint]:
    for directive in unit.all("Environment"):
        try:
            _, ignored = Expansion(unit.name).assignments(directive.value)
        except ValueError as error:
            yield at(directive, "quotes", "error", f"systemd cannot read this: {error}", "close the quote")
            continue
        for word in ignored:
            message = (
                f"{word!r} is no assignment, so systemd ignores it; the value before it ends at the space"
            )
            yield at(
                directive,
                "unquoted-space",
                "error",
                message,
                'put the whole assignment in quotes: "NAME=a b"',
            )


def _environment_files(unit: Unit) -> Iterator[Lint]:
    for directive in unit.all("EnvironmentFile"):
        if not directive.value.removeprefix("-").startswith(("/", "%")):
            message = "not an absolute path (quotes count as part of it), so systemd ignores the line"
            yield at(directive, "environment-file", "error", message, "write the path bare")


def _exec_lines(unit: Unit) -> Iterator[Directive]:
    for directive in unit.directives:
        if directive.key.startswith("Exec") and directive.section == "Service":
            yield directive


def _exec_words(unit: Unit) -> Iterator[Lint]:
    for directive in _exec_lines(unit):
        try:
            words = parse_words(directive.value, lenient=True)
        except ValueError as error:
            yield at(directive, "quotes", "error", f"systemd cannot read this: {error}", "close the quote")
            continue
        yield from _percents(directive, words)
        yield from _comments(directive, words)
        yield from _json(directive, words)
        yield from _shell_signs(directive, words)


def _percents(directive: Directive, words: list[str]) -> Iterator[Lint]:
    for word in words:
        for match in re.finditer(r"%%|%(.?)", word):
            letter = match.group(1)
            if match.group(0) == "%%" or letter in (
                "i",
                "I",
                "n",
                "N",
                "h",
                "H",
                "p",
                "u",
                "t",
                "S",
                "C",
                "E",
                "L",
            ):
                continue
            meaning = (
                "expands it"
                if letter and letter in "abBcdDefgGjJlmMoPqRsTuUvVwWyY"
                else "keeps it today, a later one may not"
            )
            yield at(
                directive,
                "stray-percent",
                "error" if "expands" in meaning else "warning",
                f"{match.group(0)!r} in {word!r}: '%' begins a specifier, and systemd {meaning}",
                "write %% for a percent sign",
                _line_with(directive, match.group(0)),
            )


def _comments(directive: Directive, words: list[str]) -> Iterator[Lint]:
    for word in words:
        if word.startswith("#"):
            message = (
                "a comment behind words is no comment: the program gets '#' and all that follows as arguments"
            )
            hint = "put the comment on a line of its own, which begins with '#'"
            yield at(directive, "comment-in-command", "error", message, hint, _line_with(directive, "#"))
            return


def _json(directive: Directive, words: list[str]) -> Iterator[Lint]:
    for number, word in enumerate(words):
        value = word.partition("=")[2] if word.startswith("--") else word
        flagged = number and words[number - 1].startswith("--")
        looks = re.match(r"[\[{]\s*[A-Za-z_]\w*\s*:", value) or value in ("{", "[")
        if (word.startswith("--") or flagged) and looks and "'" not in value:
            message = f"the quotes inside are gone: the program gets {value[:60]!r}, which is no JSON"
            hint = "put the whole value in single quotes: '{\"a\": 1}'"
            yield at(directive, "json-quotes", "error", message, hint, _line_with(directive, "{"))
        elif flagged and value[:1] in "'\"" and value[-1:] in "'\"" and len(value) > 1:
            message = f"the program gets quotes as part of the value: {value[:60]!r}"
            yield at(
                directive, "literal-quotes", "error", message, "one kind of quotes around the value is enough"
            )


def _shell_signs(directive: Directive, words: list[str]) -> Iterator[Lint]:
    for word in words:
        if word in ("&&", "||", "|", ">", ">>", "2>&1", "&", "<"):
            message = f"{word!r} is given to the program as a word: no shell reads this line"
            yield at(
                directive, "shell-sign", "error", message, "use directives of systemd, or /bin/bash -c '...'"
            )
            return


def _line_with(directive: Directive, text: str) -> int | None:
    return next((number for number, raw in directive.lines if text in raw), None)


def _continuations(unit: Unit) -> Iterator[Lint]:
    for directive in unit.directives:
        for number, raw in directive.lines:
            if re.search(r"\\[ \t]+$", raw):
                message = "white space behind the '\\': the line does not continue"
                hint = "take the white space at the end of the line away"
                yield at(directive, "broken-continuation", "error", message, hint, number)
        last = directive.lines[-1][1] if directive.lines else ""
        if last.rstrip("\r").endswith("\\") and directive.key.startswith("Exec"):
            yield at(
                directive,
                "open-continuation",
                "warning",
                "the last line ends with '\\'",
                "take it away",
                directive.lines[-1][0],
            )


def _secrets(unit: Unit) -> Iterator[Lint]:
    hint = "a file of mode 0600: EnvironmentFile=, or SGLang's --config for its keys; then change the key"
    for directive in _exec_lines(unit):
        if match := re.search(r"--(admin[-_])?api[-_]key[= ]+(?!\$)(\S+)", directive.value):
            message = "the key is readable by every user of the host (systemctl cat, /proc/PID/cmdline)"
            line = _line_with(directive, match.group(0).split()[0].split("=")[0])
            yield _hidden(at(directive, "secret-in-command", "error", message, hint, line))
        for name in re.findall(r"\b([A-Z][A-Z0-9_]*)=(?=[^\s$])", directive.value):
            if SECRET_NAME.search(name):
                yield _hidden(
                    at(directive, "secret-in-command", "error", f"{name} is readable by every user", hint)
                )
    for directive in unit.all("Environment"):
        for name in re.findall(r"\b([A-Za-z_]\w*)=(?=\S)", directive.value):
            if SECRET_NAME.search(name):
                message = f"{name} is readable by every user of the host (systemctl show)"
                yield _hidden(at(directive, "secret-in-unit", "error", message, hint))


def _hidden(each: Lint) -> Lint:
    return Lint(
        each.check,
        each.severity,
        each.line,
        each.file,
        each.message,
        each.hint,
        each.text.partition("=")[0] + "=...",
    )


def _users(unit: Unit) -> Iterator[Lint]:
    directive = unit.one("User")
    if directive is None:
        return
    if re.search(r"%[iIjJ]", directive.value) and "@" not in unit.name:
        message = f"{directive.value} is empty in a unit that is no template, so systemd refuses the unit"
        yield at(
            directive, "user-specifier", "error", message, "name the user, or call the unit name@.service"
        )
    if directive.value in ("%u", "%U"):
        message = "%u is the user of the service manager: root in a system unit"
        yield at(directive, "user-specifier", "error", message, "name the user")
    if (
        "HOME=" not in " ".join(d.value for d in unit.all("Environment"))
        and unit.get("DynamicUser").lower() in YES
    ):
        message = "a DynamicUser has no home: caches go to /, where it may not write"
        yield at(directive, "no-home", "error", message, "CacheDirectory= and Environment=HOME=, HF_HOME=")


def _placeholders(unit: Unit) -> Iterator[Lint]:
    for directive in unit.directives:
        for text in placeholders(directive.value):
            yield at(
                directive, "placeholder", "error", f"{text} was never replaced", "put the value in", None
            )


def _paths(unit: Unit) -> Iterator[Lint]:
    launch = launch_of(unit)
    start = unit.one("ExecStart")
    if start is None:
        return
    if launch.kind == "sglang" and "_" in " ".join(w for w in launch.arguments if w.startswith("--")):
        wrong = [w for w in launch.arguments if w.startswith("--") and "_" in w.partition("=")[0]]
        message = f"SGLang's flags have dashes: {', '.join(wrong[:3])} is not accepted"
        yield at(
            start,
            "underscore-flag",
            "error",
            message,
            wrong[0].replace("_", "-"),
            _line_with(start, wrong[0]),
        )
    if launch.kind != "unknown" and re.match(r"(/usr)?/bin/(ba|da|z)?sh\b", start.value.lstrip("@-:+!")):
        script = start.value
        if "exec " not in script and "docker" not in script:
            message = "the shell stays between systemd and the engine: SIGTERM goes to it, and MainPID is not the engine's"
            yield at(
                start, "shell-without-exec", "warning", message, "write `exec` before the engine's command"
            )


def _numbers(unit: Unit) -> Iterator[Lint]:
    """Values of time and size that systemd cannot read are ignored by it."""
    for directive in unit.directives:
        if (
            directive.key in ("TimeoutStopSec", "TimeoutStartSec", "TimeoutSec", "RestartSec")
            and seconds_of(directive.value) is None
        ):
            message = f"{directive.value!r} is not a span of time, so systemd ignores the line"
            yield at(directive, "bad-span", "error", message, "90, 90s, 2min or infinity")
        if directive.key.startswith("Limit") and bytes_of(directive.value) is None:
            message = f"{directive.value!r} is not a limit, so systemd ignores the line"
            yield at(
                directive,
                "bad-limit",
                "error",
                message,
                "a number, with K, M, G where it is a size, or infinity",
            )


RULES: tuple[Callable[[Unit], Iterator[Lint]], ...] = (
    _ignored_lines, _literal_path, _words_lost, _environment_files, _exec_words, _continuations, _secrets, _users,
    _placeholders, _paths, _numbers, *SERVICE_RULES,
)  # fmt: skip
