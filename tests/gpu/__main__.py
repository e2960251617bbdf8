"""`python -m tests.gpu`"""

from .command import main

main()
