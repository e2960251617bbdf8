"""Memory outside the fraction: CUDA graphs, activations and copies made after the load."""

from deployer.planning.memory.fraction import Capacity
from deployer.planning.memory.model_config import ModelConfig
from deployer.schema.memory import GIB

MIB = 1 << 20
ACTIVATIONS_BYTES = 3 * GIB // 2
BATCH_BYTES = 2 * MIB
EAGER_BYTES = GIB // 2


def graphs_bytes(capacity: Capacity, model: ModelConfig) -> int:
    """An estimate of what graphs and activations take on each GPU; the engine's own reserve is far larger."""
    decode = capacity.batch * BATCH_BYTES if capacity.captures_decode else EAGER_BYTES
    # Prefill graphs of MLA models cost as much again, as the engine's own reserve says.
    prefill = ACTIVATIONS_BYTES if capacity.captures_prefill and model.latent else 0
    return ACTIVATIONS_BYTES + decode + prefill
