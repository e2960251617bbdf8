"""Replies of a level -> its figures, and whether they may be believed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from deployer.bench.client_health import blurred, bottleneck
from deployer.bench.load import Load
from deployer.bench.probe import Server
from deployer.bench.reply import Reply
from deployer.bench.statistics import quantiles
from deployer.bench.window import Stretch, batches, occupied, occupied_until, tokens_in, whole_run
from deployer.schema.bench import (
    ClientHealth,
    CrossCheck,
    Judgement,
    Level,
    Quantiles,
    Sample,
    WarmUp,
    Window,
)

MOST_FAILED_SHARE = 0.05
CACHE_SLACK_TOKENS = 4
MOST_CACHED_SHARE = 0.01
SHORT_SECONDS = 60.0
_ERRORS = 5


@dataclass(frozen=True)
class Circumstances:
    """What stands beside the replies of a level."""

    server: Server
    client: ClientHealth
    started_at: str
    warm_up: WarmUp | None
    cross_check: CrossCheck | None
    cache_flushed: bool
    judgement: Judgement | None


def level_of(load: Load, around: Circumstances) -> Level:
    """The figures of a level that has ended, or was cut."""
    replies = [reply for reply in load.replies if reply.failure != "cut"]
    good = [reply for reply in replies if reply.ok]
    counted = _Counted(load, good, around)
    latencies = _latencies(good)
    invalid = _invalid(load, replies, good, counted, around, latencies["gap_ms"])
    seconds = whole_run(load.replies).seconds if load.replies else 0.0
    return Level(
        concurrency=load.goal.concurrency if load.goal.rate is None else load.most_in_flight,
        rate_requests_per_s=load.goal.rate,
        started_at=around.started_at,
        seconds=round(seconds, 3),
        requests=len(replies),
        completed=len(good),
        failed=len(replies) - len(good),
        failures=dict(Counter(reply.failure for reply in replies if reply.failure)),
        errors=_errors(replies),
        requests_per_s=round(len(good) / seconds, 4) if seconds and good else None,
        **counted.figures(),
        **latencies,
        finish_reasons=dict(Counter(reply.finish for reply in good if reply.finish)),
        client=around.client,
        warm_up=around.warm_up,
        cross_check=around.cross_check,
        cache_flushed=around.cache_flushed,
        judgement=around.judgement,
        valid=not invalid,
        invalid_reason="; ".join(invalid) or None,
        notes=_notes(load, counted, around, latencies),
        samples=tuple(_sample(reply, load.began) for reply in replies),
    )


class _Counted:
    """Tokens of a level, from the server's counts alone."""

    def __init__(self, load: Load, good: Sequence[Reply], around: Circumstances) -> None:
        self.good = good
        told = [reply for reply in good if reply.output_tokens is not None]
        self.known = bool(good) and len(told) == len(good)
        self.output = sum(reply.output_tokens or 0 for reply in told)
        self.chunks = sum(len(reply.arrivals) for reply in told)
        self.per_chunk = self.output / self.chunks if self.known and self.chunks else None
        self.ratio = self.per_chunk or around.server.tokens_per_chunk
        # What was cut has delivered tokens too; what failed has not.
        cut = [reply for reply in load.replies if reply.failure == "cut"]
        self.delivered = [*good, *cut]
        self.whole = whole_run(good) if good else None
        self.stretch: Stretch | None = None
        if cut and load.cut_at is not None and load.goal.rate is None:
            self.stretch = occupied_until(self.delivered, load.goal.concurrency, load.cut_at)
        elif good:
            self.stretch = occupied(good, load.goal.concurrency) if load.goal.rate is None else self.whole
        if not (self.known or (cut and around.server.counts_in_stream)):
            self.ratio = None
        self.tokens = self._tokens()
        known = self.tokens is not None and self.stretch is not None and self.stretch.seconds > 0
        self.rate = self.tokens / self.stretch.seconds if known else None  # type: ignore[operator,union-attr]

    def _tokens(self) -> float | None:
        if self.stretch is None or (not self.known and self.ratio is None):
            return None
        return tokens_in(self.delivered, self.stretch, self.ratio)

    def figures(self) -> dict[str, object]:
        """The fields of a level that speak of tokens."""
        tokens, stretch, rate = self.tokens, self.stretch, self.rate
        length, rates = (
            batches(self.delivered, stretch, self.ratio) if rate is not None and stretch else (None, ())
        )
        prompts = [reply.prompt_tokens for reply in self.good if reply.prompt_tokens is not None]
        cached = [reply.cached_tokens for reply in self.good if reply.cached_tokens is not None]
        whole = self.output / self.whole.seconds if self.known and self.whole and self.whole.seconds else None
        begin = min((reply.sent for reply in self.delivered), default=0.0)
        return {
            "output_tokens_per_s": None if rate is None else round(rate, 4),
            "whole_run_output_tokens_per_s": None if whole is None else round(whole, 4),
            "output_tokens_total": self.output if self.known else None,
            "prompt_tokens_total": sum(prompts) if prompts else None,
            "cached_tokens_total": sum(cached) if cached else None,
            "output_length_tokens": quantiles(float(r.output_tokens or 0) for r in self.good)
            if self.known
            else None,
            "prompt_length_tokens": quantiles(map(float, prompts)),
            "tokens_per_chunk": None if self.per_chunk is None else round(self.per_chunk, 4),
            "window": None
            if stretch is None
            else Window(
                kind=stretch.kind,
                begin_seconds=round(stretch.begin - begin, 4),
                seconds=round(stretch.seconds, 4),
                output_tokens=tokens,
            ),
            "batch_seconds": None if length is None else round(length, 4),
            "batch_output_tokens_per_s": tuple(round(each, 4) for each in rates),
        }


