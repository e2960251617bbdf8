"""Another split of the layers that would even out what was measured."""

from statistics import fmean

from deployer.observe.evidence import HEAD_LAYERS, Evidence


def better_partition(evidence: Evidence, *, measured: bool = True) -> str:
    """Layers by stage that even out the cost of each, as measured or as the split says; empty if none is better."""
    if evidence.stages.kind != "pipeline" or evidence.weights() is None or evidence.stages.replicas > 1:
        return ""
    counts = [row.layers or 0 for row in evidence.rows]
    if min(counts) < 1 or len(counts) != evidence.stages.pipeline:
        return ""
    costs, extra = [1.0] * len(counts), [HEAD_LAYERS if row.head else 0.0 for row in evidence.rows]
    if measured and evidence.signal is not None:
        means = [fmean(row) for row in evidence.signal.blocks]
        scale = fmean(means) / fmean(evidence.weights() or [1.0])
        costs = [max(0.2, (m / scale - e) / count) for m, e, count in zip(means, extra, counts, strict=True)]
    found = [1] * len(counts)
    for _ in range(sum(counts) - len(counts)):
        place = min(range(len(counts)), key=lambda n: ((found[n] + 1) * costs[n] + extra[n], n))
        found[place] += 1
    before = max(c * n + e for c, n, e in zip(costs, counts, extra, strict=True))
    after = max(c * n + e for c, n, e in zip(costs, found, extra, strict=True))
    return ",".join(map(str, found)) if after < before - 0.05 else ""
