"""Writes the inventory of the real SGLang on one lab host: tests.real.inventory DIR --address A --key FILE."""

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTALL: Final = Path(__file__).with_name("install.sh")
VERSION: Final = "0.5.23"
SERVICE: Final = "tiny"
PORT: Final = 31000

HOSTS: Final = """\
hosts:
  ct200:
    address: "{address}"
    user: root
    identity_file: "{key}"
    gpus: {{count: 0}}
"""

SERVICES: Final = """\
services:
  {service}:
    model_path: "{model}"
    served_model_name: {service}
    port: {port}
    host_bind: 0.0.0.0
    engine: {{python: "{python}", version: {version}}}
    model: {{layers: 2, attention_heads: 4, key_value_heads: 2}}
    settings:
      attention_backend: torch_native
      metrics: true
      drain_seconds: 60
      # About 20 s to be ready on two idle cores, minutes when others use them too.
      deadlines: {{ready_seconds: 300, restore_ready_seconds: 300}}
      environment:
        SGLANG_USE_CPU_ENGINE: "1"
        OMP_NUM_THREADS: "1"
        HF_HUB_OFFLINE: "1"
        TRANSFORMERS_OFFLINE: "1"
        PYTHONDONTWRITEBYTECODE: "1"
      flags:
        device: cpu
        max-total-tokens: 4096
"""

PROFILES: Final = """\
profiles:
  one:
    description: Eight requests at once.
    max_running_requests: 8
  two:
    description: Sixteen requests at once.
    max_running_requests: 16
  no-room:
    description: Dies while it starts, as eight tokens of KV cache do not fill one page.
    # Not by memory_fraction: that compares the free memory of the machine before and after, which others move.
    flags: {max-total-tokens: 8, page-size: 64}
"""


@dataclass(frozen=True)
class Installed:
    """What install.sh has built, as the paths that a host must see."""

    engine: Path
    model: Path
    binds: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.engine / "bin" / "python"


def installed() -> Installed:
    """The paths of the built engine and model; CalledProcessError when install.sh has not run."""
    done = subprocess.run([str(INSTALL), "--paths"], stdout=subprocess.PIPE, text=True, check=True)
    engine, model, *rest = done.stdout.splitlines()
    return Installed(Path(engine), Path(model), (engine, model, *rest))


def write_inventory(folder: Path, address: str, key: Path, built: Installed) -> None:
    """Write hosts.yaml, services.yaml and profiles.yaml; files that are there are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yaml").write_text(HOSTS.format(address=address, key=key))
    services = SERVICES.format(
        service=SERVICE, port=PORT, model=built.model, python=built.python, version=VERSION
    )
    (folder / "services.yaml").write_text(services)
    (folder / "profiles.yaml").write_text(PROFILES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real.inventory", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address", required=True, help="of the host, such as the lab's")
    parser.add_argument("--key", required=True, type=Path, help="SSH key that opens root's account")
    args = parser.parse_args()
    write_inventory(args.folder, args.address, args.key, installed())


if __name__ == "__main__":
    main()
