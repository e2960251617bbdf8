"""Which layers a pipeline stage gets: the given partition, or the release's own rule."""

from typing import NamedTuple

from deployer.errors import UsageError
from deployer.schema.versions import Release

# Up to 0.5.5.post3 the last stage takes the whole remainder; from here on the last stages take one layer each.
SPREADS_REMAINDER_SINCE = Release("0.5.6")
# From here on SGLANG_PP_LAYER_PARTITION is not read when there is one stage.
IGNORES_PARTITION_OF_ONE_SINCE = Release("0.5.19")


class Span(NamedTuple):
    """The layers of one stage."""

    first: int
    layers: int

    @property
    def end(self) -> int:
        """The layer after the last one."""
        return self.first + self.layers


def split_layers(
    layers: int, stages: int, version: str, partition: tuple[int, ...] | None = None
) -> tuple[Span, ...]:
    """The span of every stage; a partition that SGLang would refuse is refused here."""
    if stages == 1 and Release(version) >= IGNORES_PARTITION_OF_ONE_SINCE:
        partition = None
    if partition is not None:
        if len(partition) != stages or sum(partition) != layers:
            text = ",".join(map(str, partition))
            raise UsageError(
                f"the layer partition {text} has {len(partition)} stages and {sum(partition)} layers, "
                f"but the model has {layers} layers for {stages} stages"
            )
        return spans(partition)
    return spans(own_split(layers, stages, version))


def own_split(layers: int, stages: int, version: str) -> tuple[int, ...]:
    """Layers of each stage by the release's own rule."""
    if stages > layers:
        raise UsageError(f"{stages} pipeline stages are more than the model's {layers} layers")
    base, rest = divmod(layers, stages)
    if Release(version) >= SPREADS_REMAINDER_SINCE:
        return tuple(base + (stage >= stages - rest) for stage in range(stages))
    return (*[base] * (stages - 1), base + rest)


def spans(counts: tuple[int, ...]) -> tuple[Span, ...]:
    """Counts as spans, one after the other."""
    found, first = [], 0
    for count in counts:
        found.append(Span(first, count))
        first += count
    return tuple(found)
