"""Runs with an engine's own interpreter: builds one of its attention back ends on a real KV pool of a later stage.

`python cure_driver.py MODULE CLASS POOL START_LAYER...` prints what the back end took as head dimension, or its error.
The pool and the back end are the engine's; the model runner around them is made of ones.
"""

import importlib
import json
import sys
from importlib.machinery import ModuleSpec
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

HEAD_DIM = 48
LAYERS = 8
NONE = ("hybrid_gdn_config", "kimi_linear_config", "linear_attn_model_spec", "mambaish_config")
ASKED = ("get_", "is_", "check_", "cuda_graph_")
ABSENT = ("wave_lang", "vllm")

load: Any = importlib.import_module


class One(int):
    """The number one, which is also everything that can be asked of it."""

    def __getattr__(self, name: str) -> "One":
        return One(1)

    def __call__(self, *args: Any, **kwargs: Any) -> "One":
        return One(1)


class Absent:
    """Finds a library of another vendor's GPU, of which nothing is called here, and everything in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(name, loader, is_package=True) if name.partition(".")[0] == self.name else None

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        pass


def main(module_name: str, class_name: str, pool_name: str, *start_layers: str) -> None:
    """Build the back end on a pool for each start layer."""
    finders: list[Any] = sys.meta_path
    finders.extend(Absent(name) for name in ABSENT)
    tolerate_newer_libraries()
    load("sglang.srt.layers.quantization")  # the oldest engines import in a circle otherwise
    module = load(f"sglang.srt.layers.attention.{module_name}")
    for name, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and name.startswith(ASKED):
            setattr(module, name, One(1))
        elif name in NONE:
            setattr(module, name, lambda *_, **__: None)
    load("torch").ops.sgl_kernel = MagicMock()  # the CPU's kernels, of which nothing is called here
    backend = getattr(module, class_name)
    print(json.dumps([build(backend, make_pool(pool_name, int(start))) for start in start_layers]))


def build(backend: Any, pool: Any) -> Any:
    """The head dimension that the back end takes from the pool, or the error it dies of."""
    try:
        return backend(make_runner(pool)).v_head_dim
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def make_pool(name: str, start_layer: int) -> Any:
    """A KV pool of 8 layers with heads of 48, for a stage that begins at a layer."""
    sizes = {
        "page_size": 1,
        "dtype": load("torch").float32,
        "head_num": 2,
        "head_dim": HEAD_DIM,
        "device": "cpu",
    }
    if name == "SWAKVPool":
        return make_sliding_window_pool(sizes, range(start_layer, start_layer + LAYERS))
    if name == "MLATokenToKVPool":
        del sizes["head_num"], sizes["head_dim"]
        sizes |= {"kv_lora_rank": HEAD_DIM, "qk_rope_head_dim": 16}
    stage = {"layer_num": LAYERS, "start_layer": start_layer, "end_layer": start_layer + LAYERS}
    return getattr(load("sglang.srt.mem_cache.memory_pool"), name)(
        size=8, enable_memory_saver=False, **stage, **sizes
    )


def make_sliding_window_pool(sizes: dict[str, Any], held: range) -> Any:
    """The pool of a hybrid sliding-window model, wherever this release has it and whatever it wants to be told."""
    try:
        pool = load("sglang.srt.mem_cache.swa_memory_pool").SWAKVPool
    except ImportError:
        pool = load("sglang.srt.mem_cache.memory_pool").SWAKVPool
    asked = pool.__init__.__code__.co_varnames
    if "page_size" not in asked:
        del sizes["page_size"]
    if "enable_kvcache_transpose" in asked:
        sizes["enable_kvcache_transpose"] = False
    layers = {"swa_attention_layer_ids": list(held)[::2], "full_attention_layer_ids": list(held)[1::2]}
    return pool(size=8, size_swa=8, **layers, **sizes)


def make_runner(pool: Any) -> Any:
    """A model runner that says one to everything, but for the pool and what is compared with None."""
    config: Any = One(1)
    config.is_encoder_decoder = config.is_multimodal = False
    config.attention_arch = load("sglang.srt.configs.model_config").AttentionArch.MHA
    config.swa_v_head_dim = config.v_head_dim = HEAD_DIM
    runner: Any = One(1)
    for name in ("sliding_window_size", "is_hybrid_gdn", *NONE):
        setattr(runner, name, None)
    runner.model_config = config
    runner.token_to_kv_pool = pool
    runner.token_to_kv_pool_allocator = SimpleNamespace(get_kvcache=lambda: pool)
    runner.device = "cpu"
    runner.dtype = load("torch").float32
    return runner


def tolerate_newer_libraries() -> None:
    """Older engines register models that a newer transformers has by itself, and use what triton and torch dropped."""
    mapping = type(load("transformers.models.auto.configuration_auto").CONFIG_MAPPING)
    register = mapping.register
    mapping.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)
    for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
        vars(load("triton.runtime.cache")).setdefault(name, None)
    vars(load("torch")._C._cpu).setdefault("_is_amx_tile_supported", lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:])
