"""The reference pages, written from the code's own data so that they cannot say anything else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deployer.operations.explain import (
    Entry,
    cause_entries,
    exit_code_entries,
    field_entries,
    finding_entries,
    ladder_entries,
    patch_entries,
    variable_entries,
)

NOTE = "<!-- Written by `deploy explain --reference docs/reference`; edit the code instead. -->\n"
# Events of a transaction: one JSON line each, in /var/lib/deployer/SERVICE/transaction/events.jsonl and to whoever follows.
EVENTS = {
    "begun": "The release is staged and the transaction open: `transaction`, `release`, `previous_release`; "
    "`ended_at` where it is over and is only told again.",
    "step": "A step begins or ends: `step`, `result` (`started`, `done`, `failed`), `seconds`, `message`.",
    "progress": "How far a step is: `step`, `message`, and what the step adds, such as a percentage.",
    "finding": "A checked fact that is worth telling: `check`, `severity`, `message`, `hint`, `read`.",
    "failed": "A step failed and the transaction turns back: `step`, `cause`, `message`.",
    "resumed": "The transaction's process was ended and goes on: `message` says where.",
    "alive": "Nothing has happened for some seconds, and the host still works on it.",
    "lost": "The controller lost the connection and tries again: `message`, `seconds`.",
    "result": "The end: the outcome as `--json` gives it.",
    "error": "The host refuses: `kind`, `message`, `hint`, `exit_code`.",
}


@dataclass(frozen=True)
class CommandPage:
    """A command as its --help has it."""

    name: str
    text: str
    options: Sequence[tuple[str, str]]


def reference_pages(commands: Iterable[CommandPage]) -> dict[str, str]:
    """File name -> text of every page."""
    return {
        "commands.md": _commands(commands),
        "profiles.md": _fields(),
        "strategies.md": _ladder(),
        "exit-codes.md": _exit_codes(),
        "findings.md": _listed("Findings", finding_entries(), FINDINGS),
        "causes.md": _listed("Causes", cause_entries(), CAUSES),
        "patches.md": _listed("Source patches", patch_entries(), PATCHES),
        "variables.md": _listed("Environment variables", variable_entries(), VARIABLES),
        "events.md": _events(),
    }


LADDER = (
    "How old and new change places, and the steps that a change is made of. Steps of a front or of held weights are left\n"
    "out where there is none. What each strategy costs: [the downtime ladder](../explanation/ladder.md)."
)
FINDINGS = (
    "A finding is a checked fact. `error` forbids a change, `warning` is to be known, `ok` is shown by `deploy doctor`.\n"
    "`--ignore NAME` makes a warning of an error."
)
CAUSES = "What `deploy diagnose` and a failed switch name as the cause, the strongest first."
PATCHES = "Mistakes in released SGLang that `deploy patch` knows; an inventory's `patches/` may hold more."
VARIABLES = "Variables of the engine that `deploy` presets or has rules about."


def _page(title: str, *parts: str) -> str:
    return f"# {title}\n\n{NOTE}\n" + "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def _commands(commands: Iterable[CommandPage]) -> str:
    parts = []
    for command in commands:
        rows = "".join(f"- `{words}` {text}".rstrip() + "\n" for words, text in command.options)
        parts.append(f"## deploy {command.name}\n\n{command.text}\n\n{rows}")
    return _page("Commands", *parts)


def _fields() -> str:
    parts = []
    for kind in ("profile field", "service field", "host field"):
        parts.append(f"## {kind.split()[0].capitalize()}\n")
        for entry in field_entries():
            if entry.kind == kind:
                parts.append(_item(entry))
    return _page("Profiles, services and hosts", *parts)


def _item(entry: Entry) -> str:
    facts = "".join(f"  - {label}: {_code(label, text)}\n" for label, text in entry.facts)
    return f"- **`{entry.name}`** {entry.sentence}\n{facts}"


def _code(label: str, text: str) -> str:
    return f"`{text}`" if label in ("when", "written as", "SGLang says", "go over it") else text


def _ladder() -> str:
    parts = [LADDER]
    for kind in ("strategy", "step"):
        parts.append(f"## {'Strategies' if kind == 'strategy' else 'Steps'}\n")
        parts += [_item(entry) for entry in ladder_entries() if entry.kind == kind]
    return _page("Strategies and steps", *parts)


def _exit_codes() -> str:
    rows = "".join(f"| {entry.name} | {entry.sentence} |\n" for entry in exit_code_entries())
    return _page("Exit codes", f"| code | meaning |\n|---|---|\n{rows}")


def _listed(title: str, entries: Iterable[Entry], text: str) -> str:
    return _page(title, text, *(_item(entry) for entry in entries))


def _events() -> str:
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in EVENTS.items())
    return _page("Events of a transaction", f"| event | meaning |\n|---|---|\n{rows}")
