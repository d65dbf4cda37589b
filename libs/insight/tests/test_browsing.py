# SPDX-License-Identifier: Apache-2.0
"""Reading messages of a running suite by offset, time and filter."""

import pytest

from cometmq.client import Message, Producer
from cometmq.client.errors import InvalidArgument, NoRoute
from cometmq.client.message import UnreadableMessage
from cometmq.insight import browsing
from cometmq.insight.browsing import Wanted, browse


@pytest.fixture
async def shelf(suite, admin):
    """Return a topic with one queue of ten messages with tags and a property."""
    await admin.create_topic("Shelf", queue_count=1)
    (queue,) = await admin.queues("Shelf")
    if not await admin.max_offset(queue):
        async with Producer("shelf-producers", namesrv=suite.namesrv) as producer:
            for at in range(10):
                tag = "even" if at % 2 == 0 else "odd"
                body = b"%d" % at
                await producer.send(Message("Shelf", body, tag=tag, properties={"n": str(at)}))
    return queue


async def read(admin, **wanted):
    found = await browse(admin, Wanted(topic="Shelf", **wanted))
    return b"".join(it.body for it in found.messages).decode(), list(found.notes)


async def test_the_newest_messages_are_read(admin, shelf):
    assert await read(admin, count_max=3) == ("789", [])
    assert (await read(admin, count_max=50))[0] == "0123456789"


async def test_messages_are_read_from_an_offset(admin, shelf):
    place = {"broker": shelf.broker_name, "queue_id": 0}
    assert await read(admin, offset=8, **place) == ("89", [])
    assert (await read(admin, offset=2, count_max=3, **place))[0] == "234"
    outside = await browse(admin, Wanted(topic="Shelf", offset=11, **place))
    assert "has the offsets 0 to 10, not 11" in outside.unanswered[f"{shelf.broker_name}:0"]


async def test_messages_are_read_of_a_time(admin, shelf):
    all_of_them = await browse(admin, Wanted(topic="Shelf"))
    at_ms = all_of_them.messages[4].store_timestamp
    found, _ = await read(admin, begin_ms=at_ms)
    assert found.endswith("456789"[-len(found) :])
    assert "9" in found
    assert (await read(admin, begin_ms=0, end_ms=at_ms))[0] == "0123"[
        : len([it for it in all_of_them.messages if it.store_timestamp < at_ms])
    ]


async def test_filters_are_applied_by_the_broker(admin, shelf):
    assert (await read(admin, tag="even"))[0] == "02468"
    assert (await read(admin, tag="odd", count_max=2))[0] == "79"
    assert (await read(admin, sql="n > 6"))[0] == "789"
    with pytest.raises(InvalidArgument, match="n >"):
        await browse(admin, Wanted(topic="Shelf", sql="n >"))
    assert "tags are separated by '||'" in (await read(admin, tag="even, odd"))[1][0]


async def test_a_long_search_says_where_it_ended(admin, shelf, monkeypatch):
    monkeypatch.setattr(browsing, "PULL_COUNT_MAX", 2)
    monkeypatch.setattr(browsing, "SCANNED_MAX", 4)
    _, notes = await read(admin, begin_ms=0)
    assert "reading ended at offset 4 of 10: 4 messages were looked at" in notes[0]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"tag": "a", "sql": "b > 1"}, "not both"),
        ({"offset": 1}, "an offset needs a broker and a queue"),
        ({"count_max": 0}, "between 1 and 500"),
        ({"queue_id": 77}, "no such queue"),
    ],
)
async def test_contradictions_are_refused(admin, shelf, wanted, reason):
    with pytest.raises(InvalidArgument, match=reason):
        await browse(admin, Wanted(topic="Shelf", **wanted))


async def test_an_unknown_topic_is_an_error(admin):
    with pytest.raises(NoRoute):
        await browse(admin, Wanted(topic="NoSuchTopic"))


async def test_a_body_that_expands_far_stays_compressed(suite, admin, monkeypatch):
    """Eight queues are read at once, and each body could have 64 MiB."""
    monkeypatch.setattr(browsing, "BODY_BYTES_MAX", 64 * 1024)
    await admin.create_topic("Swollen", queue_count=1)
    bodies = [bytes(1 << 20), bytes(60 * 1024), b"small", bytes(1 << 20), bytes(60 * 1024)]
    async with Producer("shelf-producers", namesrv=suite.namesrv) as producer:
        for body in bodies:
            await producer.send(Message("Swollen", body))
    found = await browse(admin, Wanted(topic="Swollen"))
    assert [isinstance(it, UnreadableMessage) for it in found.messages] == [
        len(body) > 64 * 1024 for body in bodies
    ]
    assert max(len(it.body) for it in found.messages) <= 64 * 1024
    whole = await admin.stored_message(found.messages[0].offset_message_id)
    assert whole.body == bodies[0]
