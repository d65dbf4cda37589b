# SPDX-License-Identifier: Apache-2.0
"""Messages that were damaged after a broker stored them: every client reports them."""

import logging
from collections.abc import Callable

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    DamagedMessage,
    InvalidArgument,
    MessageExt,
    PullConsumer,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.transfer.pulled import REPORT_EVERY_MS, MissingMessages
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts

BODY_AT = 88  # in a record whose hosts have IPv4 addresses
LOGGER = logging.getLogger("app.damage")  # noqa: TID251  # the logger of a program


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the logged lines."""
    caplog.set_level(logging.ERROR, LOGGER.name)
    return lambda: [record.getMessage() for record in caplog.records]


class Reports:
    """A log that records the counts and texts of errors."""

    def __init__(self) -> None:
        self.counts: list[object] = []
        self.texts: list[str] = []

    def debug(self, _event: str, /, **_: object) -> None:
        pass

    info = warning = debug

    def error(self, _event: str, /, **facts: object) -> None:
        self.counts.append(facts["count"])
        self.texts.append(str(facts["error"]))


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
    count = f"{len(numbers)} message{'s' * (len(numbers) > 1)}"
    assert f"the broker left out {count} at queue offset {name} of T" in line
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


async def test_a_member_reports_all_missing_messages_at_its_end(
    cluster: MemoryCluster, errors: Callable[[], list[str]]
) -> None:
    await send(cluster, *texts(100))
    for number in (3, *range(40, 80), 90):
        cluster.broker.queues.replace("T", 0, number, b"")
    seen = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, pull_count_max=16)
    async with consumer_of(cluster, seen, options, log=LOGGER):
        await eventually(lambda: len(seen.bodies) == 58)
        assert len(errors()) == 1
    first, rest = errors()
    assert "left out 1 message at queue offset 3 of T" in first
    assert "left out 41 messages at queue offset 40-79 90 of T" in rest


def test_missing_messages_of_a_queue_are_reported_together() -> None:
    log, now_ms = Reports(), 0
    missing = MissingMessages(log, may_be_filtered=False, clock_ms=lambda: now_ms)
    missing.note(QUEUE_0, [range(5, 6)])
    missing.note(QUEUE_0, [range(10, 20)])
    missing.note(QUEUE_0, [range(20, 25), range(30, 31)])
    missing.check(QUEUE_0)
    assert log.counts == [1]
    now_ms = REPORT_EVERY_MS
    missing.check(QUEUE_0)
    missing.check(QUEUE_0)
    assert log.counts == [1, 16]
    assert "offset 10-24 30 of" in log.texts[1]
    missing.note(QUEUE_0, [range(at, at + 2) for at in range(100, 1000, 3)])
    missing.forget(QUEUE_0)
    assert log.counts == [1, 16, 600]
    assert "left out 600 messages at queue offset 100-101 103-104" in log.texts[2]
    assert "397-398 and 400 after them of" in log.texts[2]
    missing.close()
    assert len(log.counts) == 3


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
