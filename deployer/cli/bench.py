"""deploy bench"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployer.cli.options import (
    Reach,
    choose_hosts,
    json_option,
    load,
    observe_option,
    place_options,
    reach_options,
    reached,
    report_option,
    stacked,
)
from deployer.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from deployer.bench.session import BenchPlan
    from deployer.schema.bench import Run, Wanted


def numbers(kind: type[int] | type[float]) -> Callable[..., tuple[int | float, ...]]:
    """Reads positive numbers, comma separated, without repeats."""

    def read(
        context: click.Context, parameter: click.Parameter, value: str | None
    ) -> tuple[int | float, ...]:
        if not value:
            return ()
        try:
            found = tuple(dict.fromkeys(kind(word) for word in value.split(",") if word.strip()))
        except ValueError:
            found = ()
        if not found or min(found) <= 0:
            raise click.BadParameter(f"{value!r} is no list of numbers such as 1,8,32", context, parameter)
        return found

    return read


load_options = stacked(
    click.option(
        "--preset",
        type=click.Choice(["fixed", "story", "prompts", "prefix"]),
        help="fixed lengths [default]; story: three prompts, C = 1 to 64, at most 4,096 tokens; prompts: of a file; "
        "prefix: a shared beginning.",
    ),
    click.option(
        "--concurrency",
        callback=numbers(int),
        metavar="C,C",
        help="Streams at once [default: 1,8,32,64].",
    ),
    click.option(
        "--rate",
        "rates",
        callback=numbers(float),
        metavar="R,R",
        help="Open loop: requests a second.",
    ),
    click.option(
        "--requests",
        type=click.IntRange(1),
        metavar="N",
        help="Requests of a level [default: four a stream].",
    ),
    click.option(
        "--seconds", type=click.FloatRange(1), metavar="S", help="Or: seconds of steady load of a level."
    ),
    click.option(
        "--input-tokens", type=click.IntRange(1), metavar="N", help="Length of prompts [default: 256]."
    ),
    click.option(
        "--output-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Most tokens of an answer [default: 256].",
    ),
    click.option(
        "--prompts", "prompt_file", type=Path, metavar="FILE", help="Prompts: a line each, or JSON lines."
    ),
    click.option("--keep-prompts", is_flag=True, help="Send prompts as they are; caches may then help."),
    click.option(
        "--shared-prefix",
        "shared_prefix_tokens",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Tokens that all prompts share.",
    ),
    click.option(
        "--ignore-eos/--natural-end", default=None, help="Whether answers go on to their full length."
    ),
    click.option(
        "--temperature", type=click.FloatRange(0), default=0.0, metavar="T", help="Sampling temperature."
    ),
    click.option("--api", type=click.Choice(["chat", "completions"]), default="chat", help="Which endpoint."),
    click.option("--no-stream", is_flag=True, help="Whole answers: throughput only, at little cost."),
    click.option("--no-warm-up", is_flag=True, help="Measure from the first request on."),
    click.option("--no-flush", is_flag=True, help="Leave the engine's prefix cache as it is."),
    click.option(
        "--stall-seconds",
        type=click.FloatRange(1),
        default=300.0,
        metavar="S",
        help="Silence after which a request fails.",
    ),
    click.option(
        "--margin",
        type=click.FloatRange(0, 0.9),
        default=0.10,
        metavar="SHARE",
        help="How much slower is decisively worse [default: 0.1].",
    ),
    click.option("--seed", metavar="TEXT", help="Same seed, same prompts [default: new ones in every run]."),
)


@click.command("bench")
@click.option("--url", metavar="URL", help="Any OpenAI-compatible server, without an inventory.")
@click.option("--model", metavar="NAME", help="Model to ask for [default: the one that is served].")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key for --url.")
@place_options
@load_options
@click.option("--baseline", metavar="RUN", help="Stop levels that are decisively worse than in this run.")
@click.option(
    "--samples", callback=numbers(int), metavar="N,N", help="Sizes of the campaign for the table of hours."
)
@click.option("--label", default="", metavar="TEXT", help="A name for this run.")
@click.option("--csv", "csv_file", type=Path, metavar="FILE", help="Also as CSV, a line a level.")
@click.option(
    "--vllm-json", type=Path, metavar="DIR", help="Also as `vllm bench serve` writes it, a file a level."
)
@observe_option
@report_option
@json_option
@reach_options
def command(
    url: str | None,
    model: str | None,
    api_key_env: str | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    baseline: str | None,
    samples: tuple[int, ...],
    label: str,
    csv_file: Path | None,
    vllm_json: Path | None,
    observed: bool,
    report: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure a service, or any OpenAI-compatible server, at several loads: throughput and latencies.

    Every level says whether to believe it. Ctrl-C ends it early and keeps what was measured.
    """
    reach = Reach(**{name: options.pop(name) for name in Reach.__dataclass_fields__})

    from deployer.bench.campaign import STORY_SAMPLES
    from deployer.bench.presets import plan_of
    from deployer.bench.recordings import find
    from deployer.cli.bench_view import BenchProgress
    from deployer.cli.report_file import check_report, write_report

    check_report(report)
    if url is not None and observed:
        raise UsageError("--observe watches a host of the inventory, not a URL")
    before = find([baseline])[-1] if baseline else None
    plan = plan_of(wanted_of(options), model=model, baseline=before)
    wanted: dict[str, Any] = {"label": label, "samples": samples or STORY_SAMPLES}
    with BenchProgress(len(plan.goals)) as progress:
        if url is not None:
            run = _bench_url(url, model, api_key_env, plan, progress, wanted)
        else:
            wanted["observed"] = observed
            run = _bench_host(folder, patterns, service, plan, progress, wanted, reach)
    if report is not None:
        from deployer.operations.report import of_run

        write_report(of_run(run), report)
    return answer(run, as_json=as_json, csv_file=csv_file, vllm_json=vllm_json)


