"""What every test may ask for."""

import pytest

pytest_plugins = ["tests.lab.fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with hosts begin first: what takes minutes must not be what all other workers wait for at the end."""
    items.sort(key=lambda item: item.get_closest_marker("lab") is None)
