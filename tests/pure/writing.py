"""Small inventories for tests: written as YAML, loaded as a user would load them."""

from pathlib import Path
from textwrap import dedent

from deployer.errors import InventoryError, Problem
from deployer.schema.inventory import Desired, Inventory
from deployer.schema.loading import load_inventory

HOSTS = """
hosts:
  box:
    gpus: {count: 8, memory_gib: 96, interconnect: pcie}
"""

SERVICES = """
services:
  chat:
    model_path: /models/m
    served_model_name: m
    port: 30000
    engine: {python: /opt/sglang/bin/python, version: 0.5.18}
"""

PROFILES = """
profiles:
  tp8: {tensor_parallel: 8}
"""


def write(
    folder: Path, *, hosts: str = HOSTS, services: str = SERVICES, profiles: str = PROFILES, more: str = ""
) -> Path:
    """A folder with the given sections."""
    for name, text in {"hosts": hosts, "services": services, "profiles": profiles, "more": more}.items():
        (folder / f"{name}.yaml").write_text(dedent(text), encoding="utf-8")
    return folder


def inventory(
    folder: Path, *, hosts: str = HOSTS, services: str = SERVICES, profiles: str = PROFILES
) -> Inventory:
    """A loaded inventory."""
    return load_inventory(write(folder, hosts=hosts, services=services, profiles=profiles))


def desired(
    folder: Path,
    profile: str = "tp8",
    *,
    hosts: str = HOSTS,
    services: str = SERVICES,
    profiles: str = PROFILES,
) -> Desired:
    """The only service of the only host with a profile."""
    loaded = inventory(folder, hosts=hosts, services=services, profiles=profiles)
    return loaded.desired(loaded.select()[0], None, profile)


def problems_of(folder: Path) -> list[Problem]:
    """What is wrong with an inventory, with paths relative to its folder."""
    try:
        load_inventory(folder)
    except InventoryError as error:
        return [
            problem._replace(where=problem.where.removeprefix(f"{folder}/")) for problem in error.problems
        ]
    return []


def lines_of(folder: Path) -> list[str]:
    """The same as text."""
    return [str(problem) for problem in problems_of(folder)]
