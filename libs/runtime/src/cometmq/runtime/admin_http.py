# SPDX-License-Identifier: Apache-2.0
"""The HTTP port of every program: /metrics, /healthz, /readyz and /settings; / lists these pages.

The server and its pages (`http`) are imported on a thread when the first client connects: they take
7 MB of memory and half of the time of a start.
"""

import asyncio
import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.metrics import Registry, StatsCollector, build_families, loop_families
from cometmq.runtime.places import listen
from cometmq.runtime.process.loop_lag import LoopLag
from cometmq.runtime.version import VERSION
from cometmq.runtime.worker import Worker

if TYPE_CHECKING:
    from cometmq.runtime.http.server import HttpServer

Check = Callable[[], str | None]
"""A health check returns None while healthy, otherwise a one-line reason."""


class AdminHttp:
    """Serves the metrics, health checks and settings that a program's components register."""

    def __init__(self, registry: Registry | None = None, *, log: Log = NO_LOG) -> None:
        self.registry = registry or Registry()
        self.lag = LoopLag()
        self.registry.add(StatsCollector(loop_families(), lambda: self.lag))
        versions = VERSION, python_version()
        self.registry.add(StatsCollector(build_families(), lambda: versions))
        self.log = log
        self.ready: dict[str, Check] = {}
        self.warnings: dict[str, Check] = {}
        self.settings: dict[str, Callable[[], str]] = {}
        self.metrics_files: list[Path] = []
        self.worker = Worker("metrics")
        self._tasks = TaskSet(log)
        self._listener: socket.socket | None = None
        self._server: HttpServer | None = None

    def add_ready_check(self, name: str, check: Check) -> None:
        """Make /readyz fail while the check returns a reason, so that no traffic is routed here."""
        self.ready[name] = check

    def add_ready_warning(self, name: str, check: Check) -> None:
        """Show the reason that the check returns on /readyz, with status 200: clients are served,
        but an operator must act.

        A ready check of the same name takes precedence.
        """
        self.warnings[name] = check

    def add_settings(self, name: str, text: Callable[[], str]) -> None:
        """Show the result of `text()` under this heading on /settings."""
        self.settings[name] = text

    def add_metrics_file(self, path: Path) -> None:
        """Append a file in Prometheus' text format to /metrics, once it exists.

        The program that writes it must replace it as a whole, and name no metric of this program.
        """
        self.metrics_files.append(path)

    @property
    def port(self) -> int:
        """Return the port that the server is bound to."""
        assert self._listener is not None, "not started"
        port: int = self._listener.getsockname()[1]
        return port

    async def start(
        self, port: int, *, host: str | None = None, setting: str = "adminHttpPort"
    ) -> None:
        """Start listening; port 0 picks a free one. Raise SettingsError if the port is in use."""
        # If no host is given, one socket serves IPv4 and IPv6, because a kubelet may probe either.
        self._listener = listen(host or "", port, setting=setting)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._connected, self._listener)
        self.lag.start(loop)

    async def stop(self) -> None:
        """Stop listening, and end requests in progress after a short time."""
        self.lag.stop()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
        await self._tasks.close()
        if self._server is not None:
            await self._server.stop()
        if self._listener is not None:
            self._listener.close()
        self.worker.close()

    def _connected(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listener)
        self._tasks.spawn(self._serve(listener), name="admin-http")

    async def _serve(self, listener: socket.socket) -> None:
        def imported() -> Any:
            return import_module("cometmq.runtime.http.admin_pages")

        pages = await self.worker.submit(imported)
        self._server = server = pages.server_of(self)
        await server.start(listener)
