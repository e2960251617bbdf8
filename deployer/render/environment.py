"""The engine's environment: writable caches, GPUs, NCCL presets, then what the profile says."""

import re
from collections.abc import Mapping

from deployer.schema.desired import Desired

# SYS is what the legacy integer 5 means: peer to peer at any distance.
NCCL_PRESETS: Mapping[str, Mapping[str, str]] = {
    "pcie": {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring"},
    "nvlink": {"NCCL_NVLS_ENABLE": "1"},
    "none": {},
}

# Every variable that rendering may set by itself: an adopted service takes back those that its own unit did not have.
OWN_NAMES = (
    "PATH",
    "PYTHONUNBUFFERED",
    "HOME",
    "XDG_CACHE_HOME",
    "SGLANG_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "TVM_FFI_CACHE_DIR",
    "SGLANG_DG_CACHE_DIR",
    "HF_HOME",
    "CUDA_DEVICE_ORDER",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
    *sorted({name for preset in NCCL_PRESETS.values() for name in preset}),
)

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def cache_root(desired: Desired, version: str) -> str:
    """Where compiled kernels go: what was compiled for another release, other GPUs or other sources must not be found."""
    gpu, patches = desired.host.gpus.model or "", sorted(desired.profile.patches or ())
    parts = [version, "-".join(re.findall(r"[a-z0-9.]+", gpu.lower())), "+".join(patches)]
    folder = "_".join(re.sub(r"[^A-Za-z0-9.+_-]", "_", part) for part in parts if part)
    return f"{desired.service.cache_folder}/{desired.service.name}/{folder}"


def cache_variables(desired: Desired, version: str) -> dict[str, str]:
    """HOME and the caches under it, and downloads, which every engine release shares.

    Each compiler is told its folder by name, so that it stays there when a profile sets its own HOME: Triton,
    TorchInductor, FlashInfer, tvm-ffi (SGLang's own kernels) and DeepGEMM.
    """
    root = cache_root(desired, version)
    return {
        "HOME": root,
        "XDG_CACHE_HOME": f"{root}/.cache",
        "SGLANG_CACHE_DIR": f"{root}/sglang",
        "TRITON_CACHE_DIR": f"{root}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{root}/inductor",
        "FLASHINFER_WORKSPACE_BASE": f"{root}/flashinfer",
        "TVM_FFI_CACHE_DIR": f"{root}/tvm-ffi",
        "SGLANG_DG_CACHE_DIR": f"{root}/deep_gemm",
        "HF_HOME": f"{desired.service.cache_folder}/{desired.service.name}/huggingface",
    }


def gpu_variables(desired: Desired) -> dict[str, str]:
    """Which GPUs, counted as nvidia-smi counts them, and NCCL's presets for their interconnect."""
    if desired.host.gpus.count == 0:
        return {}
    found = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if desired.service.gpus is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, desired.service.gpus))
    presets = dict(NCCL_PRESETS[desired.host.gpus.interconnect])
    if (desired.profile.nodes or 1) > 1:
        # Between hosts InfiniBand is wanted, if there is any.
        presets.pop("NCCL_IB_DISABLE", None)
    return found | presets


def sleep_variables(desired: Desired) -> dict[str, str]:
    """For an engine that may sleep, /health says that the server lives and computes nothing (SGLang 0.5.5.post3 and later).

    To compute while asleep ends it, and anybody's probe may ask. It also answers at once instead of after a second, so
    the front has it back sooner. That it generates is what `deploy` finds out by itself before it commits.
    """
    return {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"} if desired.strategy == "sleep" else {}


def search_path(desired: Desired) -> str:
    """PATH with the engine's own tools (ninja) and nvcc, which a service does not get from a login shell."""
    tools = [desired.engine.python.rpartition("/")[0]]
    if desired.host.gpus.count:
        tools.append("/usr/local/cuda/bin")
    return ":".join([*tools, SYSTEM_PATH])


def environment_of(desired: Desired, version: str, spelled: Mapping[str, str]) -> dict[str, str]:
    """Every variable that is not secret, sorted by name."""
    found: dict[str, str | None] = {
        "PATH": search_path(desired),
        "PYTHONUNBUFFERED": "1",
        **cache_variables(desired, version),
        **gpu_variables(desired),
        **sleep_variables(desired),
        **(desired.profile.environment or {}),
        **spelled,
    }
    secret = desired.service.secrets.environment
    return {name: value for name, value in sorted(found.items()) if value is not None and name not in secret}


def cache_folders(desired: Desired, version: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The folders that the service's user must be able to write: those in use, the root first."""
    variables = cache_variables(desired, version)
    used = [folder for name, folder in variables.items() if environment.get(name) == folder]
    return tuple(dict.fromkeys([cache_root(desired, version), *used]))
