"""Small packages that look like SGLang's to a patch, and the requests that patch them."""

import base64
import functools
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.agent import patching
from deployer.patches.catalogue import load_catalogue, patch_request

TRITON = "srt/layers/attention/triton_backend.py"
WAVE = "srt/layers/attention/wave_backend.py"

_HEAD = '''"""Attention."""


class Helper:
    pass


class {name}:
    def __init__(self, model_runner):
'''
_TAIL = """        self.max_context_len = 1


class MultiStepDraft:
    pass
"""
ONE_LINE = "        self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[-1]\n"
THREE_LINES = """        if model_runner.is_hybrid_gdn:
            self.v_head_dim = model_runner.token_to_kv_pool.get_v_head_dim()
        else:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(0).shape[
                -1
            ]
"""
UPSTREAM = """        else_branch = True
        if else_branch:
            self.v_head_dim = model_runner.token_to_kv_pool.get_value_buffer(
                model_runner.token_to_kv_pool.start_layer
            ).shape[-1]
"""


@functools.cache
def _shipped(name: str) -> dict[str, Any]:
    return patch_request(load_catalogue().get(name))


def triton_text(middle: str) -> str:
    """A triton back end around these lines."""
    return _HEAD.format(name="TritonAttnBackend") + middle + _TAIL


def wave_text(middle: str = ONE_LINE) -> str:
    """A wave back end around these lines."""
    return _HEAD.format(name="WaveAttnBackend") + middle + _TAIL


@dataclass(frozen=True)
class Engine:
    """A site folder with an sglang package, and the state folder that belongs to it."""

    site: Path

    @property
    def package(self) -> Path:
        return self.site / "sglang"

    @property
    def state(self) -> Path:
        return self.site.parent / (self.site.name + "-state")

    def file(self, path: str = TRITON) -> Path:
        return self.package / path

    def request(self, *patches: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        """A request about this engine; patches by the names of shipped ones or as they are."""
        asked = [_shipped(one) if isinstance(one, str) else one for one in patches]
        return {"engine": {"path": str(self.site)}, "who": "tester", "patches": asked, **more}

    def inspect(self, *patches: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        return patching.inspect(self.request(*patches, **more), str(self.state))

    def plan(self, *patches: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        return patching.plan(self.request(*patches, **more), str(self.state))

    def apply(self, *patches: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        return patching.apply(self.request(*patches, **more), str(self.state))

    def revert(self, *patches: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        return patching.revert(self.request(*patches, **more), str(self.state))

    def state_of(self, patch: str | dict[str, Any]) -> str:
        """The state of one patch, read from the disk."""
        found: str = self.inspect(patch)["patches"][0]["state"]
        return found

    def tree(self) -> dict[str, tuple[str, int]]:
        """Every file of the site folder with its hash and mode."""
        return tree(self.site)


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file below a folder with its hash and mode."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[os.path.relpath(path, folder)] = (digest, stat.S_IMODE(os.lstat(path).st_mode))
    return found


def make_engine(
    site: Path, version: str, files: dict[str, str] | None = None, *, record: bool = False
) -> Engine:
    """A package of a version; without files, the triton and wave back ends with the mistake on one line."""
    texts = {TRITON: triton_text(ONE_LINE), WAVE: wave_text()} if files is None else files
    engine = Engine(site)
    for path, text in {"__init__.py": "", "version.py": f'__version__ = "{version}"\n', **texts}.items():
        engine.file(path).parent.mkdir(parents=True, exist_ok=True)
        engine.file(path).write_text(text)
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    if record:
        (info / "RECORD").write_text(
            "".join(_record_line(site, path) for path in sorted(engine.package.rglob("*.py")))
        )
    return engine


def _record_line(site: Path, path: Path) -> str:
    content = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path.relative_to(site)},sha256={digest},{len(content)}\n"


def own_patch(name: str, path: str, find: str, replace: str, **more: Any) -> dict[str, Any]:
    """A patch of the user's own, as the agent is asked for it."""
    change = {"find": find, "replace": replace, "count": 1}
    return {
        "name": name,
        "title": name,
        "affected": None,
        "files": [{"path": path, "changes": [change]}],
        **more,
    }
