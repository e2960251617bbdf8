"""`python -m deployer` is `deploy`."""

from deployer.cli import main

main()
