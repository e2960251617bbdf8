"""How warm a start would be, one thing at a time."""

from typing import Literal

from deployer.schema.record import Record

Warmness = Literal["warm", "partly", "cold"]


class WarmItem(Record):
    """One thing that a start needs: compiled kernels, byte code, or weights in memory."""

    item: Literal["kernels", "byte code", "weights"]
    state: Warmness
    detail: str
