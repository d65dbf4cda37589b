# SPDX-License-Identifier: Apache-2.0
"""Listens on the port of the console, and starts its process at the first connection.

Until a browser connects, the console costs one socket. The first connection waits in the kernel's
queue until the process accepts it, which takes less than a second.

The process is not forked from the suite: as measured, a fork takes 16 MB while it waits, and saves
only 3 MB once the console is open.
"""

import asyncio
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.places import listen

STOP_TIMEOUT_S: Final = 20
PAUSES_S: Final = (1, 2, 5, 10, 30)
"""The pauses after a process that ended; the last one is repeated."""
PORT_OPTION: Final = "--console-port"
_STEADY_S: Final = 60
"""A process that ran for longer than this begins the pauses anew."""


class WaitingConsole:
    """The console's socket, and its process once there is one."""

    def __init__(
        self, settings: dict[str, str], *, log_level: str, log_json: bool | None, log: Log
    ) -> None:
        self._settings = settings
        self._log_level = log_level
        self._log_json = log_json
        self._log = log
        self._tasks = TaskSet(log)
        self._socket: socket.socket | None = None
        self._process: Process | None = None

    @property
    def port(self) -> int:
        """The port of the pages."""
        assert self._socket is not None, "not started"
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Listen; raise SettingsError if the port cannot be used."""
        self._socket = listen(host, port, setting=PORT_OPTION, host_setting="--host")
        self._settings["listenPort"] = str(self.port)
        self._tasks.spawn(self._serve(self._socket), name="console", is_endless=True)

    async def stop(self) -> None:
        """Close the socket, and let the process end."""
        await self._tasks.close()
        if self._socket is not None:
            self._socket.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self._log.warning("console.killed")
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _serve(self, listener: socket.socket) -> None:
        """Start the process at each first connection, and again after it has ended."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            await self._connection(listener)
            begin_s = loop.time()
            status = await self._run(listener)
            failures = 0 if loop.time() - begin_s > _STEADY_S else failures + 1
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            self._log.warning("console.ended", status=status, next_start_s=pause_s)
            await asyncio.sleep(pause_s)

    async def _connection(self, listener: socket.socket) -> None:
        """Wait for a connection, without accepting it."""
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        loop.add_reader(listener, connected.set)
        try:
            await connected.wait()
        finally:
            loop.remove_reader(listener)

    async def _run(self, listener: socket.socket) -> int:
        order = {
            "listener": listener.fileno(),
            "settings": self._settings,
            "log_level": self._log_level,
            "log_json": self._log_json,
        }
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cometmq.cli.programs.suite_console"),
            stdin=PIPE,
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C reaches `standalone` only, which stops all
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        return await self._process.wait()
