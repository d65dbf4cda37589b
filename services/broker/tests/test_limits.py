# SPDX-License-Identifier: Apache-2.0
"""Every limit of the table is filled to its bound: the next entry is refused, and says why."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.handlers import clients
from cometmq.broker.handlers.recalls import recall_message
from cometmq.broker.handlers.send import batch_parts
from cometmq.broker.handlers.topics import update_and_create_subscriptiongroup_list
from cometmq.broker.limits import BATCH_MESSAGES, GROUPS, LIMITS, OFFSETS, TOPICS, UNKNOWN_OFFSETS
from cometmq.broker.storing.large_puts import UnderWay
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    SubscriptionData,
)
from cometmq.remoting.bodies.locks import LockBatch
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.commands.offsets import UpdateConsumerOffset
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import RecallMessage, SendMessageV2
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.transport.dispatch import InOrder
from cometmq.runtime.limits import Limit, LimitReached, Scope
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.journals import FILE_BYTES, InlineWorker, MemoryFiles, Node
from cometmq.testing.broker.stored import ask, call_with, stored_broker
from cometmq.testing.store.memory_disk import MemoryDisk

BOUNDS = {
    "topicsMax": 30,
    "queuesMax": 2_300,
    "groupsMax": 20,
    "offsetsMax": 40,
    "groupOffsetsMax": 15,
    "unknownOffsetsMax": 10,
    "queueLocksMax": 12,
    "lockItemsMax": 11,
    "registrationsMax": 18,
    "connectionRegistrationsMax": 9,
    "heartbeatGroupsMax": 7,
    "groupSubscriptionsMax": 6,
    "subscriptionBytesMax": 36_000,
    "connectionSubscriptionBytesMax": 12_000,
    "filtersMax": 5,
    "filterCharsMax": 1_024,
    "batchMessagesMax": 8,
    "pullThreadPoolQueueCapacity": 10,
    "recalledMax": 6,
    "journalBytesMax": 48 * 1024**2,
}
PEER = FakePeer()
READING: list[Any] = []


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = {name: str(bound) for name, bound in BOUNDS.items()}
    settings |= {"peerShareMax": "100", "enablePropertyFilter": "true"}
    async with stored_broker(tmp_path, **settings) as broker:
        broker.tables.topics.put(
            TopicConfig(topic_name="T", read_queue_nums=1000, write_queue_nums=1000)
        )
        for name in ("G", "H", "I", "J"):
            broker.tables.groups.put(SubscriptionGroupConfig(group_name=name))
        yield broker


class Only(NamedTuple):
    """Bounds that keep a table from being stopped by another limit."""

    fill: Callable[[Broker, int], Reply | Awaitable[Reply]]
    other: Mapping[str, int] = {}


def beat(
    broker: Broker,
    *groups: ConsumerData,
    peer: FakePeer = PEER,
    producers: tuple[str, ...] = (),
    client_id: str = "c",
) -> Reply:
    body = encode_json(Heartbeat(client_id, list(groups), [ProducerData(one) for one in producers]))
    reply = ask(broker, Call(Code.HEART_BEAT, NoHeader(), body=body, peer=peer))
    assert isinstance(reply, Reply)
    return reply


def consumer(group: str, *wanted: SubscriptionData) -> ConsumerData:
    return ConsumerData(group_name=group, subscription_data_set=list(wanted))


def sql(topic: str, expression: str, version: int = 0) -> SubscriptionData:
    return SubscriptionData(
        expression_type="SQL92", sub_string=expression, sub_version=version, topic=topic
    )


def send(broker: Broker, topic: str) -> Reply:
    header = SendMessageV2("P", topic, "TBW102", 4, 0, 0, 0, 0, "")
    return answered(broker, call_with(Code.SEND_MESSAGE_V2, header, b"x"))


def answered(broker: Broker, call: Call[Any]) -> Reply:
    reply = ask(broker, call)
    assert isinstance(reply, Reply)
    return reply


def commit(broker: Broker, group: str, topic: str, queue_id: int, offset: int = 5) -> Reply:
    header = UpdateConsumerOffset(group, topic, queue_id, offset)
    return answered(broker, call_with(Code.UPDATE_CONSUMER_OFFSET, header))


def lock(broker: Broker, *queues: MessageQueue) -> Reply:
    body = encode_json(LockBatch("c", "G", list(queues)))
    return answered(broker, Call(Code.LOCK_BATCH_MQ, NoHeader(), body=body, peer=PEER))


def batch(broker: Broker, count: int) -> Reply:
    header = SendMessageV2("P", "T", "TBW102", 4, 0, 0, 0, 0, "", batch=True)
    body = join_batch([BatchItem(0, b"x")] * count)
    return answered(broker, call_with(Code.SEND_BATCH_MESSAGE, header, body))


def read_batch(broker: Broker, **fields: Any) -> Reply:
    """Read a batch of one message."""
    call = call_with(Code.SEND_BATCH_MESSAGE, NoHeader())
    message = NewMessage("T", 0, 0, 0, 0, bytes(8), bytes(8), b"x", **fields)
    try:
        for _ in batch_parts(iter([message]), broker.admission.room(call)):
            pass
    except LimitReached as error:
        return Reply(error.code, remark=error.remark)
    return Reply()


def begin(under_way: Callable[[Broker], UnderWay], size: int) -> Callable[[Broker, int], Reply]:
    """Return a function that begins to serve a request of this size, and never ends."""

    def fill(broker: Broker, _number: int) -> Reply:
        call = call_with(Code.HEART_BEAT, NoHeader())
        serving = under_way(broker).counting(size, broker.admission.room(call))
        try:
            READING.append(serving)
            serving.__enter__()
        except LimitReached as error:
            return Reply(error.code, remark=error.remark)
        return Reply()

    return fill


def hold(broker: Broker, _number: int) -> Reply:
    header = PullMessage("G", "T", 1, 0, 32, 6, 0, 60_000, 0, "*", "TAG")
    return ask(broker, call_with(Code.PULL_MESSAGE, header)) or Reply()


async def recall(broker: Broker, number: int, address: str = PEER.address) -> Reply:
    """Recall a new delayed message."""
    text = f"UNIQ_KEY\x01K{number}\x02DELAY\x0118"
    answered(broker, call_with(Code.SEND_MESSAGE_V2, SendMessageV2(
        "P", "T", "TBW102", 4, 0, 0, 0, 0, text), b"x"))  # fmt: skip
    handle = RecallHandle("T", broker.settings.broker_name, 0, f"K{number}").encode()
    call = Call(Code.RECALL_MESSAGE, RecallMessage("T", handle), peer=FakePeer(address))
    try:
        await recall_message(broker, call)
    except LimitReached as error:
        return Reply(error.code, remark=error.remark)
    return Reply()


async def list_groups(broker: Broker, number: int) -> Reply:
    """Change the same group `500 * number` times in one request."""
    items = [SubscriptionGroupConfig(group_name="G")] * (500 * number)
    call = call_with(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoHeader(),
        encode_json(SubscriptionGroupList(items)))  # fmt: skip
    try:
        return await update_and_create_subscriptiongroup_list(broker, call)
    except LimitReached as error:
        return Reply(error.code, remark=error.remark)


def alter(broker: Broker, number: int) -> Reply:
    """Change the same offset again and again, while no table can be saved."""
    reply = commit(broker, "G", "T", 0, number)
    broker.tables.journal.write()  # type: ignore[union-attr]  # set by the test
    return reply


FILLS: Mapping[str, Only] = {
    "topics": Only(lambda broker, number: send(broker, f"N{number}")),
    "queues": Only(lambda broker, number: send(broker, f"N{number}"), {"topicsMax": 1000}),
    "groups": Only(
        lambda broker, number: beat(broker, consumer(f"N{number}")),
        {"connectionRegistrationsMax": 1000, "registrationsMax": 1000, "topicsMax": 1000},
    ),
    "offsets": Only(lambda broker, number: commit(broker, "GHIJ"[number // 14], "T", number)),
    "group_offsets": Only(lambda broker, number: commit(broker, "G", "T", number)),
    "unknown_offsets": Only(lambda broker, number: commit(broker, "G", f"N{number}", 0)),
    "queue_locks": Only(lambda broker, number: lock(broker, MessageQueue("T", "b", number))),
    "lock_items": Only(
        lambda broker, number: lock(broker, *[MessageQueue("T", "b", 0)] * (number + 1))
    ),
    "lock_names": Only(
        lambda broker, number: lock(broker, MessageQueue("T" * (number + 1), "b", 0)),
        {"queueLocksMax": 1000},
    ),
    "registrations": Only(
        lambda broker, number: beat(
            broker, peer=FakePeer(f"127.0.0.1:{number}"), producers=(f"P{number}",)
        )
    ),
    "connection_registrations": Only(
        lambda broker, number: beat(broker, producers=(f"P{number}",), client_id=f"c{number}")
    ),
    "client_id_chars": Only(
        lambda broker, number: beat(broker, producers=("P",), client_id="c" * 50 * number)
    ),
    "heartbeat_items": Only(begin(lambda broker: broker.pending.heartbeats, 60_000)),
    "heartbeat_groups": Only(
        lambda broker, number: beat(broker, producers=tuple(f"P{i}" for i in range(number + 1)))
    ),
    "group_subscriptions": Only(
        lambda broker, number: beat(
            broker, consumer("G", *(SubscriptionData(topic=f"T{i}") for i in range(number + 1)))
        )
    ),
    "subscription_bytes": Only(
        lambda broker, number: beat(
            broker, peer=FakePeer(f"127.0.0.1:{number}"), producers=("P",), client_id="c" * 250
        ),
        {"registrationsMax": 1000},
    ),
    "connection_subscription_bytes": Only(
        lambda broker, number: beat(
            broker, consumer("GHIJ"[number], SubscriptionData(topic="T", sub_string="x" * 3000)),
            client_id=f"c{number}",
        )
    ),
    "filters": Only(
        lambda broker, number: beat(broker, consumer("G", *_filters(number))),
        {"connectionSubscriptionBytesMax": 100_000, "subscriptionBytesMax": 100_000,
         "groupSubscriptionsMax": 100},
    ),
    "filter_chars": Only(
        lambda broker, number: beat(
            broker, consumer("G", sql("T", "a = 1" + " " * 100 * number, version=number))
        ),
        {"connectionSubscriptionBytesMax": 100_000},
    ),
    "heartbeat_filter_chars": Only(
        lambda broker, number: beat(broker, consumer("G", sql("T", "a = 1".ljust(8_192 * number)))),
        {"connectionSubscriptionBytesMax": 100_000, "subscriptionBytesMax": 100_000,
         "filterCharsMax": 100_000},
    ),
    "list_items": Only(list_groups),
    "batch_messages": Only(lambda broker, number: batch(broker, number + 1)),
    "batch_keys": Only(lambda broker, number: read_batch(broker, keys=("k",) * number * 100_000)),
    "batch_property_chars": Only(
        lambda broker, number: read_batch(broker, properties="x" * (number << 23))
    ),
    "batch_bytes": Only(begin(lambda broker: broker.pending.large_batches, 32 << 20)),
    "questions": Only(begin(lambda broker: broker.pending.questions, 20_000)),
    "reply_bytes": Only(begin(lambda broker: broker.pending.replies, 32 << 20)),
    "copy_bytes": Only(begin(lambda broker: broker.pending.copies, 32 << 20)),
    "held_pulls": Only(hold),
    "recalled": Only(recall),
    "journal_bytes": Only(alter),
}  # fmt: skip


def _filters(number: int) -> list[SubscriptionData]:
    return [sql(f"T{i}", f"a = {i}") for i in range(number + 1)]


UNDER_WAY = {
    "heartbeats": "heartbeat_items",
    "large_batches": "batch_bytes",
    "questions": "questions",
    "replies": "reply_bytes",
    "copies": "copy_bytes",
}
"""The limit of each kind of request that takes long."""


def limit_of(name: str) -> Limit:
    return next(limit for limit in LIMITS if limit.name == name)


def test_every_limit_is_tried_here() -> None:
    assert {limit.name for limit in LIMITS} == {*FILLS, "statistics"}
    assert len({limit.name for limit in LIMITS}) == len(LIMITS)


def test_every_total_has_a_metric(broker: Broker) -> None:
    totals = {limit.name for limit in LIMITS if limit.scope is Scope.TOTAL}
    assert broker.admission.limits.used.keys() == totals


@pytest.mark.parametrize("name", FILLS)
async def test_a_full_table_refuses_and_says_why(broker: Broker, name: str) -> None:
    limit, (fill, other) = limit_of(name), FILLS[name]
    _replace(broker, **other)
    if name == "journal_bytes":
        _journal(broker)
    bound = broker.admission.limits.maximum(limit)

    numbers = count()
    reply = await _done(fill(broker, next(numbers)))
    while not reply.code and (number := next(numbers)) <= 3 * bound + 1:
        reply = await _done(fill(broker, number))

    assert reply.code == (limit.answer or 0)
    if limit.answer is not None:
        assert broker.admission.limits.refused[name] == 1
        assert reply.remark is not None
        assert "limit reached: " + limit.counts in reply.remark
        assert (limit.setting or "the limit is fixed") in reply.remark
    if name in broker.admission.limits.used:
        used = broker.admission.limits.used[name]()
        assert 0 < used <= bound
        for number in range(1000, 1010):
            if name != "connection_subscription_bytes":
                await _done(fill(broker, number % 14 if name == "offsets" else number))
        assert broker.admission.limits.used[name]() <= bound


async def _done(reply: Reply | Awaitable[Reply]) -> Reply:
    found = await reply if isawaitable(reply) else reply
    if not isinstance(found.header, InOrder):
        return found
    try:
        done = await found.header
    except LimitReached as error:
        return Reply(error.code, remark=error.remark)
    assert isinstance(done, Reply)
    return done


def _replace(broker: Broker, **bounds: int) -> None:
    names = {field.encode_name: field.name for field in msgspec.structs.fields(broker.settings)}
    changes = {names[name]: bound for name, bound in bounds.items()}
    settings = msgspec.structs.replace(broker.settings, **changes)
    broker.apply(msgspec.structs.replace(broker.config.loaded, value=settings))


def _journal(broker: Broker) -> None:
    """Give the broker a journal whose tables cannot be saved."""
    node = Node(MemoryDisk(), MemoryFiles(), worker=InlineWorker(is_dead=True))
    broker.tables.journal, broker.tables.offsets = node.journal, node.offsets
    _replace(broker, journalBytesMax=4 * FILE_BYTES)


def test_statistics_above_the_limit_are_kept_together(broker: Broker) -> None:
    limit = limit_of("statistics")
    for number in range(limit.fixed // 2 + 10):
        broker.stats.count_put(f"T{number}", 1, 1)
    assert broker.admission.limits.used[limit.name]() <= limit.fixed
    assert broker.stats.put_count == limit.fixed // 2 + 10


@pytest.mark.parametrize(
    ("limit", "fill"),
    [
        (TOPICS, lambda broker, number: send(broker, f"N{number}")),
        (GROUPS, lambda broker, number: beat(broker, consumer(f"N{number}"))),
        (OFFSETS, lambda broker, number: commit(broker, "GH"[number // 15], "T", number)),
        (UNKNOWN_OFFSETS, lambda broker, number: commit(broker, "G", f"N{number}", 0)),
    ],
    ids=["topics", "groups", "offsets", "unknown_offsets"],
)
async def test_no_peer_fills_a_table_alone(
    broker: Broker, limit: Limit, fill: Callable[[Broker, int], Reply]
) -> None:
    others = {"connectionRegistrationsMax": 1000, "registrationsMax": 1000, "groupsMax": 80}
    _replace(broker, peerShareMax=50, **others)
    share = broker.admission.limits.maximum(limit) // 2

    refused = next(number for number in count() if fill(broker, number).code)

    assert refused <= share
    assert broker.admission.limits.used[limit.name]() < broker.admission.limits.maximum(limit)
    reply = fill(broker, refused)
    assert reply.remark is not None
    assert "the address 127.0.0.1 has " in reply.remark
    assert "peerShareMax" in reply.remark
    assert beat(broker, consumer("N"), peer=FakePeer("10.0.0.7:5")).code == 0


@pytest.mark.parametrize("name", UNDER_WAY)
async def test_what_one_peer_has_under_way_leaves_room_for_others(
    broker: Broker, name: str
) -> None:
    _replace(broker, peerShareMax=50)
    under_way: UnderWay = getattr(broker.pending, name)
    size = limit_of(UNDER_WAY[name]).fixed // 4

    def begin_for(address: str) -> AbstractContextManager[None]:
        call = Call(Code.HEART_BEAT, NoHeader(), peer=FakePeer(address))
        return under_way.counting(size, broker.admission.room(call))

    with begin_for("10.0.0.6:1"), begin_for("10.0.0.6:2"):
        with (
            pytest.raises(LimitReached, match=r"the address 10\.0\.0\.6 has"),
            begin_for("10.0.0.6:3"),
        ):
            pass
        with begin_for("10.0.0.7:1"), begin_for("10.0.0.7:2"):
            assert under_way.size == 4 * size
            with pytest.raises(LimitReached, match="try again later"), begin_for("10.0.0.8:1"):
                pass
    with begin_for("10.0.0.6:1"), begin_for("10.0.0.6:2"):
        assert under_way.size == 2 * size


async def test_the_filters_of_one_peer_leave_characters_for_others(broker: Broker) -> None:
    _replace(broker, peerShareMax=50, connectionSubscriptionBytesMax=100_000)
    long = consumer("G", sql("T", "a = 1".ljust(500)))
    for length in (300, 400, 100, 500):
        assert beat(broker, consumer("G", sql("T", "a = 1".ljust(length)))).code == 0
    reply = beat(broker, consumer("H", sql("T", "a = 1".ljust(500))))
    assert reply.code == limit_of("filter_chars").answer
    assert "peerShareMax" in str(reply.remark)
    assert beat(broker, long).code == 0, "it remains"
    other = FakePeer("10.0.0.7:5")
    assert beat(broker, consumer("I", sql("T", "a = 2".ljust(400))), peer=other).code == 0


async def test_only_messages_that_are_recalled_now_count_against_a_peer(broker: Broker) -> None:
    """A peer that has recalled many messages over time could recall none while others' filled the
    table.
    """
    _replace(broker, peerShareMax=50)
    recalled = broker.deferred.delays.positions.recalled
    for number in range(5):
        assert (await recall(broker, number)).code == 0
        for level in (17, 18):
            recalled.drop_below(level, 1_000)
    for number in range(5, 8):
        assert (await recall(broker, number, "10.0.0.7:5")).code == 0
    assert (await recall(broker, 8, "10.0.0.7:5")).code == limit_of("recalled").answer
    for number in range(9, 12):
        assert (await recall(broker, number)).code == 0


async def test_a_client_at_the_limit_keeps_its_groups(broker: Broker) -> None:
    _replace(broker, groupsMax=len(broker.tables.groups.table) + 1)
    reply = beat(broker, consumer("N1"), consumer("N2"), consumer("N1"), producers=("P",))
    assert reply.code == GROUPS.answer
    assert broker.clients.consumers.group("N1") is not None
    assert broker.clients.consumers.group("N2") is None, "its pulls would be refused"
    assert broker.clients.producers.clients("P")

    assert beat(broker, consumer("N1"), consumer("N2"), producers=("P",)).code == GROUPS.answer
    assert broker.clients.registered.count == 2


async def test_registrations_are_given_back(broker: Broker) -> None:
    wanted = SubscriptionData(topic="T", sub_string="a || b")
    beat(broker, consumer("G", wanted), consumer("H"), producers=("P", "Q"))
    assert (broker.clients.registered.count, broker.clients.registered.size > 0) == (4, True)
    beat(broker, consumer("G"), consumer("H"), producers=("P", "Q"))

    leaving = UnregisterClient("c", producer_group="P", consumer_group="G")
    answered(broker, Call(Code.UNREGISTER_CLIENT, leaving, peer=PEER))
    assert broker.clients.registered.count == 2
    clients.connection_closed(broker, PEER)
    assert (broker.clients.registered.count, broker.clients.registered.size) == (0, 0)
    assert not broker.admission.limits._added.get("registrations")


async def test_released_locks_and_dead_filters_are_given_back(broker: Broker) -> None:
    queues = [MessageQueue("T", "b", number) for number in range(BOUNDS["queueLocksMax"])]
    for _ in range(3):
        assert not lock(broker, *queues[:6]).remark
        assert not lock(broker, *queues[6:]).remark
        broker.clients.locks.unlock("G", "c", queues)
    reply = lock(broker, *queues[:11])
    assert not reply.remark
    reply = lock(broker, *queues[5:], MessageQueue("T", "b", 99))
    assert reply.code == 0, "the queues that it holds are renewed"
    assert reply.remark is not None
    assert "queueLocksMax" in reply.remark
    broker.clients.locks.clear()
    assert broker.clients.locks.count == 0

    for round_ in range(3 * BOUNDS["filtersMax"]):
        assert beat(broker, consumer("G", sql("T", f"a = {round_}"))).code == 0


async def test_what_exists_by_now_is_no_longer_unknown(broker: Broker) -> None:
    for number in range(BOUNDS["unknownOffsetsMax"]):
        assert commit(broker, "G", "Later", number).code == 0
    assert commit(broker, "G", "Never", 0).code == UNKNOWN_OFFSETS.answer
    assert commit(broker, "G", "Later", 0, offset=9).code == 0, "a known entry"
    broker.tables.topics.put(TopicConfig(topic_name="Later", read_queue_nums=4, write_queue_nums=4))
    assert commit(broker, "G", "Never", 0).code == 0


async def test_an_administrator_cannot_overfill_a_table_either(broker: Broker) -> None:
    _replace(broker, groupsMax=len(broker.tables.groups.table))
    config = SubscriptionGroupConfig(group_name="N")
    call = Call(200, NoHeader(), body=encode_json(config), peer=PEER)
    with pytest.raises(Exception, match="groupsMax"):
        await clients_answer(broker, call)


async def clients_answer(broker: Broker, call: Call[Any]) -> Any:
    from cometmq.broker.handlers.topics import update_and_create_subscriptiongroup

    return await update_and_create_subscriptiongroup(broker, call)


async def test_names_of_unknown_offsets_are_legal(broker: Broker) -> None:
    for group, topic in (("a@b", "T"), ("G", "T@U"), ("G" * 256, "T"), ("G", "T" * 128), ("", "T")):
        assert commit(broker, group, topic, 0).code == 1
    assert broker.tables.offsets.table == {}


async def test_a_batch_at_the_limit_is_stored(broker: Broker) -> None:
    assert batch(broker, BOUNDS["batchMessagesMax"]).code == 0
    assert batch(broker, BOUNDS["batchMessagesMax"] + 1).code == BATCH_MESSAGES.answer
    assert broker.store.reader.max_offset("T", 0) == BOUNDS["batchMessagesMax"]
