"""deploy profiles"""

import click

from deployer.cli.options import inventory_option, json_option, load


@click.command("profiles")
@inventory_option
@json_option
def command(folder: str | None, as_json: bool) -> int:
    """List the profiles of the inventory with their parallelism; contacts no host."""
    inventory = load(folder)

    from deployer.cli.view import print_json, print_table
    from deployer.schema.resolve import resolve

    resolved = [resolve(inventory.profiles, profile) for profile in inventory.profiles.values()]
    if as_json:
        print_json({"profiles": [p.model_dump(mode="json", exclude_none=True) for p in resolved]})
        return 0

    def number(value: int | None) -> str:
        return str(value or 1)

    print_table(
        ["profile", "tp", "pp", "dp", "ep", "attention", "patches", "description"],
        [
            [
                p.name,
                number(p.tensor_parallel),
                number(p.pipeline_parallel),
                number(p.data_parallel),
                number(p.expert_parallel),
                p.attention_backend or "-",
                ", ".join(p.patches or ()) or "-",
                p.description,
            ]
            for p in resolved
        ],
    )
    return 0
