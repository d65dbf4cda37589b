# SPDX-License-Identifier: Apache-2.0
"""Measures what a thousand connections cost a broker: plain, TLS natively, and TLS by OpenSSL."""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Final

import msgspec
from tests.load.frames import pull_frame, send_frame
from tests.load.reporting import Findings, say

from cometmq.peers.broker.child import BrokerChild, until
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.facts import FILES, Facts
from cometmq.peers.ports import HOST

CONNECTION_COUNT: Final = 1_000
AT_ONCE: Final = 50
TOPIC: Final = "Connections"
BODY: Final = b"b" * 1_024
LENGTH_BYTES: Final = 4
DEADLINE_S: Final = 120


class Kind(msgspec.Struct, frozen=True):
    """A way to connect, and the memory that one connection may take."""

    name: str
    connection_kib_max: float
    has_tls: bool = True
    settings: dict[str, str] = {}  # of the broker


KINDS: Final = (
    Kind("plain", 16, has_tls=False),
    Kind("TLS, native", 64),
    Kind("TLS, OpenSSL", 128, settings={"nativeTlsEnable": "false"}),
)


class ConnectionsRun:
    """Opens the connections of one kind after another, each to a new broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._findings = Findings()

    async def run(self) -> Findings:
        for kind in KINDS:
            folder = self._folder / kind.name.replace(", ", "-")
            folder.mkdir()
            with BrokerChild(folder, **FILES, **kind.settings) as broker:
                await broker.start()
                async with asyncio.timeout(DEADLINE_S):
                    await self._measure(kind, broker)
        return self._findings

    async def _measure(self, kind: Kind, broker: BrokerChild) -> None:
        async with Client(broker.address) as client:
            await client.create_topic(TOPIC, 1)
        port = int(broker.address.rpartition(":")[2])
        context = _trusting_context() if kind.has_tls else None
        facts = Facts(broker)
        await _close(facts, await _opened(1, port, context))  # loads what the first one needs
        empty_kib, spent_s = _memory_kib(facts), facts.processor_s()
        writers = await _opened(CONNECTION_COUNT, port, context)
        ms = (facts.processor_s() - spent_s) * 1_000 / CONNECTION_COUNT
        first_kib = _memory_kib(facts) - empty_kib
        await _close(facts, writers)
        await _close(facts, await _opened(CONNECTION_COUNT, port, context))
        again_kib = _memory_kib(facts) - empty_kib
        say(
            f"connections: {kind.name}: {first_kib:.1f} KiB and {ms:.2f} ms of processor time each;"
            f" {again_kib:.1f} KiB after they were closed and opened again"
        )
        if again_kib > kind.connection_kib_max:
            limit = f"{kind.connection_kib_max} KiB"
            self._findings.add(f"connections: {kind.name}: {again_kib:.1f} KiB each, above {limit}")


def _memory_kib(facts: Facts) -> float:
    """Return the memory of the broker per connection of the crowd."""
    return facts.memory_mib("RssAnon") * 1_024 / CONNECTION_COUNT


def _trusting_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _opened(count: int, port: int, context: ssl.SSLContext | None) -> list[StreamWriter]:
    """Open connections, each of which has sent a message and pulled one."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def opened(number: int) -> StreamWriter:
        async with turns:
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            for frame in (send_frame(TOPIC, 0, BODY, number), pull_frame(TOPIC, 0, 0, number)):
                writer.write(frame)
                await _answer(reader)
            return writer

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(opened(number)) for number in range(count)]
    return [task.result() for task in tasks]


async def _answer(reader: StreamReader) -> None:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
    await reader.readexactly(length)


async def _close(facts: Facts, writers: list[StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()

    async def are_closed() -> bool:
        return (await facts.metrics())["cometmq_connections"] == 0

    await until(are_closed, DEADLINE_S)
