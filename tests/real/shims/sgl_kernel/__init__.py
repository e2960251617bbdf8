"""Stands in for the CUDA package sgl_kernel: every name can be imported, none can be called."""

from collections.abc import Callable
from typing import Any

__version__ = "0.0+cpu"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    kernel.__name__ = name
    return kernel
