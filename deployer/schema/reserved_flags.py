"""Engine flags that a typed field or the tool itself writes, and what to use instead of `flags:`."""

_PROFILE = {
    "tensor_parallel": "tp-size tensor-parallel-size tp",
    "pipeline_parallel": "pp-size pipeline-parallel-size pp",
    "data_parallel": "dp-size data-parallel-size dp",
    "expert_parallel": "ep-size expert-parallel-size ep enable-ep-moe",
    "attention_data_parallel": "attn-dp-size attention-data-parallel-size enable-dp-attention",
    "nodes": "nnodes",
    "async_batch_depth": "pp-async-batch-depth",
    "max_micro_batch": "pp-max-micro-batch-size max-micro-batch-size",
    "cuda_graphs": (
        "disable-cuda-graph cuda-graph-max-bs cuda-graph-max-bs-decode cuda-graph-backend-decode "
        "cuda-graph-backend-prefill disable-decode-cuda-graph disable-prefill-cuda-graph"
    ),
    "attention_backend": "attention-backend",
    "moe_runner_backend": "moe-runner-backend",
    "moe_a2a_backend": "moe-a2a-backend",
    "memory_fraction": "mem-fraction-static",
    "kv_cache_dtype": "kv-cache-dtype",
    "quantization": "quantization",
    "context_length": "context-length",
    "chunked_prefill": "chunked-prefill-size",
    "max_running_requests": "max-running-requests",
    "speculative.algorithm": "speculative-algorithm speculative-algo",
    "speculative.draft_model_path": "speculative-draft-model-path speculative-draft-model",
    "speculative.num_steps": "speculative-num-steps",
    "speculative.eagle_topk": "speculative-eagle-topk",
    "speculative.num_draft_tokens": "speculative-num-draft-tokens",
    "metrics": "enable-metrics",
    "strategy": "weight-cache-mode weight-cache-socket weight-cache-timeout",
}
_SERVICE = {
    "model_path": "model-path model",
    "served_model_name": "served-model-name",
    "host_bind": "host",
    "port": "port",
    "nccl_port": "nccl-port",
    "secrets.api_key": "api-key",
    "secrets.admin_api_key": "admin-api-key",
}

INSTEAD: dict[str, str] = {
    **{flag: f"the profile field {field!r}" for field, flags in _PROFILE.items() for flag in flags.split()},
    **{flag: f"the service field {field!r}" for field, flags in _SERVICE.items() for flag in flags.split()},
    "config": "`flags:` and `secrets:`, as the tool writes the engine's config file itself",
    "help": "the engine itself",
}
