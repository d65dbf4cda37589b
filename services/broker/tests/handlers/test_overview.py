# SPDX-License-Identifier: Apache-2.0
"""The overview for consoles agrees with the answers to requests for single topics and groups."""

from types import SimpleNamespace
from typing import Any

from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import admin, overview
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.overview import (
    BrokerOverview,
    GroupClients,
    GroupHabit,
    Habit,
    QueueEnds,
    RefusedRequests,
)
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.admin import GetConsumerConnectionList
from cometmq.remoting.commands.table import NoHeader
from cometmq.runtime.incremental import finish
from cometmq.testing.broker import FakePeer, MemoryStore, memory_broker


def asked(code=Code.GET_BROKER_OVERVIEW, header: Any = None) -> Any:
    return Call(code, header or NoHeader(), body=b"", peer=FakePeer())


async def found(broker) -> BrokerOverview:
    reply: Any = await overview.get_broker_overview(broker, asked())
    return decode_json(BrokerOverview, reply.body)


def join(broker, client_id, tags):
    peer = FakePeer()
    data = ConsumerData(
        group_name="G", subscription_data_set=[SubscriptionData(topic="T", sub_string=tags)]
    )
    client = Client(peer, client_id, language=0, version=401, seen_ms=0)
    broker.clients.consumers.register(data, client)


async def test_members_are_those_of_the_request_for_one_group():
    broker = memory_broker(MemoryStore())
    join(broker, "one", "*")
    seen = (await found(broker)).groups["G"]
    single: Any = await admin.get_consumer_connection_list(
        broker, asked(Code.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionList("G"))
    )
    expected = decode_json(ConsumerConnections, single.body)
    assert seen.members == expected.connection_set
    assert seen.message_model == expected.message_model
    assert {it.topic: it for it in seen.subscriptions} == expected.subscription_table
    assert seen.disagreement == ""
    join(broker, "two", "red")
    text = (await found(broker)).groups["G"].disagreement
    assert "one reads T with" in text
    assert "two with" in text


async def test_queues_have_the_ends_of_the_store():
    broker = memory_broker(MemoryStore())
    before = set((await found(broker)).queues)
    broker.tables.topics.table["New"] = TopicConfig(
        topic_name="New", read_queue_nums=2, write_queue_nums=3
    )
    seen = (await found(broker)).queues
    assert set(seen) == before | {"New"}
    assert [(it.queue_id, it.first, it.end) for it in seen["New"]] == [
        (
            number,
            broker.store.reader.min_offset("New", number),
            broker.store.reader.max_offset("New", number),
        )
        for number in range(3)
    ]


async def test_refusals_and_ages_are_told_once_somebody_looks():
    broker = memory_broker(MemoryStore())
    broker.measured.lag_times.oldest_ms["T", "G"] = 77
    call: Any = SimpleNamespace(
        code=Code.SEND_MESSAGE, header=SimpleNamespace(topic="T"), peer=FakePeer()
    )
    broker.admission.refused.note(call, ResponseCode.SYSTEM_BUSY, "later", 5)
    assert not broker.measured.is_observed
    seen = await found(broker)
    assert broker.measured.is_observed
    assert seen.oldest_unread_ms == {"T@G": 77}
    assert [(it.subject, it.remark, it.count) for it in seen.refused] == [("T", "later", 1)]


def test_a_large_overview_is_encoded_in_steps():
    members = [Connection(f"10.0.0.{number}:1", f"c{number}") for number in range(20)]
    wanted = [SubscriptionData(topic=f"T{number}", sub_string="*") for number in range(5)]
    whole = BrokerOverview(
        {f"T{number}": [QueueEnds(queue, 1, 2) for queue in range(16)] for number in range(2_000)},
        {f"G{number}": GroupClients(members, "a", "b", wanted) for number in range(500)},
        {f"T@{number}": number for number in range(2_000)},
        [RefusedRequests(1, 2, "a", "b", "c", 3, 4, 5)],
        [GroupHabit(Habit.DEAD_AT_ONCE, "G", 1, 2, 3)],
    )
    assert finish(overview.encode_overview(whole)) == encode_json(whole)
    steps = len(list(overview.encode_overview(whole)))
    assert steps > 2_000 * 16 * 3 // 4_096 + 500 * 26 * 8 // 4_096
    empty = BrokerOverview()
    assert finish(overview.encode_overview(empty)) == encode_json(empty)
