"""Which scheduler processes there are, on which GPU, and what they are called."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from . import gpus
from .releases import Release


@dataclass(frozen=True)
class Rank:
    """One scheduler; `number` counts them in the order of their start."""

    number: int
    dp: int
    pp: int
    tp: int
    ordinal: int
    label: str

    @property
    def gpu(self) -> int:
        """The GPU of the host behind the ordinal that CUDA gives it."""
        visible = gpus.visible_gpus()
        if self.ordinal >= len(visible):
            raise RuntimeError(
                "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at "
                "some other API call, so the stacktrace below might be incorrect."
            )
        return visible[self.ordinal]


def ranks(args: argparse.Namespace, release: Release) -> list[Rank]:
    """Every rank of this node."""
    tp_size, pp_size = args.tp_size, getattr(args, "pp_size", 1)
    attention_dp = getattr(args, "attn_dp_size", 1) > 1 or args.enable_dp_attention
    replicas = 1 if attention_dp else args.dp_size
    found: list[Rank] = []
    for dp in range(replicas):
        for pp in range(pp_size):
            for tp in range(tp_size):
                within = pp * tp_size + tp * args.gpu_id_step
                ordinal = args.base_gpu_id + dp * tp_size * pp_size + within
                numbers = {
                    "DP": (dp, replicas),
                    "PP": (pp, pp_size),
                    "TP": (tp, tp_size),
                    "EP": (tp * args.ep_size // tp_size, args.ep_size),
                }
                if attention_dp and args.dp_size > 1:
                    numbers["DP"] = (tp * args.dp_size // tp_size, args.dp_size)
                found.append(Rank(len(found), dp, pp, tp, ordinal, _label(numbers, release)))
    return found


def _label(numbers: dict[str, tuple[int, int]], release: Release) -> str:
    """` PP2 TP0`; a part is there only if there is more than one of it."""
    parts = [f"{name}{numbers[name][0]}" for name in release.rank_tokens if numbers[name][1] > 1]
    return "".join(f" {part}" for part in parts)
