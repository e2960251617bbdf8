"""The truth server of the bench's tests."""

from tests.bench.conftest import server

__all__ = ["server"]
