"""What to ask and at which levels, from a few words of the user."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from deployer.bench.endpoint import Endpoint
from deployer.bench.load import Goal
from deployer.bench.prompts import digest, load_prompts
from deployer.bench.session import BenchPlan
from deployer.bench.stopping import StopRule
from deployer.errors import UsageError
from deployer.schema.bench import Run, Wanted, Workload

Preset = Literal["fixed", "story", "prompts", "prefix"]
LEVELS: Final = (1, 8, 32, 64)
STORY_LEVELS: Final = (1, 4, 8, 16, 32, 48, 64)
STORY_TOKENS: Final = 4096
TOKENS: Final = 256
PREFIX_TOKENS: Final = 1024
OPEN_LINES: Final = 8
NOWHERE: Final = Endpoint("", 0, "")


def plan_of(wanted: Wanted, *, model: str | None = None, baseline: Run | None = None) -> BenchPlan:
    """The plan, but for where it goes."""
    prompts = load_prompts(Path(wanted.prompt_file)) if wanted.prompt_file else ()
    preset = preset_of(wanted)
    if (preset == "prompts") != bool(prompts):
        raise UsageError("the preset `prompts` and --prompts FILE belong together")
    return BenchPlan(
        endpoint=NOWHERE,
        workload=_workload(wanted, preset, prompts),
        goals=goals_of(wanted),
        seed=wanted.seed or secrets.token_hex(8),
        model=model,
        prompts=prompts,
        warm_up=wanted.warm_up,
        flush=wanted.flush,
        baseline=baseline,
        rule=StopRule.for_level(wanted.seconds, wanted.margin),
    )


def preset_of(wanted: Wanted) -> Preset:
    """The preset that was said, or that follows from what was said."""
    if wanted.preset is not None:
        return wanted.preset
    return "prompts" if wanted.prompt_file else "prefix" if wanted.shared_prefix_tokens else "fixed"


def _workload(wanted: Wanted, preset: Preset, prompts: Sequence[str]) -> Workload:
    """What every request asks for."""
    texts = preset in ("story", "prompts")
    prefix = wanted.shared_prefix_tokens or (PREFIX_TOKENS if preset == "prefix" else 0)
    return Workload(
        preset=preset,
        api=wanted.api,
        stream=wanted.stream,
        input_tokens=None if texts else wanted.input_tokens or TOKENS + prefix,
        output_tokens=wanted.output_tokens or (STORY_TOKENS if texts else TOKENS),
        ignore_eos=not texts if wanted.ignore_eos is None else wanted.ignore_eos,
        temperature=wanted.temperature,
        shared_prefix_tokens=prefix,
        fresh=wanted.fresh,
        prompts_digest=digest(prompts) if prompts else "",
    )


def goals_of(wanted: Wanted) -> tuple[Goal, ...]:
    """The levels in order."""
    if wanted.requests is not None and wanted.seconds is not None:
        raise UsageError("a level ends by --requests or by --seconds, not by both")
    if wanted.rates:
        if wanted.concurrency:
            raise UsageError("--rate is an open loop: it has no --concurrency")
        seconds = None if wanted.requests else wanted.seconds or 60.0
        return tuple(
            Goal(OPEN_LINES, wanted.requests, seconds, rate, wanted.stall_seconds) for rate in wanted.rates
        )
    levels = wanted.concurrency or (STORY_LEVELS if preset_of(wanted) == "story" else LEVELS)
    return tuple(
        Goal(level, _requests(wanted, level), wanted.seconds, None, wanted.stall_seconds) for level in levels
    )


def _requests(wanted: Wanted, concurrency: int) -> int | None:
    """Enough for all streams to be busy for a while; the story asked its three prompts one by one."""
    if wanted.requests is not None or wanted.seconds is not None:
        return wanted.requests
    if preset_of(wanted) == "story":
        return 3 if concurrency == 1 else 2 * concurrency
    return max(4 * concurrency, 8)
