"""Replies made up on a clock of our own, for tests without a server."""

from array import array
from collections.abc import Sequence

from deployer.bench.reply import Reply, Tally


def reply(
    sent: float, arrivals: Sequence[float], *, tokens: int | None = None, ended: float | None = None
) -> Reply:
    """A whole reply: one token an arrival unless said otherwise."""
    made = Reply(Tally())
    made.begin(sent)
    made.arrivals = array("d", arrivals)
    made.output_tokens = len(arrivals) if tokens is None else tokens
    made.finish = "stop"
    made.ended = arrivals[-1] if ended is None else ended
    return made


def closed_loop(lengths: Sequence[int], concurrency: int, *, ttft: float, itl: float) -> list[Reply]:
    """What a server of constant pace gives to streams that ask again at once."""
    free = [0.0] * concurrency
    made = []
    for length in lengths:
        stream = min(range(concurrency), key=free.__getitem__)
        sent = free[stream]
        arrivals = [sent + ttft + number * itl for number in range(length)]
        made.append(reply(sent, arrivals))
        free[stream] = arrivals[-1]
    return made
