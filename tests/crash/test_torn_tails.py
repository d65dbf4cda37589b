# SPDX-License-Identifier: Apache-2.0
"""Recovery ends the log before a record that is torn at a chosen byte, and writing continues."""

import struct
from pathlib import Path
from random import Random
from typing import Final

import pytest

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.store_files import read_log
from cometmq.remoting.message.ids import pack_host
from cometmq.remoting.message.new_message import NewMessage, encode_record

TOPIC: Final = "torn"
HOST: Final = pack_host(bytes((127, 0, 0, 1)), 10911)
ENTRY: Final = struct.Struct(">qiq")
CUTS_PER_KILL: Final = 4


def next_record(store: Path, queue_offset: int) -> tuple[Path, int, bytes]:
    """Return the log's last file, the offset where the log ends, and a record to append there."""
    records, end = read_log(store)
    path = max(path for path in (store / "commitlog").iterdir() if int(path.name) <= end)
    message = NewMessage(
        TOPIC, 0, 0, 0, 1, HOST, HOST, b"torn body", "KEYS\x01torn\x02", 0, 0, 0, ("torn",), True
    )
    record = encode_record(message, queue_offset, end, records[-1].store_timestamp)
    return path, end, record


def tear(store: Path, queue_offset: int, cut: int) -> int:
    """Append `record[:cut]` (a negative `cut` drops bytes at the end) and its queue entry."""
    path, end, record = next_record(store, queue_offset)
    with path.open("r+b") as file:
        file.seek(end - int(path.name))
        file.write(record[:cut])
    folder = store / "consumequeue" / TOPIC / "0"
    for path in folder.glob("*"):  # the queue may have been ahead of the log
        position = queue_offset * ENTRY.size - int(path.name)
        if 0 <= position < path.stat().st_size:
            with path.open("r+b") as file:
                file.seek(position)
                file.write(ENTRY.pack(end, len(record), 0))
    return len(record)


@pytest.mark.timeout(1800)
async def test_a_torn_record_is_dropped_and_never_comes_back(
    tmp_path: Path, random: Random, kills: int
) -> None:
    with BrokerChild(tmp_path) as broker:
        sent: list[bytes] = []
        size = 100
        for _ in range(max(3, kills // CUTS_PER_KILL)):
            await broker.start()
            async with Client(broker.address) as client:
                _, records = await client.read_queue(TOPIC, 0)
                assert [record.body for record in records] == sent
                assert await client.by_key(TOPIC, "torn") == []
                for _message in range(random.randint(1, 3)):
                    sent.append(random.randbytes(random.randint(1, 90)))
                    place = await client.send(TOPIC, 0, sent[-1], keys=f"k{len(sent)}")
                    assert place.queue_offset == len(sent) - 1
            broker.kill()
            cut = random.choice((1, 3, 4, 8, 20, 28, 84, -1, -2, random.randrange(1, size)))
            size = tear(broker.store, len(sent), cut)
        await broker.start()
        async with Client(broker.address) as client:
            _, records = await client.read_queue(TOPIC, 0)
            for position in range(len(sent)):
                (found,) = await client.by_key(TOPIC, f"k{position + 1}")
                assert found.queue_offset == position
        assert [record.body for record in records] == sent
        assert await broker.stop() == 0
