# SPDX-License-Identifier: Apache-2.0
"""An acknowledged message can be read, although the creation of its topic is lost from the journal.

A crash of the host may lose what the journal got last, because only the log is synced before an
answer. The log then proves which topics were created; it does not bring back deleted ones.
"""

import shutil
from pathlib import Path
from typing import Final

import pytest

from cometmq.peers.broker.child import BrokerChild, until
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.store_files import read_log
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.commands.transactions import EndTransaction

OLD: Final = "OldTopic"
GONE: Final = "GoneTopic"
NEW: Final = "NewTopic"
LATER: Final = "LaterTopic"
QUEUES: Final = 3
SETTINGS: Final = {"flushDiskType": "SYNC_FLUSH", "defaultTopicQueueNums": str(QUEUES)}


def cut_journal(store: Path, text: bytes) -> None:
    """Overwrite the journal with zeros from the entry on that has this text, as a torn write."""
    found = False
    for path in sorted((store / "config" / "journal").iterdir()):
        data = bytearray(path.read_bytes())
        at = 0 if found else data.find(text)
        if at >= 0:
            found = True
            data[at:] = bytes(len(data) - at)
            path.write_bytes(data)
    assert found


async def saved_tables(store: Path) -> dict[Path, bytes]:
    """Return the files of the topics once they are up to date."""
    paths = [store / "config" / name for name in ("topics.json", "topics.json.bak")]

    async def are_saved() -> bool:
        texts = [path.read_bytes() if path.exists() else b"" for path in paths]
        is_current = [OLD.encode() in text and GONE.encode() not in text for text in texts]
        return is_current[0] and (is_current[1] or not texts[1])

    await until(are_saved, 20)
    return {path: path.read_bytes() for path in paths if path.exists()}


@pytest.mark.parametrize("queues", ["there", "lost"])
@pytest.mark.parametrize("journal", ["whole", "torn", "no entry"])
async def test_topics_of_acknowledged_messages_are_there_and_deleted_ones_are_not(
    tmp_path: Path, journal: str, queues: str
) -> None:
    with BrokerChild(tmp_path, **SETTINGS) as broker:
        await broker.start()
        async with Client(broker.address) as client:
            for topic in (OLD, GONE):
                await client.send(topic, 0, b"early")
            await client.delete_topic(GONE)
            saved = await saved_tables(broker.store)
            for topic in (NEW, LATER):
                for queue_id in range(QUEUES):
                    await client.send(topic, queue_id, b"late")
        broker.kill()
        if journal != "whole":
            for path, data in saved.items():
                path.write_bytes(data)
            cut_journal(broker.store, NEW.encode() + (b'"' if journal == "torn" else b""))
        if queues == "lost":
            shutil.rmtree(broker.store / "consumequeue")
        await broker.start()
        async with Client(broker.address) as client:
            topics = await client.topics()
            assert {OLD, NEW, LATER} <= topics.keys()
            assert GONE not in topics
            for topic in (NEW, LATER):
                assert topics[topic] >= QUEUES
                for queue_id in range(QUEUES):
                    _, records = await client.read_queue(topic, queue_id)
                    assert [record.body for record in records] == [b"late"]
        adopted = {event["topic"] for event in broker.events("topic.adopted")}
        assert adopted == (set() if journal == "whole" else {NEW, LATER})
        broker.kill()
        await broker.start()
        async with Client(broker.address) as client:
            topics = await client.topics()
            assert {OLD, NEW, LATER} <= topics.keys()
            assert GONE not in topics
        assert len(read_log(broker.store)[0]) == 3 + 2 * QUEUES  # with the mark of the deletion
        assert await broker.stop() == 0


HALF: Final = 4
COMMIT: Final = 8
DELETED: Final = "DeletedTopic"


async def send_waiting(client: Client, kind: str, topic: str) -> EndTransaction | None:
    """Send a message that waits in the broker; return the request that commits it."""
    if kind == "delayed":
        await client.send(topic, 2, b"late", level=3)
        return None
    if kind == "timed":  # two hops: 10 and 5 s
        text = "TIMER_DELAY_SEC\x0112\x02UNIQ_KEY\x01U"
        header = SendMessageV2("P", topic, "TBW102", QUEUES, 2, 0, 0, 0, text)
        await client.ask(RequestCode.SEND_MESSAGE_V2, header, b"late")
        return None
    text = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01U"
    header = SendMessageV2("P", topic, "TBW102", QUEUES, 2, HALF, 0, 0, text)
    sent = (await client.ask(RequestCode.SEND_MESSAGE_V2, header, b"late")).header
    offset = int(sent.msg_id[16:], 16)
    return EndTransaction("P", sent.queue_offset, offset, COMMIT, "U")


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("kind", ["delayed", "timed", "half"])
async def test_messages_that_wait_bring_their_topic_along(
    tmp_path: Path, kind: str, starts: int
) -> None:
    """A topic whose messages all wait has no queues from which recovery could find it."""
    with BrokerChild(tmp_path, **SETTINGS) as broker:
        await broker.start()
        async with Client(broker.address) as client:
            for topic in (OLD, GONE):
                await client.send(topic, 0, b"early")
            gone = await send_waiting(client, kind, GONE)
            await client.delete_topic(GONE)
            saved = await saved_tables(broker.store)
            new = await send_waiting(client, kind, NEW)
            deleted = await send_waiting(client, kind, DELETED)
        broker.kill()
        for path, data in saved.items():
            path.write_bytes(data)
        cut_journal(broker.store, NEW.encode())
        await broker.start()
        adopted = {event["topic"] for event in broker.events("topic.adopted")}
        assert adopted == {NEW, DELETED}
        if starts == 2:
            broker.kill()
            await broker.start()
        async with Client(broker.address) as client:
            await client.delete_topic(DELETED)
            for end in (gone, deleted, new):
                if end is not None:
                    await client.ask(RequestCode.END_TRANSACTION, end)

            async def is_delivered() -> bool:
                return (await client.bounds(NEW, 2))[1] == 1

            await until(is_delivered, 30)
            _, records = await client.read_queue(NEW, 2)
            assert [record.body for record in records] == [b"late"]
            topics = await client.topics()
            assert topics[NEW] == QUEUES
            assert not {GONE, DELETED} & topics.keys()
        assert await broker.stop() == 0
