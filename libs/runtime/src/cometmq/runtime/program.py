# SPDX-License-Identifier: Apache-2.0
"""One service as a process: its own HTTP port for health and metrics, its start and its end."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from cometmq.remoting.log import Log
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock, SystemClock
from cometmq.runtime.service import Stop


class App(Protocol):
    """A service as its process sees it."""

    async def start(self) -> None:
        """Serve; raise CometError or OSError where the environment does not allow it."""

    async def stop(self) -> None:
        """End in order."""


class Build(Protocol):
    """Constructs a service."""

    def __call__(self, *, log: Log, clock: Clock, admin: AdminHttp) -> App:
        """Construct, without starting anything."""


def program(
    build: Build, *, log: Log, http_port: int, http_setting: str = "adminHttpPort"
) -> Callable[[Stop], Coroutine[Any, Any, None]]:
    """Return what `service.run` runs: the service with its HTTP port; -1 means no such port."""

    async def main(stop: Stop) -> None:
        admin = AdminHttp(log=log)
        app = build(log=log, clock=SystemClock(), admin=admin)
        await app.start()
        try:
            if http_port >= 0:
                await admin.start(http_port, setting=http_setting)
            stop.serving()
            await stop.wait()
        finally:
            await app.stop()
            await admin.stop()

    return main
