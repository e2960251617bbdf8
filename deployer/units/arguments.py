"""An engine's command line -> typed profile fields, service fields, other flags and secrets."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployer.render.history import has_flag, newest_release, releases, span_of
from deployer.schema.reserved_flags import INSTEAD
from deployer.schema.versions import within

NEGATIVE = re.compile(r"-\d+(\.\d+)?")
Said = dict[str, Any]


@dataclass
class Arguments:
    """What a command line says, in the words of the inventory."""

    profile: Said = field(default_factory=dict)
    service: Said = field(default_factory=dict)
    flags: Said = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    config_file: str = ""
    remarks: list[str] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)


def split_flags(words: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Flags with their words, and the words before the first flag."""
    found: list[tuple[str, list[str]]] = []
    loose: list[str] = []
    for word in words:
        if word.startswith("-") and len(word) > 1 and not NEGATIVE.fullmatch(word) and word != "--":
            name, equals, value = word.partition("=")
            found.append((name, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            loose.append(word)
    return found, loose


def canonical(name: str, version: str | None) -> tuple[str | None, str]:
    """The full flag (without dashes) that a spelling means, and a remark; None when it could mean several."""
    bare = name.lstrip("-")
    flag = bare.replace("_", "-").lower()
    remark = f"--{bare} is written --{flag}" if flag != bare else ""
    known = version or newest_release()
    if has_flag(flag, known) or flag in INSTEAD or span_of(flag) is not None:
        return flag, remark
    offered = [each for each in _flags() if each.startswith(flag) and (has_flag(each, known))]
    if len({_meaning(each) for each in offered}) == 1:
        full = min(offered, key=len)
        return full, f"--{bare} is a short form; in full it is --{full}"
    if len(offered) > 1:
        return None, f"--{bare} could be {', '.join('--' + each for each in sorted(offered)[:4])}"
    return flag, f"--{bare} is not a flag of any release that is known here"


def _meaning(flag: str) -> str:
    return INSTEAD.get(flag, flag)


def _flags() -> tuple[str, ...]:
    from deployer.render.history import _data

    return tuple(_data()[1])


def read_arguments(words: Sequence[str], version: str | None = None) -> Arguments:
    """Read a whole command line; nothing is dropped: what has no place is in `not_understood`."""
    found = Arguments()
    flags, loose = split_flags(words)
    if loose:
        found.not_understood.append(f"words that belong to no flag: {' '.join(loose)}")
    seen: dict[str, list[str]] = {}
    for name, values in flags:
        flag, remark = canonical(name, version)
        if remark:
            (found.remarks if flag else found.not_understood).append(remark)
        if flag is None:
            continue
        if flag in seen and seen[flag] != values:
            found.remarks.append(f"--{flag} is given twice; the last one counts")
        seen[flag] = values
    for flag, values in seen.items():
        _take(found, flag, values, version)
    _settle(found, seen, version)
    return found


def _text(text: str) -> str:
    return text


# Flag -> the profile field and how its word is read.
FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("tp-size", "tensor-parallel-size", "tp"), ("tensor_parallel", int)),
    **dict.fromkeys(("pp-size", "pipeline-parallel-size", "pp"), ("pipeline_parallel", int)),
    **dict.fromkeys(("ep-size", "expert-parallel-size", "ep"), ("expert_parallel", int)),
    **dict.fromkeys(("attn-dp-size", "attention-data-parallel-size"), ("attention_data_parallel", int)),
    **dict.fromkeys(("pp-max-micro-batch-size", "max-micro-batch-size"), ("max_micro_batch", int)),
    "nnodes": ("nodes", int),
    "pp-async-batch-depth": ("async_batch_depth", int),
    "attention-backend": ("attention_backend", _text),
    "moe-runner-backend": ("moe_runner_backend", _text),
    "moe-a2a-backend": ("moe_a2a_backend", _text),
    "mem-fraction-static": ("memory_fraction", float),
    "kv-cache-dtype": ("kv_cache_dtype", _text),
    "quantization": ("quantization", _text),
    "context-length": ("context_length", int),
    "chunked-prefill-size": ("chunked_prefill", int),
    "max-running-requests": ("max_running_requests", int),
    **dict.fromkeys(("speculative-algorithm", "speculative-algo"), ("speculative.algorithm", _text)),
    **dict.fromkeys(
        ("speculative-draft-model-path", "speculative-draft-model"), ("speculative.draft_model_path", _text)
    ),
    "speculative-num-steps": ("speculative.num_steps", int),
    "speculative-eagle-topk": ("speculative.eagle_topk", int),
    "speculative-num-draft-tokens": ("speculative.num_draft_tokens", int),
    **dict.fromkeys(("cuda-graph-max-bs", "cuda-graph-max-bs-decode"), ("cuda_graphs.max_batch", int)),
}
SERVICE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "model-path": ("model_path", _text),
    "model": ("model_path", _text),
    "served-model-name": ("served_model_name", _text),
    "host": ("host_bind", _text),
    "port": ("port", int),
    "nccl-port": ("nccl_port", int),
}
SECRETS = {"api-key": "api_key", "admin-api-key": "admin_api_key"}
# Read together at the end, because what they mean depends on one another.
TOGETHER = frozenset(
    [
        "dp-size",
        "data-parallel-size",
        "dp",
        "enable-dp-attention",
        "enable-ep-moe",
        "disable-cuda-graph",
        "enable-metrics",
        "cuda-graph-backend-decode",
        "cuda-graph-backend-prefill",
        "disable-piecewise-cuda-graph",
        "disable-decode-cuda-graph",
        "disable-prefill-cuda-graph",
        "disable-overlap-schedule",
        "config",
    ]
)


