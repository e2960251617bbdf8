"""explain: what a flag, a field, a finding, an outcome or any other word means, from the data that is acted on."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from pydantic import BaseModel

from deployer.agent.causes import filled
from deployer.agent.transaction.strategy import STRATEGIES, forward
from deployer.diagnosis.rules import load_rules as load_causes
from deployer.errors import ExitCode, UsageError
from deployer.patches.catalogue import load_catalogue
from deployer.planning.meanings import PLACES, ladder, meanings, words
from deployer.planning.rules.load import Rule
from deployer.planning.rules.load import load_rules as load_checks
from deployer.render.environment import NCCL_PRESETS
from deployer.render.history import flags_of, newest_release, span_of, successor_of
from deployer.render.spelling import spellings
from deployer.schema.host import Host
from deployer.schema.profile import Settings
from deployer.schema.record import Record
from deployer.schema.reserved_flags import INSTEAD
from deployer.schema.service import Service

KINDS = (
    "command", "exit code", "outcome", "state of a service", "state of a patch", "verdict", "word", "flag",
    "profile field", "service field", "host field", "strategy", "step", "finding", "cause", "patch", "variable",
)  # fmt: skip
EXPLAINED = (
    "a command, a flag, a field, a strategy, a step, a finding, a cause, a patch, a variable, an exit code, an outcome, "
    "a state, a verdict or another word of deploy's answers"
)
# A guess farther away than this is no slip of the finger: `downtime` is not `oom-runtime` (0.63).
NEAR = 0.75


class Entry(Record):
    """One thing explained: a sentence, and labelled facts below it."""

    kind: str
    name: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()


def explain(word: str, commands: Mapping[str, str]) -> tuple[Entry, ...]:
    """Everything of this name, in either case; UsageError names what was probably meant."""
    name = _folded(word)
    bare = name.removeprefix("--").partition("=")[0]
    everything = (*command_entries(commands), *all_entries())
    entries = [entry for entry in everything if _folded(entry.name) in (name, bare)]
    if name.startswith("--") or not entries:
        entries += list(flag_entries(bare.replace("_", "-")))
    if not entries:
        known = {entry.name for entry in everything} | set(flags_of(newest_release()))
        raise UsageError(f"nothing is called {word!r}", hint=_meant(bare, known))
    return tuple(sorted(entries, key=lambda entry: KINDS.index(entry.kind)))


def _folded(word: str) -> str:
    return " ".join(word.split()).casefold().replace(" ", "-")


def _meant(word: str, known: Iterable[str]) -> str:
    by_folded = {_folded(name): name for name in sorted(known)}
    longer = sorted(name for folded, name in by_folded.items() if folded.startswith(word))
    if longer:
        return f"these begin so: {', '.join(longer[:8])}"
    close = get_close_matches(word, by_folded, n=1, cutoff=NEAR)
    return f"did you mean {by_folded[close[0]]!r}?" if close else EXPLAINED


def all_entries() -> tuple[Entry, ...]:
    """Everything but the engine's flags, of which there are hundreds."""
    return (
        *exit_code_entries(),
        *word_entries(),
        *field_entries(),
        *ladder_entries(),
        *finding_entries(),
        *cause_entries(),
        *patch_entries(),
        *variable_entries(),
    )


def command_entries(commands: Mapping[str, str]) -> Iterator[Entry]:
    """The commands of the command line, by name, with what their help says first."""
    for name, text in commands.items():
        yield Entry(kind="command", name=name, sentence=text, facts=(("more", f"deploy {name} --help"),))


def word_entries() -> Iterator[Entry]:
    """Outcomes, states, verdicts and the other words of answers."""
    for kind, group in words().items():
        for name, word in group.items():
            yield Entry(kind=kind, name=name, sentence=_sentence(word.means), facts=tuple(word.facts.items()))


def exit_code_entries() -> Iterator[Entry]:
    """The exit codes."""
    for code in ExitCode:
        yield Entry(kind="exit code", name=str(int(code)), sentence=code.meaning)


# -- flags and fields


def flag_entries(flag: str) -> Iterator[Entry]:
    """One flag of SGLang: since when, until when, what took its place, and what to write in a profile."""
    span = span_of(flag)
    if span is None:
        return
    newest = newest_release()
    instead = successor_of(flag, newest)
    gone = span.last != newest
    releases = f"{span.first} to {span.last}" if gone else f"{span.first} and later"
    missing = f"; not in {', '.join(span.missing)}" if span.missing else ""
    facts = [("releases", releases + missing)]
    if instead:
        facts.append(("instead", instead))
    if flag in INSTEAD:
        facts.append(("in a profile", INSTEAD[flag]))
    else:
        facts.append(("in a profile", f"flags: {{{flag}: ...}}"))
    facts += [
        ("rule", _rule_line(rule)) for rule in load_checks() if flag.replace("-", "_") in _words(rule.when)
    ]
    state = "a flag that SGLang has dropped" if gone else "a flag of SGLang"
    yield Entry(kind="flag", name=flag, sentence=f"--{flag} is {state}.", facts=tuple(facts))


