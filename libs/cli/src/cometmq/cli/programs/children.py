# SPDX-License-Identifier: Apache-2.0
"""The child processes of `cometmq standalone`: further brokers, and the console.

Standard input of a child is a socket to `standalone`: the child reads an order from it, says in one
line that it serves, and stops when the connection ends. It therefore never outlives `standalone`,
however that ends. Orders may contain secrets, and every user of the machine can read the arguments
of a process.
"""

import asyncio
import socket
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime import logging
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.places import listen
from cometmq.runtime.process.garbage import no_collections
from cometmq.runtime.process.system import yield_processors
from cometmq.runtime.program import Build, program
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.service import EXIT_CANNOT_START, Stop, run
from cometmq.runtime.settings import load

_INPUT: Final = 0
PAUSES_S: Final = (1, 2, 5, 10, 30)
"""The pauses before a child that ended is started again; the last one is repeated."""
PORT_OPTION: Final = "--console-port"
_STEADY_S: Final = 60
"""A console that ran for longer than this begins the pauses anew."""


class Options(NamedTuple):
    """The options of `standalone`; omitted options are None."""

    data: Path | None = None
    host: str | None = None
    namesrv_port: int | None = None
    broker_port: int | None = None
    http_port: int | None = None
    """The HTTP port; -1 means that there is none."""

    def given(self) -> set[str]:
        """Return the names of the options that are given."""
        pairs = self._asdict().items()
        return {f"--{name.replace('_', '-')}" for name, value in pairs if value is not None}


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Where a further broker serves, and which path its sends take."""

    addresses: list[str]
    ha_port: int
    http_port: int
    sends: str


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What `standalone` passes to a child."""

    log_level: str
    log_json: bool | None


class BrokerOrder(Order, frozen=True, kw_only=True, tag="broker"):
    """The settings of a further broker."""

    number: int
    namesrv_port: int = 0
    """The port of the name server; 0 until the name server listens."""
    config: Path | None
    options: Options
    account: tuple[str, str] | None
    """The account of the programs of `standalone`, if access control is on."""

    @property
    def name(self) -> str:
        """The name of its log."""
        return f"broker-{self.number}"

    def prepared(self, parent: socket.socket) -> tuple[Build, dict[str, Any]]:
        """Return how to build the broker, and its HTTP port; raise SettingsError."""
        suites: Any = import_module("cometmq.cli.programs.suite")
        suite = suites.load_suite(self.config, self.options)
        settings = suites.with_namesrv(
            suites.instance_of(suite, self.number), suite.namesrv_address(self.namesrv_port)
        )
        account = None if self.account is None else suites.account_of(*self.account)
        built: list[Any] = []

        def build(*, log: Log, clock: Clock, admin: AdminHttp) -> Any:
            app = PROGRAMS["broker"].app_type()(
                settings, log=log, clock=clock, admin=admin, config_path=suite.broker_file,
                own_account=account,
            )  # fmt: skip
            built.append(app)
            return app

        def serving() -> None:
            broker = built[0].broker
            found = Serving(
                addresses=built[0].addresses,
                ha_port=broker.settings.ha_listen_port,
                http_port=settings.value.admin_http_port,
                sends=broker.process.send_path,
            )
            parent.send(msgspec.json.encode(found) + b"\n")  # shorter than the socket's buffer

        return build, {
            "http_port": settings.value.admin_http_port,
            "http_host": settings.value.bind_address,
            "http_setting": settings.label("adminHttpPort"),
            "on_ready": serving,
        }


class ConsoleOrder(Order, frozen=True, kw_only=True, tag="console"):
    """The settings of the console."""

    listener: int
    """The descriptor of the listening socket."""
    settings: dict[str, str]
    name = "console"

    def prepared(self, _parent: socket.socket) -> tuple[Build, dict[str, Any]]:
        """Return how to build the console; raise SettingsError."""
        yield_processors()
        console = PROGRAMS["console"]
        with no_collections():  # a browser waits for these imports
            app_type = console.app_type()
        settings = load(console.settings_type(), prefix=console.prefix, cli=self.settings)
        build = partial(app_type, settings, listener=socket.socket(fileno=self.listener))
        return build, {"http_port": -1}


_decoder: Final = msgspec.json.Decoder(
    BrokerOrder | ConsoleOrder, dec_hook=lambda kind, text: kind(text)
)


