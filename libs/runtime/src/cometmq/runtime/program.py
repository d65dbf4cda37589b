# SPDX-License-Identifier: Apache-2.0
"""Run one service as a process: serve health checks and metrics over HTTP, and stop cleanly."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from cometmq.remoting.log import Log
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock, SystemClock
from cometmq.runtime.places import check_different, check_port
from cometmq.runtime.service import Stop
from cometmq.runtime.settings import Loaded


class App(Protocol):
    """The service that a process runs."""

    def check(self) -> None:
        """Raise CometError or OSError if a start would fail for a known reason; create nothing."""

    async def start(self) -> None:
        """Start serving; raise CometError or OSError if the environment prevents it."""

    async def stop(self) -> None:
        """Stop serving; called once after a successful `start`."""


class Build(Protocol):
    """Constructs a service."""

    def __call__(self, *, log: Log, clock: Clock, admin: AdminHttp) -> App:
        """Construct the service and register its checks with `admin`, without starting it."""
        ...


def program(
    build: Build,
    *,
    log: Log,
    http_port: int,
    http_host: str = "",
    http_setting: str = "adminHttpPort",
    on_ready: Callable[[], None] | None = None,
) -> Callable[[Stop], Coroutine[Any, Any, None]]:
    """Return a main function for `service.run`; `http_port=-1` disables the HTTP port.

    An empty `http_host` means all addresses.
    """

    async def main(stop: Stop) -> None:
        admin = AdminHttp(log=log)
        app = build(log=log, clock=SystemClock(), admin=admin)
        app.check()  # first: on a second start, the folder or main port gives the better error
        check_port(http_host, http_port, setting=http_setting)
        await app.start()
        try:
            if http_port >= 0:
                await admin.start(http_port, host=http_host, setting=http_setting)
            stop.serving()
            if on_ready is not None:
                on_ready()
            await stop.wait()
        finally:
            await app.stop()
            await admin.stop()

    return main


def configured_program(
    build: Build, settings: Loaded[Any], *, log: Log
) -> Callable[[Stop], Coroutine[Any, Any, None]]:
    """Return a main function as `program` does, with the HTTP port from the settings, bound to
    `bindAddress` if the program has that setting.

    Probable mistakes in the settings are logged at the end of startup, where users notice them.
    Raise SettingsError if the program's two ports are the same.
    """
    http_port, http_setting = settings.value.admin_http_port, settings.label("adminHttpPort")
    if main_port := getattr(settings.value, "listen_port", 0):
        main_setting = settings.label("listenPort")
        check_different([(main_port, main_setting, ""), (http_port, http_setting, "")])

    def warn_of_mistakes() -> None:
        mistakes = settings.mistakes
        if facts := mistakes.facts():
            log.warning("settings.misspelt", **facts)
        if mistakes.repeated:
            log.warning("settings.repeated", places=dict(mistakes.repeated))
        if mistakes.unread:
            log.warning("variables.unread", did_you_mean=dict(mistakes.unread))

    return program(
        build,
        log=log,
        http_port=http_port,
        http_host=getattr(settings.value, "bind_address", ""),
        http_setting=http_setting,
        on_ready=warn_of_mistakes,
    )
