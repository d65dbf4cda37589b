# SPDX-License-Identifier: Apache-2.0
"""A client of one broker, for tests that start processes: sends, pulls and commits on one queue."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.offsets import QueryConsumerOffset, UpdateConsumerOffset
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.process import BrokerProcess

TIMEOUT_MS = 60_000
SUBSCRIPTION, SUSPEND = 4, 2
ANSWERS = (0, *(ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED))


class Client:
    def __init__(self, address: str) -> None:
        self._address = address
        self._remoting = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)

    async def send(self, body: bytes, *, properties: str = "", topic: str = "T") -> Response:
        header = SendMessageV2("P", topic, AUTO_CREATE_TOPIC, 4, 0, 0, 0, 0, properties)
        return await self._remoting.invoke(
            self._address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_ms=TIMEOUT_MS
        )

    async def pull(
        self, offset: int = 0, *, wait_ms: int = 0, topic: str = "T", address: str = ""
    ) -> Response:
        flags = SUBSCRIPTION | (SUSPEND if wait_ms else 0)
        header = PullMessage("G", topic, 0, offset, 32, flags, 0, wait_ms, 0, "*")
        return await self._remoting.invoke(
            address or self._address,
            RequestCode.PULL_MESSAGE,
            header,
            timeout_ms=TIMEOUT_MS,
            ok=ANSWERS,
        )

    async def all_messages(self, topic: str = "T") -> list[MessageRecord]:
        found: list[MessageRecord] = []
        while True:
            response = await self.pull(len(found), topic=topic)
            if response.code:
                return found
            found += decode_records(response.body)

    async def committed(self) -> int:
        response = await self._remoting.invoke(
            self._address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffset("G", "T", 0),
            timeout_ms=TIMEOUT_MS,
        )
        offset: int = response.header.offset
        return offset

    async def commit(self, offset: int) -> None:
        await self._remoting.invoke(
            self._address,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffset("G", "T", 0, offset),
            timeout_ms=TIMEOUT_MS,
        )

    async def invoke(
        self, code: int, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> Response:
        """Send any request; raise an error unless it succeeds."""
        return await self._remoting.invoke(self._address, code, header, body, timeout_ms=TIMEOUT_MS)

    async def close(self) -> None:
        await self._remoting.close()


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Client]:
    client = Client(broker.address)
    try:
        yield client
    finally:
        await client.close()
