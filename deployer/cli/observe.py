"""deploy observe"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deployer.cli.options import (
    Reach,
    choose_hosts,
    duration,
    json_option,
    load,
    place_options,
    reach_options,
    reached,
)

if TYPE_CHECKING:
    from deployer.operations.background_load import BackgroundLoad
    from deployer.schema.observe import Observation
    from deployer.schema.service import Service

STORY_SETTLE = 30.0
LOAD_SETTLE = 10.0


@click.command("observe")
@click.option(
    "--seconds",
    "--for",
    default="60",
    show_default=True,
    callback=duration,
    metavar="T",
    help="How long to watch and judge: 60, 90s, 5m. The time of --settle comes before it.",
)
@click.option("--hz", default=4.0, show_default=True, help="GPU samples a second, 2 to 5 are useful.")
@click.option(
    "--settle",
    callback=duration,
    metavar="T",
    help="Seconds before that, in which the load settles [default: 0, 10 with --load, 30 for the story].",
)
@click.option(
    "--load",
    "load_words",
    metavar="C|story",
    help="Put C requests in flight through this connection, or the story's load; without it, live traffic is watched.",
)
@click.option("--start", is_flag=True, help="Also say where the time of the running engine's start went.")
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An earlier recording to compare with.",
)
@click.option(
    "--replay",
    "replayed",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Judge a recording again; contacts no host.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a report."
)
@place_options
@json_option
@reach_options
def command(
    seconds: float,
    hz: float,
    settle: float | None,
    load_words: str | None,
    start: bool,
    baseline: Path | None,
    replayed: Path | None,
    html: Path | None,
    patterns: tuple[str, ...],
    service: str | None,
    folder: str | None,
    as_json: bool,
    **reach: bool,
) -> int:
    """See inside a running multi-GPU service: which stage does what, what that means, and what it cannot mean."""
    from deployer.cli.report_file import check_report

    check_report(html)
    if replayed is not None:
        from deployer.operations.observe import replay

        found = replay(replayed, baseline)
    else:
        found = _watched(
            patterns, service, folder, Reach(**reach), (seconds, hz, settle), load_words, start, baseline
        )
    if html is not None:
        from deployer.report.observation import page

        html.write_text(page(found), encoding="utf-8")
        click.echo(f"report: {html}", err=True)
    _answer(found, as_json)
    return 0


def _watched(
    patterns: tuple[str, ...],
    service_name: str | None,
    folder: str | None,
    reach: Reach,
    timing: tuple[float, float, float | None],
    load_words: str | None,
    start: bool,
    baseline: Path | None,
) -> "Observation":
    inventory = load(folder)
    (host, *more) = choose_hosts(inventory, patterns, many=False)
    if more:
        raise click.UsageError("observe watches one host; name it with --host")
    service = inventory.service(host, service_name)
    seconds, hz, settle = timing
    if seconds <= 0 or not 0.2 <= hz <= 10:
        raise click.UsageError("--seconds must be above 0 and --hz between 0.2 and 10")
    background = _load(load_words, service)

    from deployer.cli.observe_view import LiveView
    from deployer.operations.observe import Watching, observe

    if settle is None:
        settle = 0.0 if background is None else STORY_SETTLE if background.story else LOAD_SETTLE
    watching = Watching(seconds, 1 / hz, settle, gpus=host.gpus.count > 0, start=start)
    with reached(host, reach.connect_options()) as channel, LiveView(host.name, seconds + settle) as view:
        return observe(channel, service, watching, load=background, baseline=baseline, look=view)


def _load(words: str | None, service: "Service") -> "BackgroundLoad | None":
    if words is None:
        return None
    from deployer.operations.background_load import BackgroundLoad

    if words == "story":
        return BackgroundLoad.of_story(service)
    if not words.isdigit() or not 1 <= int(words) <= 1024:
        raise click.UsageError("--load takes a number of requests from 1 to 1024, or the word story")
    return BackgroundLoad(service, int(words))


def _answer(found: "Observation", as_json: bool) -> None:
    from deployer.cli.observe_view import print_observation
    from deployer.cli.view import print_json

    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_observation(found)