def _latencies(good: Sequence[Reply]) -> dict[str, Quantiles | None]:
    ttft = [reply.arrivals[0] - reply.sent for reply in good if reply.arrivals]
    gaps = [after - before for reply in good for before, after in pairwise(reply.arrivals)]
    tpot = [
        (reply.arrivals[-1] - reply.arrivals[0]) / (reply.output_tokens - 1)
        for reply in good
        if len(reply.arrivals) > 1 and reply.output_tokens is not None and reply.output_tokens > 1
    ]
    return {
        "ttft_ms": quantiles(ttft, 1e3),
        "tpot_ms": quantiles(tpot, 1e3),
        "gap_ms": quantiles(gaps, 1e3),
        "e2e_ms": quantiles((reply.ended - reply.sent for reply in good), 1e3),
    }


def _invalid(
    load: Load,
    replies: Sequence[Reply],
    good: Sequence[Reply],
    counted: _Counted,
    around: Circumstances,
    gap_ms: Quantiles | None,
) -> list[str]:
    """Every reason not to believe the level."""
    reasons = []
    if load.stopped == "interrupted":
        reasons.append(f"interrupted after {len(good)} answers")
    elif load.stopped == "overrun":
        reasons.append(f"overrun: {load.most_in_flight} requests were under way at once")
    if not good and load.stopped in ("", "hopeless"):
        return [*reasons, "no request succeeded"]
    failed = len(replies) - len(good)
    if replies and failed / len(replies) > MOST_FAILED_SHARE:
        reasons.append(f"{failed} of {len(replies)} requests failed")
    if good and not counted.known:
        reasons.append("output tokens are unknown: the server told no usage")
    elif counted.rate is None and not reasons:
        reasons.append("too little was seen to tell a speed")
    if load.goal.rate is None and load.most_in_flight < load.goal.concurrency:
        reasons.append(f"never {load.goal.concurrency} requests at once: at most {load.most_in_flight}")
    if problem := _cache_hits(good, around.server):
        reasons.append(problem)
    if problem := bottleneck(around.client, gap_ms):
        reasons.append(problem)
    check = around.cross_check
    if check is not None and not check.agrees and not failed and not load.stopped:
        reasons.append(
            f"the engine counted {check.engine_tokens:.0f} output tokens and the answers {check.client_tokens:.0f}: "
            "is there other traffic?"
        )
    return reasons


def _cache_hits(good: Sequence[Reply], server: Server) -> str | None:
    """Whether a prefix cache helped where none should."""
    if not server.workload.fresh or server.workload.preset == "prefix":
        return None
    allowed = server.template_cached_tokens + CACHE_SLACK_TOKENS
    hits = sum(max(0, (reply.cached_tokens or 0) - allowed) for reply in good)
    prompts = sum(reply.prompt_tokens or 0 for reply in good)
    if not prompts or hits / prompts <= MOST_CACHED_SHARE:
        return None
    return f"{hits / prompts:.0%} of the prompt tokens came out of the prefix cache"


def _notes(
    load: Load, counted: _Counted, around: Circumstances, latencies: dict[str, Quantiles | None]
) -> tuple[str, ...]:
    notes = []
    gaps = latencies["gap_ms"]
    if caution := blurred(around.client, gaps):
        notes.append(caution)
    stretch = counted.stretch
    if load.stopped not in ("", "interrupted", "overrun", "hopeless"):
        notes.append(f"stopped early: {load.stopped}")
    if stretch is not None and stretch.kind == "full-occupancy":
        if stretch.seconds < SHORT_SECONDS:
            notes.append(f"short: the throughput was counted over {stretch.seconds:.1f} s")
        if counted.good and stretch.seconds < 0.5 * fmean(r.ended - r.sent for r in counted.good):
            notes.append(
                "the answers differ in length and are too few: ask for twice as many requests as streams"
            )
    if around.client.reconnects:
        notes.append(
            f"the server closed connections: {around.client.reconnects} were opened again, which takes time too"
        )
    if around.warm_up is not None and not around.warm_up.stable:
        notes.append("the warm-up did not become stable")
    lengths = quantiles(
        float(reply.output_tokens) for reply in counted.good if reply.output_tokens is not None
    )
    wanted = around.server.workload
    if wanted.ignore_eos and lengths is not None and abs(lengths.mean / wanted.output_tokens - 1) > 0.02:
        notes.append(f"answers are {lengths.mean:.0f} tokens long, not {wanted.output_tokens}")
    return tuple(notes)


def _errors(replies: Sequence[Reply]) -> tuple[str, ...]:
    """What the failures said, each once."""
    said = (f"{reply.failure}: {reply.detail}" for reply in replies if reply.failure)
    return tuple(dict.fromkeys(said))[:_ERRORS]


def _sample(reply: Reply, began: float) -> Sample:
    first = reply.first
    return Sample(
        started_seconds=round(reply.sent - began, 4),
        ttft_ms=None if first is None else round((first - reply.sent) * 1e3, 3),
        e2e_ms=round((reply.ended - reply.sent) * 1e3, 3) if reply.ok else None,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens if reply.ok else None,
        cached_tokens=reply.cached_tokens,
        chunks=len(reply.arrivals),
        failure=reply.failure,
    )
