"""Services of a test, which are gone from host and inventory after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.switch.stage import Service, Stage

NewService = Callable[..., Service]


def services_of(stage: Stage) -> Iterator[NewService]:
    """What a fixture yields from: makes services, and removes them."""
    made: list[Service] = []

    def new(name: str = "", **more: object) -> Service:
        made.append(stage.service(name, **more))
        return made[-1]

    yield new
    for service in made:
        service.remove()
