"""docs/reference is what the code says, and everything that the code can say is explained."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from deployer.agent.transaction.strategy import BACKWARD, FORWARD
from deployer.bench.stopping import BETTER, WORSE
from deployer.bench.verdicts import Verdict
from deployer.cli.app import run
from deployer.cli.explain import pages
from deployer.errors import ExitCode
from deployer.operations.explain import all_entries
from deployer.operations.reference import EVENTS
from deployer.planning.meanings import meanings, words
from deployer.schema.facts import ServiceState
from deployer.schema.outcome import OutcomeKind
from deployer.schema.strategy import StrategyChoice

ROOT = Path(__file__).parents[2]
MAKERS = ("error", "warning", "ok", "StepFailed", "finding")


def test_the_pages_are_up_to_date() -> None:
    folder = ROOT / "docs" / "reference"
    stale = [
        name
        for name, text in pages().items()
        if not (folder / name).exists() or (folder / name).read_text() != text
    ]
    assert stale == [], "run: deploy explain --reference docs/reference"


def calls() -> Iterator[tuple[str, str]]:
    """Every call whose first word is a literal: function and word."""
    for path in (ROOT / "deployer").rglob("*.py"):
        if path.is_relative_to(ROOT / "deployer" / "units"):  # lint's own findings, which it documents itself
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                if isinstance(node.args[0].value, str):
                    yield name, node.args[0].value


def test_every_finding_has_a_meaning() -> None:
    made = {word for name, word in calls() if name in MAKERS and " " not in word}
    explained = {entry.name for entry in all_entries() if entry.kind in ("finding", "cause")}
    assert made <= explained, f"planning/meanings.yaml lacks {sorted(made - explained)}"


def test_every_event_is_described() -> None:
    assert {word for name, word in calls() if name == "tell"} <= set(EVENTS)


def test_every_field_is_described() -> None:
    assert [
        entry.name for entry in all_entries() if entry.kind.endswith("field") and not entry.sentence
    ] == []


def test_exit_codes_have_meanings() -> None:
    assert all(code.meaning for code in ExitCode)


@pytest.mark.parametrize(
    ("word", "kind", "text"),
    [
        ("--pp-size", "flag", "pipeline_parallel"),
        ("max-micro-batch-size", "flag", "--pp-max-micro-batch-size"),
        ("speculative.algorithm", "profile field", "--speculative-algorithm"),
        ("weights-missing", "finding", "check step"),
        ("pipeline-speculative", "finding", "--ignore pipeline-speculative"),
        ("port-in-use", "cause", "port"),
        ("NCCL_P2P_LEVEL", "variable", "SYS"),
        ("6", "exit code", "transaction"),
        ("side-by-side", "strategy", "other GPUs"),
        ("shared-weights", "strategy", "check, prefetch, weights, start, ready"),
        ("stop-first", "strategy", "the new one started"),
        ("sleep", "strategy", "host memory"),
        ("sleep", "step", "GPU memory"),
        ("hold", "step", "hold_seconds"),
        ("prefetch", "step", "not-warmed"),
        ("not-warmed", "finding", "in the prefetch step, while the old release serves"),
        ("no-router", "finding", "in the plan"),
        ("Rolled-Back", "outcome", "exit code"),
        ("INCONCLUSIVE", "verdict", "interval"),
        ("decisively worse", "verdict", "margin"),
        ("decisively-worse", "verdict", "margin"),
        ("ttft", "word", "first token"),
        ("downtime", "word", "no engine"),
        ("unknown", "state of a service", "healthy"),
        ("conflict", "state of a patch", "cannot be applied"),
        ("nccl_p2p_level", "variable", "SYS"),
        ("prune", "command", "deploy prune --help"),
        ("Attach", "command", "Follow a transaction under way to its end"),
        ("no-router", "finding", "`deploy doctor` finds it too"),
    ],
)
def test_explain(word: str, kind: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    found = [entry for entry in entries if entry["kind"] == kind]
    assert found
    assert text in json.dumps(found)


def test_every_strategy_and_step_is_explained() -> None:
    explained = {(entry.kind, entry.name) for entry in all_entries()}
    assert {("strategy", name) for name in get_args(StrategyChoice)} <= explained
    assert {("step", name) for name in (*FORWARD, *BACKWARD)} <= explained


def test_explain_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "weigths-missing"]) == 2
    assert "weights-missing" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["uptime", "zebra", "oom-runtme"])
def test_a_guess_is_made_only_when_it_is_near(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word]) == 2
    said = capsys.readouterr().err
    assert ("did you mean 'oom-runtime'?" in said) == (word == "oom-runtme"), said


def test_every_outcome_state_and_verdict_is_explained() -> None:
    explained = {(entry.kind, entry.name) for entry in all_entries()}
    assert {("outcome", kind.value) for kind in OutcomeKind} <= explained
    assert {("state of a service", state) for state in get_args(ServiceState)} <= explained
    assert {("verdict", verdict) for verdict in (*get_args(Verdict), WORSE, BETTER)} <= explained
    codes = {name: word.facts["exit code"] for name, word in words()["outcome"].items()}
    assert codes == {kind.value: str(int(kind.exit_code)) for kind in OutcomeKind}


@pytest.mark.parametrize(
    ("name", "guess"), [("bogus", ""), ("patch-neded", "patch-needed"), ("port-inuse", "port-in-use")]
)
def test_a_finding_that_is_none_cannot_be_ignored(
    name: str, guess: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["switch", "--profile", "tp8", "--ignore", "patch-needed", "--ignore", name]) == 2
    said = capsys.readouterr().err
    assert f"no finding is called '{name}'" in said
    assert (f"did you mean {guess!r}?" in said) == bool(guess)


def test_meanings_name_no_rule_twice() -> None:
    names = [entry.name for entry in all_entries() if entry.kind == "finding"]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
    assert all(meaning.means and meaning.do for meaning in meanings().values())
