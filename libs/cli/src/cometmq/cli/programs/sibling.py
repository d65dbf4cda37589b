# SPDX-License-Identifier: Apache-2.0
"""A further broker of `cometmq standalone --brokers N`, in a process of its own.

Standard input is a socket to `standalone`: the process reads an `Order` from it, answers with a
`Serving` line once it serves, and stops when the connection ends. It therefore never outlives
`standalone`, however that ends.
"""

import asyncio
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cometmq.broker.instances import instance
from cometmq.broker.settings import BrokerSettings
from cometmq.cli.programs.suite import DECIDED, Options, Suite, load_suite
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.runtime import logging
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.program import program
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.service import EXIT_CANNOT_START, Stop, run
from cometmq.runtime.settings import COMMAND_LINE, Loaded, Origin

if TYPE_CHECKING:
    from cometmq.broker.app import BrokerApp

from asyncio.subprocess import Process
from contextlib import suppress

from cometmq.remoting.transport.tasks import TaskSet

S = TypeVar("S", bound=msgspec.Struct)

_INPUT: Final = 0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that `standalone` passes to a further broker."""

    number: int
    namesrv_port: int = 0
    """The port of the name server; 0 until the name server listens."""
    config: str | None
    data: str | None
    host: str | None
    broker_port: int | None
    http_port: int | None
    account: tuple[str, str] | None
    """The account of the programs of `standalone`, if access control is on."""
    log_level: str
    log_json: bool | None


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Where a further broker serves, and which path its sends take."""

    addresses: list[str]
    ha_port: int
    http_port: int
    sends: str


def instance_of(suite: Suite, number: int) -> Loaded[BrokerSettings]:
    """Return the settings of one of the brokers of a suite, with its HTTP port."""
    name, option = "adminHttpPort", DECIDED["adminHttpPort"]
    value = msgspec.structs.replace(suite.broker.value, admin_http_port=suite.http_port)
    origins = suite.broker.origins
    if suite.http_setting == option:
        origins = {**origins, name: Origin(COMMAND_LINE, option)}
    return instance(msgspec.structs.replace(suite.broker, value=value, origins=origins), number)


def with_namesrv(loaded: Loaded[S], address: str) -> Loaded[S]:
    """Return the settings of a program with the name server of the suite."""
    origin = Origin(COMMAND_LINE, DECIDED["namesrvAddr"])
    return loaded.updated({"namesrvAddr": address}, origin=origin)


