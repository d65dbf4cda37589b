# SPDX-License-Identifier: Apache-2.0
"""Senders whose headers differ in layout, each on its own connection."""

import asyncio
from pathlib import Path

from cometmq.remoting import RequestCode
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.header import encode_binary_ext
from cometmq.remoting.message.record import decode_records
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.remoting.types import Serialization
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.process import BrokerProcess

FIELDS = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "17", "h": "0"}
ENTRY_BYTES = len(encode_binary_ext({"j": "0"}))
TIMEOUT_S = 60


def send_frame(value: str, *, has_reconsume_times: bool) -> bytes:
    """Build a frame in ROCKETMQ encoding that sends a message with one property, K."""
    more = {"j": "0"} if has_reconsume_times else {}
    entries = encode_binary_ext(
        FIELDS | {"i": f"K\x01{value}"} | more | {"k": "false", "m": "false"}
    )
    fixed = RequestCode.SEND_MESSAGE_V2.to_bytes(2, "big") + b"\0" + (401).to_bytes(2, "big")
    header = fixed + bytes(12) + len(entries).to_bytes(4, "big") + entries
    mark = int(Serialization.ROCKETMQ) << 24 | len(header)
    frame = mark.to_bytes(4, "big") + header + b"body"
    return len(frame).to_bytes(4, "big") + frame


async def send(address: str, frames: list[bytes]) -> None:
    """Send frames on a new connection, each after the answer to the previous one."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(TIMEOUT_S):
        for frame in frames:
            writer.write(frame)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    writer.close()
    await writer.wait_closed()


async def test_no_sender_changes_the_properties_of_another(tmp_path: Path) -> None:
    """The third header has the same length as the first, but one more field."""
    values = ["v" * (10 + ENTRY_BYTES), "v" * 10, "v" * 10]
    frames = [
        send_frame(value, has_reconsume_times=number == 2) for number, value in enumerate(values)
    ]
    assert len(frames[0]) == len(frames[2])
    async with BrokerProcess(tmp_path) as broker:
        await send(broker.address, frames[:2])
        await send(broker.address, frames[2:])
        client = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
        header = PullMessage("G", "T", 0, 0, 32, 4, 0, 0, 0, "*")
        found = await client.invoke(
            broker.address, RequestCode.PULL_MESSAGE, header, timeout_ms=TIMEOUT_S * 1000
        )
        await client.close()
    assert [record.properties["K"] for record in decode_records(found.body)] == values
