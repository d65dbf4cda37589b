# SPDX-License-Identifier: Apache-2.0
"""The life of messages on a running suite."""

import msgspec

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.testing import eventually
from cometmq.insight.life import Happening, life_of
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import ServerError


def kinds(life):
    return [it.happening for it in life.events]


async def test_a_message_dies_and_is_replayed(suite, admin):
    topic, group = "Lived", "livers"
    await admin.create_topic(topic, queue_count=1)
    await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=0))
    async with Producer("lived-producers", namesrv=suite.namesrv) as producer:
        sent = await producer.send(Message(topic, b"x", keys=("k",)))
    message = await admin.view_message(sent.message_id, topic)
    young = await life_of(admin, message)
    assert kinds(young)[:2] == [Happening.SENT, Happening.STORED]
    assert young.events[1].place.endswith("0, offset 0")

    async def give_up(_messages):
        return ConsumeResult.DEAD_LETTER

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0)
    consumer = PushConsumer(group, suite.namesrv, listener=give_up, options=options)
    consumer.subscribe(topic)

    async def dead():
        return [it async for it in admin.dead_letters(group)]

    async with consumer:
        (letter,) = await eventually(dead)
        await eventually(lambda: _committed(admin, group, topic))
        seen = await life_of(admin, message)
    assert Happening.DEAD in kinds(seen)
    assert Happening.READ in kinds(seen)
    (died,) = [it for it in seen.events if it.happening is Happening.DEAD]
    assert (died.topic, died.message) == (letter.queue.topic, letter.offset_message_id)
    after = await life_of(admin, letter)  # the dead letter leads back to its original, once
    linked = [(it.topic, it.message) for it in after.events if it.message]
    assert linked == [(topic, message.offset_message_id)]
    await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=1))
    await admin.replay(letter, group)

    async def replayed():
        return Happening.REPLAYED in kinds(await life_of(admin, message))

    await eventually(replayed)
    full = await life_of(admin, message)
    assert Happening.REPLAYED in kinds(await life_of(admin, letter))
    timed = [it.at_ms for it in full.events if it.at_ms is not None]
    assert timed == sorted(timed)
    assert full.events[-1].at_ms is None  # states of now come last
    assert f"{group} has no connected member" in [it.text for it in full.events]

    def outcome(life):
        last = life.events[-1]
        return last.happening, last.text, last.topic

    copy = f"%RETRY%{group}"
    unread = await life_of(admin, letter)
    assert outcome(unread) == (Happening.WAITS, f"{group} has not read it yet", copy)

    async def accept(_messages):
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(group, suite.namesrv, listener=accept, options=options)
    consumer.subscribe(topic)
    async with consumer:

        async def is_read():
            found = await life_of(admin, letter)
            return outcome(found) == (Happening.READ, f"{group} has read it", copy)

        await eventually(is_read)


async def _committed(admin, group, topic):
    (queue,) = await admin.queues(topic)
    return await admin.committed_offset(group, queue)


async def test_transactions_and_delays_are_read_from_properties(suite, admin):
    topic = "Born"
    await admin.create_topic(topic, queue_count=1)
    async with Producer("born-producers", namesrv=suite.namesrv) as producer:
        sent = await producer.send(Message(topic, b"x"))
    message = await admin.view_message(sent.message_id, topic)

    async def of(**properties):
        changed = msgspec.structs.replace(message, properties=message.properties | properties)
        return kinds(await life_of(admin, changed))[:4]

    assert (await of(TRAN_MSG="true", TRAN_PREPARED_QUEUE_OFFSET="3"))[1] is Happening.HALF
    assert Happening.COMMITTED in await of(TRAN_MSG="true")
    assert (await of(DELAY="3"))[1] is Happening.DELAYED
    timed = msgspec.structs.replace(
        message, properties=message.properties | {"DELAY": "1", "TIMER_OUT_MS": "1795168800000"}
    )
    texts = [it.text for it in (await life_of(admin, timed)).events if it.happening == "delayed"]
    assert texts == ["was delayed until 2026-11-20T10:00:00.000Z"]
    assert Happening.DELAYED not in await of(DELAY="0")  # as in dead letters


async def test_a_broker_that_does_not_answer_becomes_an_event(suite, admin):
    topic = "Gone"
    await admin.create_topic(topic, queue_count=1)
    async with Producer("gone-producers", namesrv=suite.namesrv) as producer:
        sent = await producer.send(Message(topic, b"x"))
    message = await admin.view_message(sent.message_id, topic)

    class Refusing:
        def __getattr__(self, name):
            return getattr(admin, name)

        async def message_tracks(self, _message):
            raise ServerError("no permission")

        async def broker_groups(self):
            raise ServerError("no permission")

    life = await life_of(Refusing(), message)  # type: ignore[arg-type]
    unknown = [it.text for it in life.events if it.happening is Happening.UNKNOWN]
    assert [it.partition(": ")[0] for it in unknown] == [
        "its copies are unknown",
        "who has read it is unknown",
    ]
