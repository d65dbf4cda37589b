# SPDX-License-Identifier: Apache-2.0
"""Messages that were damaged after a broker stored them: every client names them."""

import logging
from collections.abc import Callable

import pytest

from cometmq.client import (
    AdminClient,
    DamagedMessage,
    InvalidArgument,
    MessageExt,
    PullConsumer,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.listening import QUEUE_0, Recorder, consumer_of, send, texts

BODY_AT = 88  # in a record whose hosts have IPv4 addresses
LOGGER = logging.getLogger("app.damage")  # noqa: TID251  # the logger of a program


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the logged lines."""
    caplog.set_level(logging.ERROR, LOGGER.name)
    return lambda: [record.getMessage() for record in caplog.records]


async def store_five(cluster: MemoryCluster, number: int, *, body: bytes | None) -> None:
    """Store five messages; then change the body of one, or make the broker leave it out."""
    await send(cluster, *texts(5))
    queues = cluster.broker.queues
    (record,) = queues.read("T", 0, number, 1)
    assert record[BODY_AT : BODY_AT + 1] == b"%d" % number
    damaged = b"" if body is None else record[:BODY_AT] + body + record[BODY_AT + 1 :]
    queues.replace("T", 0, number, damaged)


async def test_a_listener_gets_a_damaged_body_and_the_log_names_it(
    cluster: MemoryCluster, errors: Callable[[], list[str]]
) -> None:
    await store_five(cluster, 2, body=b"x")
    seen = Recorder()
    async with consumer_of(cluster, seen, log=LOGGER):
        await eventually(lambda: len(seen.bodies) == 5)
    assert [type(message) for message in seen.messages] == [
        DamagedMessage if number == 2 else MessageExt for number in range(5)
    ]
    assert seen.messages[2].body == b"x"
    assert cluster.committed("cg", "T")[QUEUE_0] == 5
    (text,) = errors()
    assert text.startswith("message.damaged topic=T broker=broker-a queue_id=0 queue_offset=2")
    assert f"the body of message {seen.messages[2].message_id}, at queue offset 2 of T" in text


@pytest.mark.parametrize(("numbers", "name"), [((3,), "3"), ((1, 2, 4), "1-2 4")])
async def test_messages_that_a_broker_leaves_out_are_named(
    cluster: MemoryCluster,
    errors: Callable[[], list[str]],
    numbers: tuple[int, ...],
    name: str,
) -> None:
    await store_five(cluster, numbers[0], body=None)
    for number in numbers[1:]:
        cluster.broker.queues.replace("T", 0, number, b"")
    async with PullConsumer("pull", cluster.namesrv, log=LOGGER) as consumer:
        found = await consumer.pull(QUEUE_0, 0)
        assert (len(found.messages), found.next_offset) == (5 - len(numbers), 5)
        (line,) = errors()
        await consumer.pull(QUEUE_0, 0, expression="A")  # a filter leaves out messages as well
    assert f"the broker left out the messages at queue offset {name} of T" in line
    assert len(errors()) == 1


async def test_a_pull_without_any_message_left_names_them(
    cluster: MemoryCluster, errors: Callable[[], list[str]]
) -> None:
    await store_five(cluster, 4, body=None)
    async with PullConsumer("pull", cluster.namesrv, log=LOGGER) as consumer:
        await consumer.pull(QUEUE_0, 4)
    assert "messages.missing" in errors()[0]


async def test_a_member_reports_a_queue_at_most_every_half_minute(
    cluster: MemoryCluster, errors: Callable[[], list[str]]
) -> None:
    """Otherwise two members with different subscriptions would log every pull."""
    await store_five(cluster, 1, body=None)
    cluster.broker.queues.replace("T", 0, 3, b"")
    seen = Recorder()
    async with consumer_of(cluster, seen, log=LOGGER) as consumer:
        await eventually(lambda: len(seen.bodies) == 3)
        await send(cluster, *texts(1))
        await eventually(lambda: len(seen.bodies) == 4)
        assert consumer.stats().consumed_count == 4
    (line,) = errors()
    assert "queue offset 1 3 of T" in line
    assert "another member of the group has a different subscription" in line


async def test_the_admin_client_reports_damage_and_sends_no_damaged_message_again(
    cluster: MemoryCluster, errors: Callable[[], list[str]]
) -> None:
    await store_five(cluster, 2, body=b"x")
    cluster.broker.queues.replace("T", 0, 3, b"")
    async with AdminClient(cluster.namesrv, log=LOGGER) as admin:
        pages = [page async for page in admin.read(QUEUE_0, 0, 5)]
        assert [message.body for message in pages[0].messages] == [b"0", b"1", b"x", b"4"]
        with pytest.raises(InvalidArgument, match="not sent again: the body of message"):
            await admin.resend(pages[0].messages[2])
    events = sorted(line.partition(" ")[0] for line in errors())
    assert events == ["message.damaged", "messages.missing"]