def main() -> int:
    """Run the broker that the order describes until the connection ends; return the status."""
    parent = socket.socket(fileno=_INPUT)
    line = parent.makefile("rb").readline()
    if not line:
        return EXIT_CANNOT_START
    order = msgspec.json.decode(line, type=Order)
    logging.configure(json=order.log_json, level=order.log_level)
    try:
        data = None if order.data is None else Path(order.data)
        options = Options(data, order.host, None, order.broker_port, order.http_port)
        suite = load_suite(None if order.config is None else Path(order.config), options)
        address = suite.namesrv_address(int(order.namesrv_port))
        settings = with_namesrv(instance_of(suite, order.number), address)
    except SettingsError as error:
        print(f"cometmq: {error}".replace("\n", "\ncometmq: "), file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    log = logging.get(f"broker-{order.number}")
    broker_app: type[BrokerApp] = PROGRAMS["broker"].app_type()
    built: list[BrokerApp] = []

    def build(*, log: Log, clock: Clock, admin: AdminHttp) -> "BrokerApp":
        app = broker_app(
            settings,
            log=log,
            clock=clock,
            admin=admin,
            config_path=suite.broker_file,
            own_account=_account(order),
        )
        built.append(app)
        return app

    async def serve(stop: Stop) -> None:
        with parent:
            parent.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.add_reader(_INPUT, partial(_stop_at_end, parent, stop))
            try:
                await program(
                    build,
                    log=log,
                    http_port=settings.value.admin_http_port,
                    http_host=settings.value.bind_address,
                    http_setting=settings.label("adminHttpPort"),
                    on_ready=lambda: _report(parent, built[0], settings.value.admin_http_port),
                )(stop)
            finally:
                loop.remove_reader(_INPUT)

    return run(serve, log=log)


def _account(order: Order) -> Account | None:
    if order.account is None:
        return None
    name, secret = order.account
    return Account(AclAccount(name, secret_key=secret, admin=True))


def _stop_at_end(parent: socket.socket, stop: Stop) -> None:
    """Stop when `standalone` has ended or has closed the connection; it sends nothing else."""
    try:
        is_open = bool(parent.recv(1))
    except BlockingIOError:
        return
    except OSError:
        is_open = False
    if not is_open:
        asyncio.get_running_loop().remove_reader(_INPUT)
        stop.request("standalone")


def _report(parent: socket.socket, app: "BrokerApp", http_port: int) -> None:
    broker = app.broker
    serving = Serving(
        addresses=app.addresses,
        ha_port=broker.settings.ha_listen_port,
        http_port=http_port,
        sends=broker.process.send_path,
    )
    parent.send(msgspec.json.encode(serving) + b"\n")  # shorter than the buffer of the socket


if __name__ == "__main__":
    sys.exit(main())


STOP_TIMEOUT_S: Final = 60
"""A broker that has not stopped after this time is killed; saving everything takes less."""
PAUSES_S: Final = (1, 2, 5, 10, 30)
"""The pauses before a broker that ended is started again; the last one is repeated."""


class Sibling:
    """One further broker: its process, and the connection whose end makes it stop."""

    def __init__(self, order: Order, *, log: Log) -> None:
        self.number = order.number
        self._order = order
        self._log = log
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> Serving:
        """Start the process; return once it serves. Raise SettingsError if it ends first."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "cometmq.cli.programs.sibling"),
                    stdin=theirs.fileno(),
                    start_new_session=True,  # Ctrl-C reaches `standalone` only, which stops all
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:  # also if `standalone` stops meanwhile: the process then ends
            ours.close()
            raise
        self._writer.write(msgspec.json.encode(self._order) + b"\n")
        line = await reader.readline()
        if not line:
            status = await self._process.wait()
            raise SettingsError(f"broker {self.number} could not start (exit status {status})")
        return msgspec.json.decode(line, type=Serving)

    async def supervise(self, stop: Stop) -> None:
        """Start the broker again each time it ends, until `standalone` stops."""
        failures = 0
        while self._process is not None:
            status = await self._process.wait()
            if stop.is_requested:
                return
            self._log.error("sibling.ended", number=self.number, status=status)
            self._close()
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSES_S[min(failures, len(PAUSES_S) - 1)]):
                    await stop.wait()
                    return
            failures += 1
            with suppress(SettingsError, OSError):  # the process has said why
                serving = await self.start()
                failures = 0
                self._log.warning(
                    "sibling.restarted", number=self.number, addresses=serving.addresses
                )

    async def stop(self) -> None:
        """Let the broker save everything and end; kill it if it does not."""
        self._close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self._log.error("sibling.killed", number=self.number)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Siblings:
    """The further brokers of `cometmq standalone`, each in a child process."""

    def __init__(self, orders: list[Order], *, log: Log) -> None:
        self._all = [Sibling(order, log=log) for order in orders]
        self._tasks = TaskSet(log)

    async def start(self, stop: Stop) -> list[Serving]:
        """Start all of them at the same time, and return once all serve. If one cannot start, stop
        the others.
        """
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(one.start()) for one in self._all]
        for one in self._all:
            self._tasks.spawn(one.supervise(stop), name=f"broker {one.number}")
        return [task.result() for task in starting]

    async def stop(self) -> None:
        """Stop all of them at the same time."""
        await self._tasks.close()
        async with asyncio.TaskGroup() as group:
            for one in self._all:
                group.create_task(one.stop())