def main() -> int:
    """Run what the order describes until the connection ends; return the status."""
    parent = socket.socket(fileno=_INPUT)
    line = parent.makefile("rb").readline()
    if not line:
        return EXIT_CANNOT_START
    order = _decoder.decode(line)
    logging.configure(json=order.log_json, level=order.log_level)
    try:
        build, more = order.prepared(parent)
    except SettingsError as error:
        print(f"cometmq: {error}".replace("\n", "\ncometmq: "), file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    log = logging.get(order.name)

    async def serve(stop: Stop) -> None:
        with parent:
            parent.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.add_reader(_INPUT, partial(_stop_at_end, parent, stop))
            try:
                await program(build, log=log, **more)(stop)
            finally:
                loop.remove_reader(_INPUT)

    return run(serve, log=log)


def _stop_at_end(parent: socket.socket, stop: Stop) -> None:
    """Stop when `standalone` has ended or has closed the connection; it sends nothing else."""
    with suppress(BlockingIOError):
        try:
            is_open = bool(parent.recv(1))
        except ConnectionError:
            is_open = False
        if not is_open:
            asyncio.get_running_loop().remove_reader(_INPUT)
            stop.request("standalone")


# -- standalone's side ------------------------------------------------------------------------


class Child:
    """One child: its process, and the connection whose end makes it stop."""

    stop_timeout_s = 60
    """A child that has not stopped after this time is killed; saving everything takes less."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def spawn(self, order: Order, *descriptors: int) -> tuple[Process, asyncio.StreamReader]:
        """Start the process; return it with what it says."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "cometmq.cli.programs.children"),
                    stdin=theirs.fileno(),
                    pass_fds=descriptors,
                    start_new_session=True,  # Ctrl-C reaches `standalone` only, which stops all
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:  # also if `standalone` stops meanwhile: the process then ends
            ours.close()
            raise
        self._writer.write(msgspec.json.encode(order, enc_hook=str) + b"\n")
        return self._process, reader

    async def stop(self) -> None:
        """Let the process save everything and end; kill it if it does not."""
        self.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(self.stop_timeout_s):
                await process.wait()
        except TimeoutError:
            self.note_kill()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def note_kill(self) -> None:
        """Log that the process did not stop."""
        self.log.warning("console.killed")

    def close(self) -> None:
        """End the connection."""
        if self._writer is not None:
            self._writer.close()


class Sibling(Child):
    """A further broker."""

    def __init__(self, order: BrokerOrder, *, log: Log) -> None:
        super().__init__(log)
        self.number = order.number
        self._order = order

    async def start(self) -> Serving:
        """Start the process; return once it serves. Raise SettingsError if it ends first."""
        process, reader = await self.spawn(self._order)
        line = await reader.readline()
        if not line:
            status = await process.wait()
            raise SettingsError(f"broker {self.number} could not start (exit status {status})")
        return msgspec.json.decode(line, type=Serving)

    async def supervise(self, stop: Stop) -> None:
        """Start the broker again each time it ends, until `standalone` stops."""
        failures = 0
        while self._process is not None:
            status = await self._process.wait()
            if stop.is_requested:
                return
            self.log.error("sibling.ended", number=self.number, status=status)
            self.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_pause_s(failures)):
                    await stop.wait()
                    return
            failures += 1
            with suppress(SettingsError, OSError):  # the process has said why
                serving = await self.start()
                failures = 0
                self.log.warning(
                    "sibling.restarted", number=self.number, addresses=serving.addresses
                )

    def note_kill(self) -> None:
        """Log that the broker did not stop."""
        self.log.error("sibling.killed", number=self.number)


def _pause_s(failures: int) -> int:
    return PAUSES_S[min(failures, len(PAUSES_S) - 1)]


class Siblings:
    """The further brokers of `cometmq standalone`, each in a child process."""

    def __init__(self, orders: list[BrokerOrder], *, log: Log) -> None:
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


class WaitingConsole(Child):
    """The console's socket, and its process once a browser has connected.

    Until then, the console costs one socket. The first connection waits in the kernel's queue until
    the process accepts it, which takes less than a second. The process is not forked from the
    suite: as measured, a fork takes 16 MB while it waits, and saves only 3 MB once the console is
    open.
    """

    stop_timeout_s = 20

    def __init__(self, host: str, port: int, *, log: Log) -> None:
        """Listen; raise SettingsError if the port cannot be used."""
        super().__init__(log)
        self._tasks = TaskSet(log)
        self._socket = listen(host, port, setting=PORT_OPTION, host_setting="--host")
        self.port: int = self._socket.getsockname()[1]

    def start(self, settings: dict[str, str], *, log_level: str, log_json: bool | None) -> None:
        """Start the process at each first connection, and again after it has ended."""
        order = ConsoleOrder(
            listener=self._socket.fileno(),
            settings={**settings, "listenPort": str(self.port)},
            log_level=log_level,
            log_json=log_json,
        )
        self._tasks.spawn(self._serve(order), name="console", is_endless=True)

    async def stop(self) -> None:
        """Close the socket, and let the process end."""
        await self._tasks.close()
        self._socket.close()
        await super().stop()

    async def _serve(self, order: ConsoleOrder) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            await self._connection()
            begin_s = loop.time()
            process, _ = await self.spawn(order, order.listener)
            status = await process.wait()
            failures = 0 if loop.time() - begin_s > _STEADY_S else failures + 1
            pause_s = _pause_s(failures)
            self.log.warning("console.ended", status=status, next_start_s=pause_s)
            self.close()
            await asyncio.sleep(pause_s)

    async def _connection(self) -> None:
        """Wait for a connection, without accepting it."""
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        loop.add_reader(self._socket, connected.set)
        try:
            await connected.wait()
        finally:
            loop.remove_reader(self._socket)


if __name__ == "__main__":
    sys.exit(main())
