# SPDX-License-Identifier: Apache-2.0
"""Clients that request messages from a broker process but never read the answers."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.testing.process import BrokerProcess
from cometmq.remoting import RawCommand
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.header import encode_frame
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock

DEAF_CLIENTS = 50
PULLS = 200
"""Each pull asks for 256 KB, so every client asks for 50 MB."""
MESSAGES = 64
BODY = b"b" * 16_384
TIMEOUT_MS = 60_000
BUDGET_BYTES = 32 << 20
HIGH_BYTES = 16 << 20
GROWTH_MB_MAX = 1_000
"""Measured: the memory grows by 353 MB (busy machine) to 720 MB (quiet machine) with this budget,
and by 1,091 to 1,368 MB without one, because every connection then reaches HIGH_BYTES plus one more
read.
"""
WITNESS_S_MAX = 10.0
WATCH_S = 3.0


@pytest.fixture
def deaf() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for one in sockets:
        one.close()


def connect_deaf(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    pull = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "subVersion": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "expressionType": "TAG",
    }
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    one.connect((host, int(port)))
    frames = [
        encode_frame(RawCommand(code=RequestCode.PULL_MESSAGE, ext=pull, opaque=number))
        for number in range(PULLS)
    ]
    one.sendall(b"".join(frames))
    return one


class Witness:
    """A client that reads its answers, and records its longest wait."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._remoting = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
        self.longest_s = 0.0

    async def _ask(self, code: int, header: Any, body: bytes = b"") -> bytes:
        begin = time.monotonic()
        reply = await self._remoting.invoke(
            self._address, code, header, body, timeout_ms=TIMEOUT_MS
        )
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        return bytes(reply.body)

    async def send(self) -> None:
        header = SendMessageV2("P", "T", "TBW102", 4, 0, 0, 0, 0, "")
        await self._ask(RequestCode.SEND_MESSAGE_V2, header, BODY)

    async def pull(self) -> int:
        header = PullMessage("W", "T", 0, 0, 1, 4, 0, 0, 0, "*")
        return len(await self._ask(RequestCode.PULL_MESSAGE, header))

    async def close(self) -> None:
        await self._remoting.close()


def memory_mb(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith(field)]
    return int(line.split()[1]) // 1024


async def test_clients_that_never_read_take_bounded_memory_and_disturb_no_other(
    tmp_path: Path, deaf: list[socket.socket]
) -> None:
    bounds = {
        "writeBufferTotalBytes": str(BUDGET_BYTES),
        "writeBufferHighBytes": str(HIGH_BYTES),
    }
    async with BrokerProcess(tmp_path, **bounds) as broker:
        witness = Witness(broker.address)
        for _ in range(MESSAGES):
            await witness.send()
        before_mb = memory_mb(broker.pid, "VmRSS")
        witness.longest_s = 0
        for _ in range(DEAF_CLIENTS):
            deaf.append(connect_deaf(broker.address))
            assert await witness.pull() > len(BODY)
        end = time.monotonic() + WATCH_S
        while time.monotonic() < end:
            await witness.pull()
            await witness.send()
            await asyncio.sleep(0)
        grown_mb = memory_mb(broker.pid, "VmHWM") - before_mb
        await witness.close()
    assert grown_mb < GROWTH_MB_MAX
    assert witness.longest_s < WITNESS_S_MAX
