# SPDX-License-Identifier: Apache-2.0
"""Previews of resets agree with what the reset then does."""

import pytest

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin import END, AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.client.testing import eventually
from cometmq.insight.changes.preview import preview_offsets, preview_reset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig


@pytest.fixture
async def read(suite, admin):
    """Return a topic with one queue of six messages, of which a group has read two."""
    topic = "Previewed"
    await admin.create_topic(topic, queue_count=1)
    await admin.create_group(SubscriptionGroupConfig(group_name="previewers"))
    (queue,) = await admin.queues(topic)
    if not await admin.max_offset(queue):
        async with Producer("previewers-p", namesrv=suite.namesrv) as producer:
            for at in range(6):
                await producer.send(Message(topic, b"%d" % at))
    await admin.commit_offset("previewers", queue, 2)
    return topic, queue


async def test_members_that_keep_their_own_offsets_all_move(suite, admin, read, tmp_path):
    topic, _ = read
    bodies: list[bytes] = []
    consumer = PushConsumer(
        "previewers-all",
        suite.namesrv,
        listener=lambda messages: bodies.extend(it.body for it in messages),
        options=PushOptions(
            message_model=MessageModel.BROADCASTING,
            offsets_dir=str(tmp_path),
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ),
    )
    consumer.subscribe(topic)
    async with consumer:
        await eventually(lambda: len(bodies) == 6)
        found = await preview_reset(admin, "previewers-all", topic, 0)
        (move,) = found.moves
        assert (move.wanted, found.redelivered, found.skipped) == (0, None, None)
        for does in (preview_reset, AdminClient.reset_offsets):
            with pytest.raises(InvalidArgument, match="previewers-all keep their own offsets"):
                await does(admin, "previewers-all", topic, 0, is_forced=False)
        assert len(bodies) == 6
        await admin.reset_offsets("previewers-all", topic, 0)
        await eventually(lambda: len(bodies) == 12)


@pytest.mark.parametrize(
    ("to", "is_forced", "redelivered", "skipped"),
    [(0, True, 2, 0), (END, True, 0, 4), (END, False, 0, 0), (0, False, 2, 0)],
)
async def test_a_reset_does_what_its_preview_says(admin, read, to, is_forced, redelivered, skipped):
    topic, queue = read
    found = await preview_reset(admin, "previewers", topic, to, is_forced=is_forced)
    (move,) = found.moves
    assert (move.committed, found.redelivered, found.skipped) == (2, redelivered, skipped)
    assert (move.from_ms is None) is (not redelivered and not skipped)
    assert await admin.committed_offset("previewers", queue) == 2
    await admin.reset_offsets("previewers", topic, to, is_forced=is_forced)
    assert await admin.committed_offset("previewers", queue) == move.wanted


async def test_a_time_selects_the_nearest_message(admin, read):
    topic, queue = read
    stored = await admin.broker((await admin.masters_of(topic))[0].address).pull(topic, 0, 4)
    at_ms = stored.messages[0].store_timestamp
    found = await preview_reset(admin, "previewers", topic, at_ms)
    (move,) = found.moves
    assert move.wanted == await admin.search_offset(queue, at_ms)
    assert (move.to_ms is not None) is (move.skipped != move.redelivered)


async def test_single_offsets_are_previewed(admin, read):
    topic, queue = read
    found = await preview_offsets(admin, "previewers", topic, {queue: 5})
    assert (found.skipped, found.redelivered) == (3, 0)
    with pytest.raises(InvalidArgument, match="the offset 7 is outside queue 0"):
        await preview_offsets(admin, "previewers", topic, {queue: 7})
    other = MessageQueue(topic, queue.broker_name, 9)
    with pytest.raises(InvalidArgument, match="has no queue 9"):
        await preview_offsets(admin, "previewers", topic, {other: 0})


async def test_an_unknown_group_is_refused(admin, read):
    with pytest.raises(InvalidArgument, match="no broker knows the consumer group nobody"):
        await preview_reset(admin, "nobody", read[0], 0)
    new = await preview_reset(admin, "nobody", read[0], END, is_new_group=True)
    assert (new.moves[0].committed, new.skipped) == (None, 6)
