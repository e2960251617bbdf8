"""Bytes of weights on a GPU: every tensor of the checkpoint, put where the engine puts it."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from deployer.planning.memory.layout import Layout
from deployer.planning.memory.lm_head import head_on_every_stage
from deployer.planning.memory.model_config import ModelConfig
from deployer.planning.memory.roles import IN_OUT_LEAVES, Axis, Group, Role, Where, role_of
from deployer.planning.memory.split import Span
from deployer.schema.memory import TensorRow

VOCABULARY_PADDING = 64
ONE_OF_MANY = ".experts.*."  # how rows of single experts are named
WIDE_FLOATS = ("F32", "F64")
FLOATS = ("BF16", "F16", *WIDE_FLOATS)
# Formats that the engine makes of a plain checkpoint while it loads: one byte an element.
ONLINE_BYTE_FORMATS = ("fp8", "w8a8_fp8", "w8a8_int8", "mxfp8")


@dataclass(frozen=True)
class Weights:
    """Bytes on one GPU, by where in the pipeline they are."""

    layers: tuple[int, ...]
    first: int
    last: int
    every: int
    draft: int
    absorbed: tuple[int, ...]
    vision: int
    unknown: tuple[str, ...]

    def stage(self, span: Span, *, first: bool, last: bool) -> int:
        """Bytes on a GPU of a stage with these layers, without a draft model."""
        return sum(self.layers[span.first : span.end]) + self.every + self.first * first + self.last * last

    def absorbed_copies(self, span: Span) -> int:
        """Bytes of the copies that MLA makes of kv_b_proj after the load."""
        return sum(self.absorbed[span.first : span.end])


def weigh(
    rows: Iterable[TensorRow],
    model: ModelConfig,
    layout: Layout,
    version: str,
    *,
    quantization: str | None = None,
) -> Weights:
    """Every row's share of one GPU, summed by place."""
    layers, absorbed = [0] * model.layers, [0] * model.layers
    sums = dict.fromkeys(Where, 0)
    vision, unknown, head, embedding = 0, [], 0, 0
    for row in rows:
        role = role_of(row.name, model.layers)
        share = share_of(row, role, model, layout, quantization)
        if not role.known and len(row.shape) > 1:
            unknown.append(row.name)
        vision += share if role.vision else 0
        head += share if role.where is Where.HEAD else 0
        embedding += share if role.where is Where.FIRST else 0
        if role.where is Where.LAYER and role.layer is not None:
            layers[role.layer] += share
            absorbed[role.layer] += _absorbed(row, model, layout)
        else:
            sums[role.where] += share
    every, last = sums[Where.EVERY], sums[Where.LAST]
    head = _head(model, layout, head, embedding)
    if layout.pipeline > 1 and head_on_every_stage(model, version):
        every += head
    else:
        last += head
    return Weights(
        layers=tuple(layers),
        first=embedding,
        # With speculative decoding the last stage needs the embedding too.
        last=last + (embedding if layout.speculative and layout.pipeline > 1 else 0),
        every=every,
        draft=sums[Where.DRAFT],
        absorbed=tuple(absorbed),
        vision=vision,
        unknown=tuple(unknown),
    )


def _head(model: ModelConfig, layout: Layout, head: int, embedding: int) -> int:
    """A tied head is the embedding itself on one stage, and a copy of it on the last of several."""
    tied = model.tied if model.tied is not None else head == 0
    if not tied:
        return head
    return 0 if layout.pipeline == 1 else head or embedding


def _absorbed(row: TensorRow, model: ModelConfig, layout: Layout) -> int:
    if not model.latent or not row.name.endswith("kv_b_proj.weight"):
        return 0
    return row.elements * model.element_bytes // layout.attention_tensor


def share_of(
    row: TensorRow, role: Role, model: ModelConfig, layout: Layout, quantization: str | None = None
) -> int:
    """Bytes that one GPU holds of a row."""
    if role.where is Where.NOWHERE:
        return 0
    each, count = _loaded_bytes(row, role, model, quantization), row.count
    if role.group is Group.EXPERT:
        if ONE_OF_MANY in row.name:
            count = -(-count // layout.expert)
        else:
            each = -(-each // layout.expert)  # all experts of the layer in one tensor
    parts = _parts(role, layout)
    return int(-(-each * count * _fraction(row, role, model, parts) // 1))


def _loaded_bytes(row: TensorRow, role: Role, model: ModelConfig, quantization: str | None) -> int:
    """Bytes of one tensor once loaded, which a conversion may make fewer than on disk."""
    weight = role.leaf == "weight" and len(row.shape) > 1 and role.axis is not Axis.NONE
    if not weight or row.dtype not in FLOATS:
        return row.tensor_bytes
    vocabulary = role.group in (Group.EMBEDDING, Group.HEAD)
    if quantization in ONLINE_BYTE_FORMATS and model.quantization is None and not vocabulary:
        return row.elements
    return row.elements * model.element_bytes if row.dtype in WIDE_FLOATS else row.tensor_bytes


def _parts(role: Role, layout: Layout) -> int:
    """Ranks that divide a tensor of this role."""
    match role.group:
        case Group.ATTENTION:
            return layout.attention_tensor
        case Group.EMBEDDING:
            return layout.embedding_tensor
        case Group.HEAD:
            return layout.attention_tensor if layout.attention_lm_head else layout.tensor
        case Group.DENSE:
            return layout.dense_tensor
        case Group.SHARED:
            return 1 if layout.shared_experts_whole else layout.tensor
        case Group.EXPERT:
            return layout.expert_tensor
        case Group.NONE:
            return 1


def _fraction(row: TensorRow, role: Role, model: ModelConfig, parts: int) -> Fraction:
    """The part of a tensor that one of the ranks holds."""
    if role.axis is Axis.NONE or not row.shape:
        return Fraction(1)
    size = _axis_size(row, role, model)
    if role.group in (Group.EMBEDDING, Group.HEAD):
        padded = -(-size // VOCABULARY_PADDING) * VOCABULARY_PADDING
        return Fraction(-(-padded // parts), size)
    if parts == 1 or size <= 1:
        return Fraction(1)
    keys = Fraction(max(1, model.kv_heads // parts), model.kv_heads)
    if role.axis is Axis.KEY_VALUE and not model.latent:
        return keys
    if role.axis is Axis.FUSED_HEADS and not model.latent:
        return (Fraction(model.heads, parts) + 2 * model.kv_heads * keys) / (model.heads + 2 * model.kv_heads)
    return Fraction(-(-size // parts), size)


def _axis_size(row: TensorRow, role: Role, model: ModelConfig) -> int:
    """Length of the divided axis; 1 where the tensor does not have it and so stays whole."""
    shape, leaf = row.shape, role.leaf
    if role.group is Group.EXPERT and len(shape) > 1 and ONE_OF_MANY not in row.name:
        shape = shape[1:]  # all experts of the layer in one tensor
    inward = role.axis is Axis.IN
    if leaf in IN_OUT_LEAVES:
        ordered = model.quantization is not None and model.quantization.activation_order
        if inward and leaf != "qweight" and ordered:
            return 1  # any row may be of any group, so every rank keeps them all
        return shape[-2] if inward and len(shape) > 1 else shape[-1]
    if leaf in ("g_idx", "weight_g_idx"):
        return shape[0] if inward else 1
    if inward:
        return shape[1] if len(shape) > 1 else 1
    return shape[0]
