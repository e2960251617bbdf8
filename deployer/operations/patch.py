"""patch: see, apply and revert source patches of the SGLang that a service runs, on hosts or in a local folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.agent import patching
from deployer.agent.errors import AgentError as HostRefusal
from deployer.errors import DeployError
from deployer.hosts.port import AgentChannel
from deployer.operations.facts import last
from deployer.operations.transaction import holder
from deployer.patches.catalogue import Catalogue, load_catalogue
from deployer.patches.entry import PatchEntry, patch_request
from deployer.schema.inventory import Inventory

Answer = dict[str, Any]


def catalogue_of(inventory: Inventory | None) -> Catalogue:
    """The shipped entries and those in the inventory's patches/."""
    return load_catalogue(None if inventory is None else Path(inventory.folder) / "patches")


@dataclass(frozen=True)
class PatchChoices:
    """What the user chose about patches: back to the bytes from before; a file that somebody edited is taken as it is."""

    revert: bool = False
    accept_edited: bool = False


AS_USUAL = PatchChoices()


def patch_on_host(
    channel: AgentChannel,
    python: str,
    entries: Sequence[PatchEntry],
    word: str,
    choices: PatchChoices = AS_USUAL,
) -> Answer:
    """One conversation: how the patches stand, or what was done; a refusal is part of the answer."""
    request = {"python": python, "word": word, "revert": choices.revert, **_asked(entries, choices)}
    answer = last(channel, "patch", request)
    return {"host": channel.host, **{key: value for key, value in answer.items() if key != "event"}}


def patch_in_folder(
    path: str, entries: Sequence[PatchEntry], word: str, choices: PatchChoices = AS_USUAL
) -> Answer:
    """The same in an interpreter, package folder, virtual environment or source checkout of this machine."""
    import os

    state = patching.default_state_folder(os.environ, os.getuid())
    request: dict[str, Any] = {"engine": {"path": str(Path(path).absolute())}, **_asked(entries, choices)}
    if word == "plan":
        request["verb"] = "revert" if choices.revert else "apply"
    try:
        answer: Answer = getattr(patching, word)(request, state)
    except patching.PatchRefused as refusal:
        refused = {"kind": refusal.kind, "message": refusal.message, "hint": refusal.hint}
        return {**refusal.answer, "refused": refused}
    except HostRefusal as refusal:
        raise DeployError(
            refusal.message, hint=refusal.hint, where=path, exit_code=refusal.exit_code
        ) from refusal
    return answer


def _asked(entries: Sequence[PatchEntry], choices: PatchChoices) -> Mapping[str, Any]:
    who = holder()
    return {
        "patches": [patch_request(entry) for entry in entries],
        "who": f"{who['user']}@{who['machine']}",
        "accept_edited": choices.accept_edited,
    }
