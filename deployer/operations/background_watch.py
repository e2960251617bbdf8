"""A service watched from inside its host while something else is done with it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from deployer.errors import DeployError
from deployer.hosts.port import AgentChannel
from deployer.operations.observe import Watching, observe
from deployer.schema.service import Service

LONGEST_SECONDS: Final = 24 * 3600.0
END_SECONDS: Final = 20.0


@dataclass
class BackgroundWatch:
    """The recording that is being made; what goes wrong with it harms nothing else."""

    recording: str | None = None
    failure: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, channel: AgentChannel, service: Service, watching: Watching) -> None:
        """Until it is told to end."""
        try:
            self.recording = observe(channel, service, watching, until=self._over.is_set).recording
        except DeployError as error:
            self.failure = error.message

    def end(self) -> None:
        """At the next sample."""
        self._over.set()


@contextmanager
def watched(
    channel: AgentChannel, service: Service, *, gpus: bool, wanted: bool
) -> Iterator[BackgroundWatch]:
    """Within it the service is watched, if that is wanted."""
    watch = BackgroundWatch()
    if not wanted:
        yield watch
        return
    given = (channel, service, Watching(seconds=LONGEST_SECONDS, gpus=gpus))
    thread = threading.Thread(target=watch.run, args=given, name="background-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join(END_SECONDS)
