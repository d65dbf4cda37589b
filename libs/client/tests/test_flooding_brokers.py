# SPDX-License-Identifier: Apache-2.0
"""A broker that floods its client with requests does not slow the client's work with others."""

import asyncio
import re
import socket
import struct
import threading
from contextlib import suppress
from time import monotonic, thread_time
from typing import Any, Final

import pytest

from cometmq.client.cluster.broker_requests import LocalMembers
from cometmq.client.cluster.instance import CALLBACKS
from cometmq.client.log import PROGRAM_LOG
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings

ROUND_S: Final = 1.5
SETTLE_S: Final = 0.5
"""The allowance of the flood is used up by then."""


def frame(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


def asks(code: int, ext: str = "{}", body: bytes = b"") -> bytes:
    head = '{"code":%d,"language":"JAVA","version":395,"opaque":7,"flag":0,"extFields":%s}'
    return frame((head % (code, ext)).encode(), body)


REQUESTS: Final = {
    "info": asks(RequestCode.GET_CONSUMER_RUNNING_INFO, '{"consumerGroup":"cg","clientId":"c"}'),
    "malformed": asks(RequestCode.CHECK_TRANSACTION_STATE, '{"commitLogOffset":"x"}'),
}


class Flood:
    """A server that reads what a client sends, and sends requests as fast as they are read."""

    def __init__(self, request: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._data = request * (1 + (1 << 18) // len(request))
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        self._threads.append(threading.Thread(target=self._skip, args=(connection,)))
        self._threads[1].start()
        with connection, suppress(OSError):
            while True:
                connection.sendall(self._data)

    def _skip(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(1 << 18):
                pass

    def join(self) -> None:
        """Wait for the threads, which end with the connection."""
        for thread in self._threads:
            thread.join()
        self._listener.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            (size,) = struct.unpack(">I", await reader.readexactly(4))
            request = await reader.readexactly(size)
            opaque = re.findall(rb'"opaque":(\d+)', request)[0]
            writer.write(frame(b'{"code":0,"flag":1,"opaque":%s,"version":395}' % opaque))
    except (OSError, EOFError):
        writer.close()


class Member:
    """A consumer that is asked often."""

    def wake(self) -> None: ...

    def running_info(self, **_: Any) -> ConsumerRunningInfo:
        return ConsumerRunningInfo()

    async def reset_offsets(self, *_: Any, **__: Any) -> None: ...


async def asked_in(client: RemotingClient, address: str, round_s: float) -> float:
    """Return how many requests a server answers in a second of this thread's processor time, one
    after the other.
    """
    begun_s, worked_s, count = monotonic(), thread_time(), 0
    while monotonic() < begun_s + round_s:
        await client.invoke(address, RequestCode.HEART_BEAT, timeout_ms=20_000)
        count += 1
    return count / (thread_time() - worked_s)


@pytest.mark.load
@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_flood_of_requests_slows_no_other_broker(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    members = LocalMembers()
    consumers: Any = members.consumers
    consumers["cg"] = Member()
    client = RemotingClient(
        ClientSettings(), clock_ms=lambda: 0, handlers=CALLBACKS, context=members, log=PROGRAM_LOG
    )
    flood = Flood(REQUESTS[kind])
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        honest = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            alone = await asked_in(client, honest, ROUND_S)
            await client.invoke_oneway(flood.address, RequestCode.HEART_BEAT, timeout_ms=20_000)
            await asked_in(client, honest, SETTLE_S)
            beside = await asked_in(client, honest, ROUND_S)
        finally:
            await client.close(0)
    flood.join()
    assert beside > 0.3 * alone, (beside, alone)  # it was 0.02
    assert f"connection.slowed peer={flood.address}" in caplog.text
    assert honest not in caplog.text
