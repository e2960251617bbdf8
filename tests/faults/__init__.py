"""Faults done to real hosts while a transaction stands at a step of our choice, and what must hold afterwards.

`python -m tests.faults --cells 40` does an even spread of the matrix, `--cells all` the whole.
"""
