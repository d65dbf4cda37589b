# SPDX-License-Identifier: Apache-2.0
"""A broker in its own process, and a name server that records registrations."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.topic_config import RegisterBrokerBody, TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.namesrv import RegisterBroker, RegisterBrokerReply, UnregisterBroker
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.clock import SystemClock

START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 120
LOCALHOST: Final = "127.0.0.1"


class BrokerProcess:
    """`cometmq broker -c FILE` in its own folder; as a context manager, it stops the
    process.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        """Write the settings file; `settings`, by external names, override the test defaults."""
        self.folder = folder
        self.prefix: tuple[str, ...] = ()
        """A command, such as `prlimit`, that executes the broker."""
        self.file = folder / "broker.conf"
        self.address = ""
        self.events: list[dict[str, Any]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reader = TaskSet()
        self._ready = asyncio.Event()
        self._is_silent = asyncio.Event()
        values = {
            "brokerName": "broker-a",
            "brokerIP1": LOCALHOST,
            "bindAddress": LOCALHOST,
            "listenPort": "0",
            "adminHttpPort": "-1",
            "storePathRootDir": str(folder / "store"),
            **settings,
        }
        self.file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start the process; raise AssertionError with its output if it does not become ready."""
        self._ready.clear()
        self._is_silent.clear()
        self._process = await asyncio.create_subprocess_exec(
            *self.prefix,
            sys.executable,
            *("-m", "cometmq.cli", "broker", "-c"),
            str(self.file),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._reader.spawn(self._read(self._process), name="broker-output")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._ready.wait()
        assert self.address, f"the broker did not start: {self.events}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await self._ended(self._process)

    async def kill(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await self._ended(process)

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        status = await process.wait()
        await self._is_silent.wait()
        self._process = None
        self.address = ""
        return status

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            event = _event(line)
            self.events.append(event)
            if event.get("event") == "broker.ready":
                self.address = event["addresses"][0]
                self._ready.set()
        self._is_silent.set()
        self._ready.set()


def _event(line: bytes) -> dict[str, Any]:
    """Parse a line of output; text that is not a log event is returned under the key `output`."""
    try:
        event = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {"output": line.decode(errors="replace").rstrip()}
    return event if isinstance(event, dict) else {"output": event}


class RecordingNamesrv:
    """A name server without routes that records registrations and tells slaves their master."""

    def __init__(self) -> None:
        """Create the object on the running loop; nothing listens yet."""
        self.registrations: list[RegisterBrokerBody] = []
        self.headers: list[RegisterBroker] = []
        self.unregistered: list[UnregisterBroker] = []
        self.topics: dict[str, TopicConfig] = {}
        self.masters: dict[str, RegisterBroker] = {}
        self.address = ""
        self._changed = asyncio.Event()
        self._server = self._new_server()

    async def start(self, port: int = 0) -> None:
        """Listen on the given port, by default on a free one."""
        self._server = self._new_server()
        self.address = f"{LOCALHOST}:{await self._server.listen(LOCALHOST, port)}"

    async def stop(self) -> None:
        """Close all connections, as a name server does when it shuts down."""
        await self._server.close(0)

    async def wait_for(self, count: int) -> None:
        """Wait until this many registrations have arrived."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while len(self.registrations) < count:
                self._changed.clear()
                await self._changed.wait()

    def _new_server(self) -> Server["RecordingNamesrv"]:
        handlers: Mapping[int, Any] = {
            RequestCode.REGISTER_BROKER: _register,
            RequestCode.UNREGISTER_BROKER: _unregister,
        }
        return Server(handlers, self, ServerSettings(), clock_ms=SystemClock().monotonic_ms)

    def note(self, body: RegisterBrokerBody) -> None:
        self.registrations.append(body)
        self.topics |= body.topic_config_serialize_wrapper.topic_config_table
        self._changed.set()


def _register(namesrv: RecordingNamesrv, call: Call[RegisterBroker]) -> Reply:
    header = call.header
    namesrv.headers.append(header)
    namesrv.note(REGISTER.decode(call.body))
    if header.broker_id == 0:
        namesrv.masters[header.broker_name] = header
        return OK
    master = namesrv.masters.get(header.broker_name)
    if master is None:
        return OK
    return Reply(header=RegisterBrokerReply(master.ha_server_addr, master.broker_addr))


def _unregister(namesrv: RecordingNamesrv, call: Call[UnregisterBroker]) -> Reply:
    namesrv.unregistered.append(call.header)
    return OK
