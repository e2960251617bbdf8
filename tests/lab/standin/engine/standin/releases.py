"""What differs between releases, as far as a deployment tool can see it."""

from __future__ import annotations

import re


def parse(version: str) -> tuple[int, ...]:
    """`0.5.3.post1` as something that compares: (0, 5, 3, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


class Release:
    """Answers questions about one release."""

    def __init__(self, version: str) -> None:
        self.version = version

    def since(self, version: str) -> bool:
        return parse(self.version) >= parse(version)

    @property
    def ends_by_sigkill(self) -> bool:
        """A graceful stop ends in SIGKILL of the whole tree, itself included."""
        return not self.since("0.5.19")

    @property
    def watches_children(self) -> bool:
        """A vanished child is noticed within a second; before, the server lives on as a zombie."""
        return self.since("0.5.10")

    @property
    def health_generates(self) -> bool:
        """/health makes a token; before, it was a constant 200."""
        return self.since("0.4.10.post2")

    @property
    def health_knows_starting(self) -> bool:
        """/health and /health_generate are 503 until the warm-up is done."""
        return self.since("0.5.1")

    @property
    def health_can_be_shallow(self) -> bool:
        """SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0: /health makes no token."""
        return self.since("0.5.5.post3")

    @property
    def rank_tokens(self) -> list[str]:
        """The order of the rank's parts in a log prefix and a process title."""
        if not self.since("0.4.6.post2"):
            return ["DP", "TP"]
        if not self.since("0.4.10"):
            return ["DP", "TP", "PP"]
        if not self.since("0.5.5.post1"):
            return ["DP", "TP", "EP", "PP"]
        return ["DP", "PP", "TP", "EP"]

    @property
    def batch_mark(self) -> str:
        """What follows `Prefill batch` and `Decode batch`."""
        if self.since("0.5.4.post1"):
            return ","
        return " [1]," if self.since("0.5.4") else "."

    def split_layers(self, layers: int, stages: int, partition: str) -> list[int]:
        """Layers of each pipeline stage; `partition` is SGLANG_PP_LAYER_PARTITION."""
        if partition and (stages > 1 or not self.since("0.5.19")):
            counts = [int(count) for count in partition.split(",")]
            if len(counts) != stages:
                raise ValueError(f"len(partitions)={len(counts)} does not match pp_size={stages}.")
            if sum(counts) != layers:
                raise ValueError(f"sum(partitions)={sum(counts)} does not match num_hidden_layers={layers}.")
            return counts
        each, rest = divmod(layers, stages)
        if self.since("0.5.6"):
            return [each + (stage >= stages - rest) for stage in range(stages)]
        return [each + (rest if stage == stages - 1 else 0) for stage in range(stages)]

    def serves(self, path: str) -> bool:
        """Whether this release has the endpoint at all."""
        spans = {
            "/ready": ("0.5.20", ""),
            "/model_info": ("0.5.6", ""),
            "/server_info": ("0.5.6", ""),
            "/get_load": ("0.4.7", "0.5.21"),
            "/v1/loads": ("0.5.8", ""),
        }
        first, gone = spans.get(path, ("0", ""))
        return self.since(first) and not (gone and self.since(gone))
