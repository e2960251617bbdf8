"""The command line: one thin command a verb, imported only when it is called."""

import sys


def main() -> None:
    """Console script `deploy`."""
    from deployer.cli.app import run

    sys.exit(run(sys.argv[1:]))
