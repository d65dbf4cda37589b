# SPDX-License-Identifier: Apache-2.0
"""A service that has started is always stopped, even if the process fails."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime import service
from cometmq.runtime.program import configured_program, program
from cometmq.runtime.programs import COMMANDS
from cometmq.runtime.service import Stop
from cometmq.runtime.settings.fields import fields_of
from cometmq.runtime.settings.mistakes import Mistakes
from cometmq.testing.runtime.reserved_ports import reserve_port


class Service:
    """Records its life cycle; a request to its HTTP port makes the process stop."""

    def __init__(self, notes, stop, admin):
        self.notes, self.stop_request = notes, stop
        admin.add_ready_check("service", self.looked_at)

    def looked_at(self):
        self.notes.append("looked at")
        self.stop_request.request("test")

    def check(self):
        if self.stop_request.reason == "refuse":
            raise SettingsError("the folder is locked")

    async def start(self):
        self.notes.append("started")

    async def stop(self):
        self.notes.append("stopped")


@pytest.fixture(autouse=True)
def unswept(monkeypatch):
    """Leave out the sweep after a start, which would visit all tests."""
    monkeypatch.setattr(service, "sweep", lambda: 0)


@pytest.fixture
def port():
    return reserve_port()


def main_of(notes, stop, port):
    def build(*, log, clock, admin):
        return Service(notes, stop, admin)

    return program(build, log=NO_LOG, http_port=port)(stop)


async def ask_for_readiness(port):
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0)
            continue
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        return writer


async def test_readiness_is_served_while_the_service_runs(port):
    notes: list[Any] = []
    stop = Stop()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(main_of(notes, stop, port))
        asking = tasks.create_task(ask_for_readiness(port))
    asking.result().close()
    assert notes == ["started", "looked at", "stopped"]
    assert stop.is_serving


async def test_a_port_in_use_starts_nothing():
    notes: list[Any] = []
    stop = Stop()
    with (
        socket.create_server(("0.0.0.0", 0)) as other,
        pytest.raises(SettingsError, match="in use"),
    ):
        await main_of(notes, stop, other.getsockname()[1])
    assert notes == []
    assert not stop.is_serving


async def test_a_service_that_cannot_start_is_refused_before_its_http_port_is_tried():
    notes: list[Any] = []
    stop = Stop()
    stop.reason = "refuse"
    with (
        socket.create_server(("0.0.0.0", 0)) as other,
        pytest.raises(SettingsError, match="the folder is locked"),
    ):
        await main_of(notes, stop, other.getsockname()[1])
    assert notes == []


async def test_a_port_that_is_taken_during_the_start_stops_the_service_again(port, monkeypatch):
    notes: list[Any] = []
    stop = Stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        async def start(service):
            service.notes.append("started")
            other.bind(("0.0.0.0", port))
            other.listen()

        monkeypatch.setattr(Service, "start", start)
        with pytest.raises(SettingsError, match="in use"):
            await main_of(notes, stop, port)
    assert notes == ["started", "stopped"]
    assert not stop.is_serving


async def test_a_service_runs_without_an_http_port():
    notes: list[Any] = []
    stop = Stop()
    stop.request("test")
    await main_of(notes, stop, -1)
    assert notes == ["started", "stopped"]


async def test_the_port_binds_where_the_program_binds(port):
    class Settings(msgspec.Struct):
        admin_http_port: int
        bind_address: str

    served = asyncio.Event()

    class Started(Stop):
        def serving(self):
            super().serving()
            served.set()

    class Given:
        value = Settings(port, "127.0.0.2")
        mistakes = Mistakes()

        @staticmethod
        def label(name):
            return name

    stop = Started()

    def build(*, log, clock, admin):
        return Service([], stop, admin)

    given: Any = Given()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(configured_program(build, given, log=NO_LOG)(stop))
        await served.wait()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        _, writer = await asyncio.open_connection("127.0.0.2", port)
        writer.close()
        stop.request("test")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_program_can_restrict_its_http_port(name):
    fields = fields_of(COMMANDS[name].settings_type())
    assert "adminHttpPort" not in fields or "bindAddress" in fields
