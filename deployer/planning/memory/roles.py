"""What a tensor is, by its name: where in the pipeline it lives, and along which axis its ranks divide it."""

import re
from dataclasses import dataclass
from enum import StrEnum


def words(text: str) -> frozenset[str]:
    """Names of modules, written as one text."""
    return frozenset(text.split())


LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
VISION = words(
    "vision_tower visual vision_model vision_encoder vit vision audio_tower audio_model audio mm_projector "
    "multi_modal_projector image_newline view_seperator embed_vision embed_audio projector aligner "
    "vision_embed_tokens patch_embed image_projection"
)
EMBEDDINGS = words("embed_tokens wte word_embeddings tok_embeddings embed_in")
HEADS = words("lm_head embed_out")
# Leaves of weights stored as (in, out), as GPTQ and AWQ do; everything else is (out, in).
IN_OUT_LEAVES = words("qweight qzeros scales")
# What only the file needs: the unpacked shape of a packed weight.
DISK_ONLY_LEAVES = words("weight_shape")

ATTENTION_COLUMNS = words(
    "q_proj q_b_proj kv_b_proj query wq in_proj_qkvz in_proj_ba in_proj_qkv in_proj_z in_proj_b in_proj_a "
    "in_proj conv1d A_log dt_bias dt_proj x_proj sinks g_proj gate_attn b_proj f_b_proj g_b_proj q_conv1d "
    "k_conv1d v_conv1d"
)
KEY_VALUES = words("k_proj v_proj key value wk wv")
FUSED_HEADS = words("qkv_proj query_key_value Wqkv c_attn qkv")
ATTENTION_ROWS = words("o_proj out_proj wo")
COLUMNS = words("gate_proj up_proj gate_up_proj w1 w3 fc1 c_fc dense_h_to_4h linear_fc1 w13")
ROWS = words("down_proj w2 fc2 c_proj dense_4h_to_h linear_fc2")
WHOLE = re.compile(
    r"norm|^ln_|^gate$|router|q_a_proj|kv_a_proj|indexer|eh_proj|e_score|rotary|inv_freq|compressor|"
    r"shared_expert_gate|^f_a_proj$|^g_a_proj$|^bias$|expert_bias|^k_scale$|^v_scale$|^scale$|_hc_|^hc_"
)
FUSED_LEAF = re.compile(r"^(?P<module>gate_up_proj|down_proj|w1|w2|w3|w13)(?P<leaf>_\w+)?$")


class Where(StrEnum):
    """The stages that hold a tensor."""

    FIRST = "first"
    LAST = "last"
    EVERY = "every"
    LAYER = "layer"
    HEAD = "head"
    DRAFT = "draft"
    NOWHERE = "nowhere"


class Group(StrEnum):
    """The ranks over which a tensor is divided."""

    NONE = "none"
    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "shared"
    EXPERT = "expert"
    EMBEDDING = "embedding"
    HEAD = "head"


class Axis(StrEnum):
    """The side of a weight that is divided; heads of keys and values may not divide evenly."""

    NONE = "none"
    OUT = "out"
    IN = "in"
    KEY_VALUE = "key-value"
    FUSED_HEADS = "fused-heads"


@dataclass(frozen=True)
class Role:
    """Place and division of a tensor; `known` is false when the name said nothing."""

    where: Where
    group: Group = Group.NONE
    axis: Axis = Axis.NONE
    layer: int | None = None
    leaf: str = "weight"
    known: bool = True
    vision: bool = False


def role_of(name: str, layers: int) -> Role:
    """The role of a tensor in a model of so many layers."""
    parts = name.split(".")
    leaf = parts[-1]
    if leaf in DISK_ONLY_LEAVES:
        return Role(Where.NOWHERE, leaf=leaf)
    if parts[0] == "mtp" or "mtp_layers" in parts or "nextn" in parts:
        return _in_layer(parts, Where.DRAFT, None)
    match = LAYER.search(name)
    before = parts[: parts.index("layers")] if "layers" in parts else parts
    if VISION & set(before if match else parts):
        return Role(Where.EVERY, leaf=leaf, vision=True)
    if match is not None:
        layer = int(match[1])
        if layer >= layers:
            return _in_layer(parts, Where.DRAFT, layer)
        return _in_layer(parts, Where.LAYER, layer)
    return _outside(parts)


def _outside(parts: list[str]) -> Role:
    """Embeddings, head and final norm."""
    leaf = parts[-1]
    if EMBEDDINGS & set(parts):
        return Role(Where.FIRST, Group.EMBEDDING, Axis.OUT, leaf=leaf)
    if HEADS & set(parts) or parts[0] == "output":
        return Role(Where.HEAD, Group.HEAD, Axis.OUT, leaf=leaf)
    if any("norm" in part or part == "ln_f" for part in parts):
        return Role(Where.LAST, leaf=leaf)
    return Role(Where.EVERY, leaf=leaf, known=False)


def _in_layer(parts: list[str], where: Where, layer: int | None) -> Role:
    """A tensor of a decoder layer, by its module's name; draft layers have the same modules."""
    module, leaf = _module(parts)
    if where is Where.DRAFT and (
        (EMBEDDINGS | HEADS) & set(parts) or parts[-3:-1] == ["shared_head", "head"]
    ):
        # A draft shares these with the model it drafts for.
        return Role(Where.NOWHERE, layer=layer, leaf=leaf)
    whole = WHOLE.search(module) is not None or "indexer" in parts
    group, axis, known = (Group.NONE, Axis.NONE, True) if whole else _division(parts, module)
    return Role(where, group, axis, layer, leaf, known)


def _module(parts: list[str]) -> tuple[str, str]:
    """The module that owns a parameter, and the parameter: fused experts write both in one word."""
    fused = FUSED_LEAF.match(parts[-1])
    if fused:
        return fused["module"], (fused["leaf"] or "_weight").lstrip("_")
    if len(parts) > 1 and (parts[-1] in ATTENTION_COLUMNS or WHOLE.search(parts[-1])) and parts[-1] != "bias":
        return parts[-1], "weight"
    return (parts[-2] if len(parts) > 1 else ""), parts[-1]


def _division(parts: list[str], module: str) -> tuple[Group, Axis, bool]:
    attention = any("attn" in part or "attention" in part or part == "mixer" for part in parts)
    if module in KEY_VALUES:
        return Group.ATTENTION, Axis.KEY_VALUE, True
    if module in FUSED_HEADS:
        return Group.ATTENTION, Axis.FUSED_HEADS, True
    if module in ATTENTION_COLUMNS:
        return Group.ATTENTION, Axis.OUT, True
    if module in ATTENTION_ROWS or (attention and module in {"dense", "c_proj"}):
        return Group.ATTENTION, Axis.IN, True
    group = _feed_forward(parts)
    if module in COLUMNS:
        return group, Axis.OUT, True
    if module in ROWS or module == "dense":
        return group, Axis.IN, True
    return Group.NONE, Axis.NONE, False


def _feed_forward(parts: list[str]) -> Group:
    if "experts" in parts:
        return Group.EXPERT
    if any(part.startswith("shared_expert") or part == "shared_mlp" for part in parts):
        return Group.SHARED
    return Group.DENSE