def _take(found: Arguments, flag: str, values: list[str], version: str | None) -> None:
    word = values[0] if values else ""
    if flag in SECRETS:
        found.secrets[SECRETS[flag]] = word
    elif flag in TOGETHER:
        return
    elif flag in FIELDS or flag in SERVICE:
        name, read = FIELDS.get(flag) or SERVICE[flag]
        target = found.profile if flag in FIELDS else found.service
        try:
            if len(values) != 1:
                raise ValueError
            _put(target, name, read(word))
        except ValueError:
            found.not_understood.append(
                f"--{flag} {' '.join(values)}".rstrip() + ": not a value that its field takes"
            )
    elif flag.startswith("weight-cache-"):
        found.not_understood.append(
            f"--{flag} {' '.join(values)}".rstrip()
            + ": `strategy: shared-weights` writes it, for a unit of its own"
        )
    elif flag.startswith("no-") and span_of(flag.removeprefix("no-")) is not None:
        found.flags[flag.removeprefix("no-")] = False
    else:
        found.flags[flag] = _flag_value(values)


def _flag_value(values: list[str]) -> Any:
    """A flag's words as YAML: true, text, a number that reads back as it was, or a list."""
    if not values:
        return True
    read = [_plain(value) for value in values]
    return read[0] if len(read) == 1 else read


def _plain(text: str) -> Any:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if str(value) == text else text
    if text[:1] == "{":
        try:
            document = json.loads(text)
        except ValueError:
            return text
        if json.dumps(document, ensure_ascii=False, separators=(",", ":")) == text:
            return document
    return text


def _put(target: Said, name: str, value: Any) -> None:
    outer, dot, inner = name.partition(".")
    if dot:
        target.setdefault(outer, {})[inner] = value
    else:
        target[outer] = value


def _settle(found: Arguments, seen: Mapping[str, list[str]], version: str | None) -> None:
    """Flags whose meaning depends on others or on the release."""
    release = _release(version)
    dp = next((seen[name] for name in ("dp-size", "data-parallel-size", "dp") if name in seen), None)
    if dp is not None:
        attention = "enable-dp-attention" in seen
        _int(found, "attention_data_parallel" if attention else "data_parallel", dp, "dp-size")
    elif "enable-dp-attention" in seen:
        found.not_understood.append("--enable-dp-attention without --dp-size")
    if "enable-ep-moe" in seen and "expert_parallel" not in found.profile:
        found.profile["expert_parallel"] = found.profile.get("tensor_parallel", 1)
        found.remarks.append("--enable-ep-moe without a size: experts over all tensor parallel GPUs")
    if "enable-metrics" in seen:
        found.profile["metrics"] = True
    if "config" in seen:
        found.config_file = " ".join(seen["config"])
    _graphs(found, seen, release)
    if "disable-overlap-schedule" in seen:
        written = found.profile.get("pipeline_parallel", 1) > 1 and within(
            release, "0.4.6.post2", "0.4.6.post3"
        )
        if not written:
            found.flags["disable-overlap-schedule"] = True
    if found.profile.get("cuda_graphs", {}) == {"mode": "off"}:
        found.profile["cuda_graphs"] = "off"


def _release(version: str | None) -> str:
    return version if version in releases() else newest_release()


def _int(found: Arguments, name: str, values: list[str], flag: str) -> None:
    try:
        (word,) = values
        found.profile[name] = int(word)
    except ValueError:
        found.not_understood.append(f"--{flag} {' '.join(values)}: not a whole number")


def _graphs(found: Arguments, seen: Mapping[str, list[str]], release: str) -> None:
    """CUDA graphs off, in the words of each release."""
    backends = {part: seen.get(f"cuda-graph-backend-{part}") for part in ("decode", "prefill")}
    off = "disable-cuda-graph" in seen or set(map(str, backends.values())) == {"['disabled']"}
    if off:
        found.profile["cuda_graphs"] = {"mode": "off"}
        return
    for part, value in backends.items():
        if value is not None:
            found.not_understood.append(
                f"--cuda-graph-backend-{part} {' '.join(value)}: only `cuda_graphs: off` or on"
            )
    for flag in ("disable-decode-cuda-graph", "disable-prefill-cuda-graph"):
        if flag in seen:
            found.not_understood.append(f"--{flag}: `cuda_graphs: off` turns both off")
    if "disable-piecewise-cuda-graph" in seen:
        found.flags["disable-piecewise-cuda-graph"] = True