def _bench_url(
    url: str,
    model: str | None,
    api_key_env: str | None,
    plan: "BenchPlan",
    progress: Any,
    wanted: dict[str, Any],
) -> "Run":
    from deployer.bench.endpoint import Endpoint
    from deployer.operations.bench import aimed, bench
    from deployer.schema.bench import Subject

    key = os.environ.get(api_key_env, "") if api_key_env else None
    if api_key_env and not key:
        raise UsageError(f"the variable {api_key_env} is empty", hint="it must hold the server's key")
    endpoint = Endpoint.parse(url, key)
    subject = Subject(url=endpoint.url, model=model or "")
    return bench(aimed(plan, endpoint, subject), subject, progress, **wanted)


def _bench_host(
    folder: str | None,
    patterns: tuple[str, ...],
    service: str | None,
    plan: "BenchPlan",
    progress: Any,
    wanted: dict[str, Any],
    reach: Reach,
) -> "Run":
    from deployer.operations.bench import bench_service

    inventory = load(folder)
    hosts = choose_hosts(inventory, patterns, many=False)
    if len(hosts) > 1:
        raise UsageError("one host is measured at a time", hint=f"--host {hosts[0].name}")
    (host,) = hosts
    serves = inventory.service(host, service)
    with reached(host, reach.connect_options()) as channel:
        return bench_service(
            channel,
            serves,
            plan,
            progress,
            desired=lambda profile: inventory.desired(host, serves.name, profile),
            **wanted,
        )


def wanted_of(options: Mapping[str, Any]) -> "Wanted":
    """What the options of the load say."""
    from deployer.schema.bench import Wanted

    said = {name: options[name] for name in Wanted.model_fields if name in options}
    return Wanted.model_validate(
        said
        | {
            "prompt_file": None if options["prompt_file"] is None else str(options["prompt_file"]),
            "stream": not options["no_stream"],
            "fresh": not options["keep_prompts"],
            "warm_up": not options["no_warm_up"],
            "flush": not options["no_flush"],
            "seed": options["seed"] or "",
        }
    )


def answer(run: "Run", *, as_json: bool, csv_file: Path | None, vllm_json: Path | None) -> int:
    """Show the run, write the other formats, and choose the exit code."""
    import json

    from deployer.bench.exports import as_csv, as_vllm
    from deployer.bench.recordings import runs_folder, write_whole
    from deployer.cli.bench_view import print_run, print_run_json

    if csv_file is not None:
        write_whole(csv_file, as_csv(run))
    for name, document in as_vllm(run) if vllm_json is not None else ():
        write_whole(Path(str(vllm_json)) / name, json.dumps(document))
    path = str(runs_folder() / f"{run.run}.json")
    (print_run_json if as_json else print_run)(run, path)
    if run.interrupted:
        return int(ExitCode.INTERRUPTED)
    if run.levels and not any(level.completed for level in run.levels):
        return int(ExitCode.FAILED)
    return int(ExitCode.OK)