def _words(expression: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", expression))


def _rule_line(rule: Rule) -> str:
    return f"{rule.rule} ({rule.severity}): {rule.message}"


def field_entries() -> Iterator[Entry]:
    """The fields of profiles, services and hosts, from the schema."""
    yield from _fields(Settings, "profile field")
    yield from _fields(Service, "service field", without=("settings",))
    yield from _fields(Host, "host field", without=("settings",))


def _fields(
    model: type[BaseModel], kind: str, prefix: str = "", without: tuple[str, ...] = ()
) -> Iterator[Entry]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        if name in without:
            continue
        facts = []
        if kind == "profile field" and path in spellings():
            facts = [("written as", line) for line in _spelling_lines(path)]
        default = field.default
        if (
            not field.is_required()
            and default not in (None, "", ())
            and isinstance(default, str | int | float | bool)
        ):
            facts.append(("default", str(default)))
        yield Entry(kind=kind, name=path, sentence=field.description or "", facts=tuple(facts))
        inner = _inner_model(field.annotation)
        if inner is not None and not prefix:
            yield from _fields(inner, kind, f"{path}.")


def _inner_model(annotation: object) -> type[BaseModel] | None:
    """The record that a field holds, whether it may be left out or not."""
    found: object
    for found in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return None


def _spelling_lines(field: str) -> Iterator[str]:
    for span in spellings()[field].spans:
        words = " ".join(span.words) if span.words else f"{span.environment}={{value}} in the environment"
        if span.since and span.until:
            yield f"{words} ({span.since} to {span.until})"
        elif span.since or span.until:
            yield f"{words} ({'from' if span.since else 'up to'} {span.since or span.until})"
        else:
            yield words


# -- strategies and steps


def ladder_entries() -> Iterator[Entry]:
    """How old and new change places, and the steps that a change is made of, in the host's own order."""
    for name, word in ladder()["strategies"].items():
        steps = [step.name for step in forward(name)] if name in STRATEGIES else []
        facts = [*word.facts.items(), *([("steps", ", ".join(steps))] if steps else [])]
        yield Entry(kind="strategy", name=name, sentence=_sentence(word.means), facts=tuple(facts))
    for name, word in ladder()["steps"].items():
        taken = [strategy for strategy, order in STRATEGIES.items() if name in order.steps]
        those = "all" if len(taken) == len(STRATEGIES) else ", ".join(taken)
        facts = [*word.facts.items(), *([("strategies", those)] if taken else [])]
        yield Entry(kind="step", name=name, sentence=_sentence(word.means), facts=tuple(facts))


# -- findings and causes


def finding_entries() -> Iterator[Entry]:
    """Findings: those of the rules, and those that code makes."""
    for rule in load_checks():
        facts = [("severity", rule.severity), ("when", rule.when)]
        if rule.since or rule.until:
            facts.append(("releases", f"{rule.since or 'the first'} to {rule.until or 'the newest'}"))
        facts += [("what to do", rule.hint)] if rule.hint else []
        facts += [("SGLang says", rule.engine_says)] if rule.engine_says else []
        facts.append(("found", PLACES["plan"]))
        facts.append(("go over it", f"--ignore {rule.rule}")) if rule.severity == "error" else None
        yield Entry(kind="finding", name=rule.rule, sentence=_sentence(rule.message), facts=tuple(facts))
    for name, meaning in meanings().items():
        facts = [("what to do", meaning.do)] if meaning.do != "Nothing" else []
        facts.append(("found", PLACES[meaning.where]))
        yield Entry(kind="finding", name=name, sentence=_sentence(meaning.means), facts=tuple(facts))


def cause_entries() -> Iterator[Entry]:
    """What the journal of a dead engine can mean."""
    by_cause: dict[str, list[tuple[str, bool]]] = {}
    for rule in load_causes():
        by_cause.setdefault(rule.cause, []).append((rule.hint, rule.permanent))
    for cause, said in by_cause.items():
        hints = list(dict.fromkeys(filled(hint, {}, {}, {}) for hint, _ in said))
        lasting = {permanent for _, permanent in said}
        again = "the same start fails the same way" if lasting == {True} else "may pass"
        again = "depends on where it happens" if len(lasting) > 1 else again
        facts = (*(("hint", hint) for hint in hints), ("again", again))
        yield Entry(kind="cause", name=cause, sentence="Found in the engine's journal.", facts=facts)


def patch_entries() -> Iterator[Entry]:
    """The source patches that are shipped, and the known mistakes without one."""
    for patch in load_catalogue():
        spans = ", ".join(map(str, patch.affected or ())) or "every release"
        facts = [("affected", spans)]
        if patch.has_patch:
            facts += [("apply", f"deploy patch {patch.name}"), ("risk", patch.risk)]
        facts += [("without it", way.text) for way in patch.workarounds]
        if patch.upstream.issue:
            fixed = f", fixed in {patch.upstream.fixed_in}" if patch.upstream.fixed_in else ""
            facts.append(("upstream", patch.upstream.issue + fixed))
        yield Entry(kind="patch", name=patch.name, sentence=_sentence(patch.title), facts=tuple(facts))


def variable_entries() -> Iterator[Entry]:
    """Environment variables that rules or presets know."""
    rules: dict[str, list[Rule]] = {}
    for rule in load_checks():
        for name in sorted(set(re.findall(r"env\.([A-Z0-9_]+)", rule.when))):
            rules.setdefault(name, []).append(rule)
    presets = {
        name: {kind: preset[name] for kind, preset in NCCL_PRESETS.items() if name in preset}
        for preset in NCCL_PRESETS.values()
        for name in preset
    }
    for name in sorted({*rules, *presets}):
        facts = [("preset", f"{value} on hosts with {kind}") for kind, value in presets.get(name, {}).items()]
        facts += [("rule", _rule_line(rule)) for rule in rules.get(name, [])]
        sentence = (
            "An environment variable of the engine; `environment:` of a profile, service or host sets it."
        )
        yield Entry(kind="variable", name=name, sentence=sentence, facts=tuple(facts))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
