"""Prompts that no cache has seen, of about the length asked for."""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deployer.errors import UsageError
from deployer.schema.bench import Workload

STORY_PROMPTS: Final = (
    "Explain step by step how a steam locomotive turns coal into motion, and what limits its efficiency.",
    "Write a program that finds the shortest way through a maze, explain how it works, and test it.",
    "A shop sells pens in boxes of 6, 9 and 20. Which numbers of pens can nobody buy exactly? Prove it.",
)
# Common words: each is one token, or close to it, in the vocabularies of today's models.
_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education foot boy age policy music market sense nation plan "
    "college interest death experience effect use class control field development role effort rate heart drug show "
    "leader light voice wife police mind price report decision son view town road arm"
)
WORDS: Final = _TEXT.split()
TASK: Final = "Tell a long story with all these words."


@dataclass(frozen=True)
class Scale:
    """How words become tokens on this server: tokens = overhead + words x per_word."""

    per_word: float = 1.0
    overhead: float = 0.0

    def words(self, tokens: int) -> int:
        """Words that come to so many tokens."""
        return max(1, round((tokens - self.overhead) / self.per_word))


class PromptSource:
    """Texts one after the other; another seed gives other texts from the first word on."""

    def __init__(self, workload: Workload, seed: str, scale: Scale, prompts: Sequence[str] = ()) -> None:
        self._workload = workload
        self._random = random.Random(seed)  # noqa: S311 - prompts, not keys
        self._scale = scale
        self._prompts = prompts or (STORY_PROMPTS if workload.preset == "story" else ())
        self._number = 0
        self._prefix = (
            self._text(workload.shared_prefix_tokens) + "\n" if workload.shared_prefix_tokens else ""
        )

    def __next__(self) -> str:
        """The next text."""
        number, self._number = self._number, self._number + 1
        if self._prompts:
            text = self._prompts[number % len(self._prompts)]
            return f"{self.fresh_words(8)}.\n{text}" if self._workload.fresh else text
        tokens = self._workload.input_tokens or 128
        if self._prefix:
            tokens -= self._workload.shared_prefix_tokens
        words = max(4, self._scale.words(tokens) - len(TASK.split()))
        return f"{self._prefix}{self.fresh_words(words)}\n{TASK}"

    def __iter__(self) -> Iterator[str]:
        return self

    def fresh_words(self, count: int) -> str:
        """Words in an order that has not been sent before."""
        return " ".join(self._random.choices(WORDS, k=count))

    def _text(self, tokens: int) -> str:
        return self.fresh_words(self._scale.words(max(1, tokens)))


def request_body(workload: Workload, model: str, prompt: str, extras: dict[str, Any]) -> dict[str, Any]:
    """The JSON of one request; `extras` are what this server was found to take."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": workload.output_tokens,
        "temperature": workload.temperature,
    }
    if workload.api == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return body | extras


def load_prompts(path: Path) -> tuple[str, ...]:
    """A text a line, or JSON lines: a string, or an object with `prompt`, `text` or chat `messages`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompts cannot be read: {error}", where=str(path)) from error
    found = [
        _prompt(line, f"{path}:{number}") for number, line in enumerate(text.splitlines(), 1) if line.strip()
    ]
    if not found:
        raise UsageError("the file holds no prompt", where=str(path), hint="one prompt a line, or JSON lines")
    return tuple(found)


def _prompt(line: str, where: str) -> str:
    if line.lstrip()[:1] not in ("{", '"'):
        return line.strip()
    try:
        value = json.loads(line)
    except ValueError:
        return line.strip()
    if isinstance(value, dict):
        messages = value.get("messages") or value.get("conversations")
        if isinstance(messages, list) and messages and isinstance(messages[0], dict):
            value = next((m for m in messages if m.get("role") in ("user", None)), messages[0])
        value = next(
            (value[key] for key in ("prompt", "text", "content", "value", "question") if value.get(key)), None
        )
    if not isinstance(value, str):
        raise UsageError("no prompt in this line", where=where, hint='write {"prompt": "..."}')
    return value


def digest(prompts: Sequence[str]) -> str:
    """A name for a set of prompts."""
    return hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:12]
