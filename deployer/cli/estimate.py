"""deploy estimate"""

import re

import click

from deployer.cli.options import json_option

FEW = 5


def counts(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Numbers of samples: `100K,900K`, or `100K..900K` for some steps between."""
    low, dots, high = value.partition("..")
    found = [_count(word) for word in ([low, high] if dots else value.split(","))]
    if None in found or not found or min(each or 0 for each in found) < 1:
        raise click.BadParameter(
            f"{value!r} is no count such as 100K, 100K,1M or 100K..900K", context, parameter
        )
    known = [each or 0 for each in found]
    if dots:
        first, last = min(known), max(known)
        known = [first + (last - first) * step // (FEW - 1) for step in range(FEW)]
    return tuple(dict.fromkeys(known))


def _count(word: str) -> int | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", word.strip())
    return (
        None if not found else round(float(found[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[found[2].lower()])
    )


@click.command("estimate")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--samples", callback=counts, default="100K..900K", metavar="N..N",
              help="Sizes of the campaign [default: 100K..900K].")  # fmt: skip
@click.option("--host", metavar="HOST", help="Only runs of this host.")
@click.option("--service", metavar="NAME", help="Only runs of this service.")
@json_option
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    runs: tuple[str, ...],
    samples: tuple[int, ...],
    host: str | None,
    service: str | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Say how many hours a generation campaign takes, from recorded runs.

    RUN is a run, a file, a profile, a release or a label [default: the latest run].
    """
    from dataclasses import asdict

    from deployer.cli.view import print_json, print_table
    from deployer.operations.estimate import estimate

    found = estimate(runs, samples, host=host, service=service)
    rows = [
        [
            f"{each.samples:,}",
            str(each.concurrency),
            f"{each.hours:.1f}",
            f"{each.low:.1f} .. {each.high:.1f}",
        ]
        for each in found.hours
    ]
    if as_json:
        document = asdict(found)
        print_json(
            document
            | {"workload": found.workload.model_dump(), "hours": [each.model_dump() for each in found.hours]}
        )
        return 0
    profile = f", profile {found.profile}" if found.profile else ""
    click.echo(
        f"{found.model}{profile}: answers of {found.mean_length_tokens} tokens, {len(found.runs)} run(s)"
    )
    print_table(["samples", "C", "hours", "95 % interval"], rows)
    if found.workload.ignore_eos:
        click.echo(
            "the runs forced the length of answers (ignore_eos): bench with --natural-end for your own prompts"
        )
    return 0
