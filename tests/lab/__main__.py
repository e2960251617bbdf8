"""`python -m tests.lab`"""

from .command import main

main()
