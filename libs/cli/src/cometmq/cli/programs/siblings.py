# SPDX-License-Identifier: Apache-2.0
"""Starts and supervises the further brokers of `cometmq standalone --brokers N`."""

import asyncio
import socket
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.cli.programs.sibling import Order, Serving
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.service import Stop

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
