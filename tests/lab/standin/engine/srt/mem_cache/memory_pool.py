"""The part of the KV pool that the attention backend asks: a list of this stage's layers."""

from __future__ import annotations


class Buffer:
    """Something with a shape, as a tensor has one."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class MLATokenToKVPool:
    """Knows the global id of its first layer, and holds a buffer for each layer of its stage."""

    def __init__(self, size: int, start_layer: int, layer_num: int) -> None:
        self.start_layer = start_layer
        self.kv_buffer: list[Buffer] = [Buffer((size, 1, 576)) for _ in range(layer_num)]

    def get_value_buffer(self, layer_id: int) -> Buffer:
        return self.kv_buffer[layer_id - self.start_layer]

    def get_v_head_dim(self) -> int:
        return self.kv_buffer[0].shape[-1]
