"""Where the output head lives in a pipeline: many of SGLang's models build it on every stage, used or not."""

from deployer.planning.memory.model_config import ModelConfig
from deployer.schema.versions import Release

# Model class -> first release in which only the last stage builds the head; read in the source of all releases
# up to 0.5.23. A class that is not here builds it on every stage.
LAST_STAGE_ONLY_SINCE = {
    "BailingMoELinearForCausalLM": "0.5.9",
    "BailingMoeV3ForCausalLM": "0.5.19",
    "DeepseekV2ForCausalLM": "0.5.6",
    "DeepseekV3ForCausalLM": "0.5.6",
    "DeepseekV4ForCausalLM": "0.5.12",
    "Gemma4ForCausalLM": "0.5.13",
    "Gemma4ForConditionalGeneration": "0.5.13",
    "GigaChat35ForCausalLM": "0.5.21",
    "Glm4ForCausalLM": "0.5.4.post2",
    "Glm4vForConditionalGeneration": "0.5.6.post1",
    "Glm4vMoeForConditionalGeneration": "0.5.6.post1",
    "Glm5NextForConditionalGeneration": "0.5.20",
    "KimiK3LinearForCausalLM": "0.5.17",
    "KimiLinearForCausalLM": "0.5.4.post2",
    "LagunaForCausalLM": "0.5.12",
    "MiMoV2FlashForCausalLM": "0.5.7",
    "MiMoV2ForCausalLM": "0.5.11",
    "MiniMaxM2ForCausalLM": "0.5.4.post1",
    "MiniMaxM3SparseForCausalLM": "0.5.16",
    "MiniMaxM3SparseForConditionalGeneration": "0.5.16",
    "NemotronHForCausalLM": "0.5.8",
    "OrionForCausalLM": "0.5.5.post3",
    "Qwen2ForCausalLM": "0.4.7",
    "Qwen2_5_VLForConditionalGeneration": "0.5.5.post3",
    "Qwen3ForCausalLM": "0.4.7",
    "Qwen3VLForConditionalGeneration": "0.5.7",
    "Qwen3_5ForCausalLM": "0.5.17",
    "SolarForCausalLM": "0.5.3",
    "Step3p5ForCausalLM": "0.5.9",
}


def head_on_every_stage(model: ModelConfig, version: str) -> bool:
    """Whether each pipeline stage of this model holds the head in this release."""
    since = LAST_STAGE_ONLY_SINCE.get(model.architecture)
    if since is None and model.latent:
        # DeepSeek's class serves most MLA models, Kimi K2 among them, under names of their own.
        since = LAST_STAGE_ONLY_SINCE["DeepseekV2ForCausalLM"]
    return since is None or Release(version) < Release(since)
