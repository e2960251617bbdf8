"""Output tokens a second of the whole service: from the scheduler lines, else from the engine's own figures."""

from itertools import pairwise
from statistics import fmean

from deployer.observe.evidence import Evidence
from deployer.observe.journal import Batch


def throughput_samples(evidence: Evidence) -> list[tuple[float, float]]:
    """Moments and rates; lines of one stage stand for all, as every stage sees every token."""
    lines = [
        batch
        for batch in evidence.window.batches
        if batch.kind == "Decode" and batch.tokens_per_s is not None and batch.rank.get("PP", 0) == 0
    ]
    if lines:
        replicas = {_replica(batch) for batch in lines}
        # Each replica writes its own lines: what they make together is the mean of a line times their number.
        return [(batch.t, (batch.tokens_per_s or 0.0) * len(replicas)) for batch in lines]
    counted = [one for one in evidence.window.engine if "generated_tokens" in one]
    if len(counted) > 1:
        return [
            (
                after["t"],
                (after["generated_tokens"] - before["generated_tokens"]) / (after["t"] - before["t"]),
            )
            for before, after in pairwise(counted)
            if after["t"] > before["t"] and after["generated_tokens"] >= before["generated_tokens"]
        ]
    return [(one["t"], float(one["tokens_per_s"])) for one in evidence.window.engine if "tokens_per_s" in one]


def _replica(batch: Batch) -> tuple[int, int]:
    return batch.rank.get("DP", 0), batch.rank.get("TP", 0)


def throughput_blocks(evidence: Evidence) -> list[float]:
    """Block means."""
    groups: dict[int, list[float]] = {}
    for t, value in throughput_samples(evidence):
        groups.setdefault(int((t - evidence.window.began) / evidence.block_seconds), []).append(value)
    return [fmean(values) for _, values in sorted(groups.items())]
