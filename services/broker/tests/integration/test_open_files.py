# SPDX-License-Identifier: Apache-2.0
"""A broker with few descriptors: connections never keep the store from opening its files."""

import socket
from pathlib import Path

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.process import BrokerProcess

LIMIT = 400
CONNECTIONS = 500
TOPICS = 40


def descriptor_count(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_connections_never_starve_the_store(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, flushDiskType="SYNC_FLUSH")
    broker.prefix = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
    silent: list[socket.socket] = []
    async with broker:
        remoting = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
        host, _, port = broker.address.rpartition(":")
        for number in range(TOPICS):
            header = SendMessageV2("P", f"T{number}", "TBW102", 4, 0, 0, 0, 0, "")
            reply = await remoting.invoke(
                broker.address, RequestCode.SEND_MESSAGE_V2, header, b"x", timeout_ms=60_000
            )
            assert reply.code == ResponseCode.SUCCESS
            place = host, int(port)
            silent += [socket.create_connection(place) for _ in range(CONNECTIONS // TOPICS)]
        await remoting.close()
        assert descriptor_count(broker.pid) < LIMIT
    for one in silent:
        one.close()
    assert not [one for one in broker.events if one["event"] in {"store.failed", "sync.postponed"}]
