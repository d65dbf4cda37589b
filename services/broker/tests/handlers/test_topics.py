# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from cometmq.broker.handlers import topics
from cometmq.broker.tables.topics import topic_file
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.stats import TopicStats
from cometmq.remoting.bodies.topic_config import CreateTopicList, TopicConfig, TopicConfigTable
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.topics import (
    DeleteTopicInBroker,
    GetTopicConfig,
    UpdateAndCreateTopic,
)
from cometmq.remoting.errors import ServerError
from cometmq.store.results import PutStatus
from cometmq.testing.broker import FakePeer, MemoryStore, expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import answered_exchanges, name_of, serve
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
SLAVE_REMARK = "from slave broker"


def role_for(exchange: Exchange) -> str:
    remark = expected_answer(exchange).remark or ""
    return "SLAVE" if SLAVE_REMARK in remark else "ASYNC_MASTER"


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "017-*"), ids=name_of)
async def test_captured_changes_of_topics(exchange: Exchange) -> None:
    broker = memory_broker(brokerRole=role_for(exchange))

    answer = await replay(broker, exchange, topics.update_and_create_topic)

    assert answer == expected_answer(exchange)
    ext = exchange.request.ext
    created = broker.tables.topics.get(ext["topic"])
    if answer.code == 0:
        assert created == TopicConfig(
            topic_name=ext["topic"],
            read_queue_nums=int(ext["readQueueNums"]),
            write_queue_nums=int(ext["writeQueueNums"]),
            perm=int(ext["perm"]),
        )
    else:
        assert created is None or broker.tables.topics.is_reserved(ext["topic"])


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "018-*"), ids=name_of)
async def test_captured_changes_of_several_topics(exchange: Exchange) -> None:
    """A broker of 5.5 has another code for names, and keeps the topics before a wrong attribute."""
    broker = memory_broker()
    asked = decode_json(CreateTopicList, (exchange.request.body_text or "").encode())
    expected = expected_answer(exchange)

    answer = await replay(broker, exchange, topics.update_and_create_topic_list)

    created = [broker.tables.topics.get(one.topic_name) for one in asked.topic_config_list]
    if expected.code:
        assert answer.code != 0
        assert created == [None, None]
    else:
        assert answer == expected
        plain, fifo = asked.topic_config_list
        fifo.attributes = {"message.type": "FIFO"}
        assert created == [replace(plain, attributes=UNSET), fifo]


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "215-*"), ids=name_of)
async def test_captured_deletions(exchange: Exchange) -> None:
    store = MemoryStore()
    broker = memory_broker(store, brokerRole=role_for(exchange))
    topic = exchange.request.ext["topic"]
    broker.tables.topics.create(topic, queue_nums=4)
    broker.tables.offsets.commit("G", topic, 0, 5)

    answer = await replay(broker, exchange, topics.delete_topic_in_broker)

    assert answer == expected_answer(exchange)
    is_deleted = answer.code == 0
    assert (topic not in broker.tables.topics.table) == is_deleted
    assert store.deleted == ([topic] if is_deleted else [])
    assert broker.tables.offsets.committed("G", topic, 0) == 5


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "021-*"), ids=name_of)
async def test_captured_topic_tables(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    table = decode_json(TopicConfigTable, expected.body)
    broker.tables.topics.table = table.topic_config_table
    broker.tables.topics.version = table.data_version

    answer = await replay(broker, exchange, topics.get_all_topic_config)

    assert (answer.code, answer.remark) == (expected.code, expected.remark)
    assert json.loads(answer.body) == json.loads(expected.body)


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "202-*"), ids=name_of)
async def test_captured_topic_statistics(exchange: Exchange) -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    expected = expected_answer(exchange)
    stats = decode_json(TopicStats, expected.body) if expected.body else TopicStats()
    for queue, offsets in stats.offset_table.items():
        broker.tables.topics.create(queue.topic, queue_nums=len(stats.offset_table))
        broker.settings = broker.settings.__replace__(broker_name=queue.broker_name)
        if offsets.max_offset:
            store.set_queue(
                queue.topic,
                queue.queue_id,
                max_offset=offsets.max_offset,
                stored_ms=offsets.last_update_timestamp,
            )

    answer = await replay(broker, exchange, topics.get_topic_stats_info)

    assert (answer.code, answer.remark, answer.ext) == (
        expected.code,
        expected.remark,
        expected.ext,
    )
    if expected.body:
        assert decode_json(TopicStats, answer.body) == stats
        assert len(answer.body) == len(expected.body)  # Java's form, in which queues are keys


async def test_a_topic_that_exists_is_deleted_whatever_its_name_is() -> None:
    """A retry topic has the name of its group, which a peer has chosen."""
    store = MemoryStore()
    broker = memory_broker(store)
    broker.tables.topics.create("%RETRY%\x9b[31m", queue_nums=1)
    call = Call(215, DeleteTopicInBroker("%RETRY%\x9b[31m"))
    await topics.delete_topic_in_broker(broker, call)
    assert store.deleted == ["%RETRY%\x9b[31m"]
    with pytest.raises(ServerError, match="illegal characters"):
        await topics.delete_topic_in_broker(broker, call)


def change(**values: object) -> Call[UpdateAndCreateTopic]:
    fields = {"topic": "T", "read_queue_nums": 4, "write_queue_nums": 4, "perm": 6}
    header = UpdateAndCreateTopic(**{**fields, **values})  # type: ignore[arg-type]
    return Call(17, header)


@pytest.mark.parametrize(
    ("values", "remark"),
    [
        ({"read_queue_nums": -1}, "readQueueNums=-1: must be between 0 and 16384"),
        ({"write_queue_nums": 2**31 - 1}, "writeQueueNums=2147483647"),
        ({"perm": 8}, "perm=8: must be between 0 and 7"),
        ({"perm": -1}, "perm=-1"),
        ({"topic_filter_type": "TRIPLE_TAG"}, "topicFilterType=TRIPLE_TAG"),
        ({"topic": "PeersCluster"}, "conflict with system topic"),
        ({"topic": "broker-a"}, "conflict with system topic"),
        ({"topic": "a/../b"}, "illegal characters"),
    ],
)
async def test_values_out_of_bounds_are_refused(values: dict[str, object], remark: str) -> None:
    broker = memory_broker()
    version = broker.tables.topics.version

    with pytest.raises(ServerError) as raised:
        await topics.update_and_create_topic(broker, change(**values))

    assert remark in raised.value.remark
    assert broker.tables.topics.version == version


async def test_attributes_are_kept_until_a_change_names_them() -> None:
    broker = memory_broker()

    await topics.update_and_create_topic(broker, change(attributes="+message.type=FIFO"))
    await topics.update_and_create_topic(broker, change(read_queue_nums=8))

    def shown() -> object:
        reply = topics.get_topic_config(broker, Call(351, GetTopicConfig("T")))
        return json.loads(bytes(reply.body)).get("attributes")  # type: ignore[arg-type]

    assert shown() == {"message.type": "FIFO"}
    with pytest.raises(ServerError):
        await topics.update_and_create_topic(broker, change(attributes="+unknown=1"))
    await topics.update_and_create_topic(broker, change(attributes="-message.type"))
    assert shown() is None


def listed(*configs: TopicConfig) -> Call[NoHeader]:
    return Call(18, NoHeader(), body=encode_json(CreateTopicList(list(configs))), peer=FakePeer())


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        (TopicConfig(topic_name="a/b"), "item 2 of the list, 'a/b': The specified topic contains"),
        (TopicConfig(topic_name="broker-a"), "is conflict with system topic"),
        (TopicConfig(topic_name="Big", read_queue_nums=16_385), "'Big': readQueueNums=16385"),
        (TopicConfig(topic_name="U", attributes={"+unknown": "1"}), "unsupported key: unknown"),
        (TopicConfig(topic_name="U", read_queue_nums=2_000), "queuesMax"),
        (TopicConfig(topic_name="x" * 100_000), "item 2 of the list, 'xxx"),
    ],
)
async def test_one_wrong_topic_refuses_the_whole_list(wrong: TopicConfig, remark: str) -> None:
    broker = memory_broker(queuesMax="1000")
    before = dict(broker.tables.topics.table)

    answer = await serve(
        broker, listed(TopicConfig(topic_name="T"), wrong), topics.update_and_create_topic_list
    )

    assert answer.code != 0
    assert remark in (answer.remark or "")
    assert len(answer.remark or "") < 1_000
    assert broker.tables.topics.table == before


async def test_a_topic_that_stays_as_it_is_does_not_end_its_list() -> None:
    """A broker of 5.5.0 answers success, and creates nothing."""
    broker = memory_broker()
    old = TopicConfig(topic_name="T")
    await topics.update_and_create_topic_list(broker, listed(old))
    fifo = TopicConfig(topic_name="U", attributes={"+message.type": "FIFO"})
    again = TopicConfig(topic_name="U", perm=4)

    await topics.update_and_create_topic_list(broker, listed(old, fifo, again))

    assert broker.tables.topics.get("T") == old
    assert broker.tables.topics.get("U") == replace(again, attributes={"message.type": "FIFO"})


async def test_write_permission_can_be_removed() -> None:
    broker = memory_broker()

    await topics.update_and_create_topic(broker, change(write_queue_nums=0, perm=4))

    changed = broker.tables.topics.get("T")
    assert changed is not None
    assert (changed.read_queue_nums, changed.write_queue_nums, changed.perm) == (4, 0, 4)


async def test_a_table_that_cannot_be_saved_is_an_answer(tmp_path: Path) -> None:
    broker = memory_broker()
    broker.tables.topics.file = topic_file(tmp_path / "topics.json")
    await topics.update_and_create_topic(broker, change())
    saver: Any = broker.tables.saver
    table = broker.tables.topics
    assert saver.saved["topics.json"] == encode_json(TopicConfigTable(table.version, table.table))
    saver.error = OSError(28, "No space left on device")

    with pytest.raises(ServerError) as raised:
        await topics.update_and_create_topic(broker, change(topic="U"))

    assert raised.value.remark == (
        "changed, but topics.json cannot be saved yet: No space left on device"
    )


@pytest.mark.parametrize(("setting", "is_kept"), [("true", False), ("false", True)])
async def test_statistics_of_a_deleted_topic_are_dropped_if_set(
    setting: str, *, is_kept: bool
) -> None:
    broker = memory_broker(autoDeleteUnusedStats=setting)
    broker.stats.count_put("T", 1, 100)

    await topics.delete_topic_in_broker(broker, Call(215, DeleteTopicInBroker("T")))

    assert ("T" in broker.stats.topics) == is_kept


@pytest.mark.parametrize(
    ("status", "has_copies", "code"),
    [
        (PutStatus.PUT_OK, True, 0),
        (PutStatus.SLAVE_NOT_AVAILABLE, True, 0),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, True, 1),
        (PutStatus.SERVICE_NOT_AVAILABLE, True, 1),
        (PutStatus.SERVICE_NOT_AVAILABLE, False, 0),  # a full disk: nothing else frees space
    ],
)
async def test_a_deletion_that_has_not_reached_all_copies_is_an_error(
    status: PutStatus, has_copies: bool, code: int
) -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    store.writer.needs_replicas, store.mark = has_copies, status

    answer = await serve(broker, Call(215, DeleteTopicInBroker("T")), topics.delete_topic_in_broker)

    assert answer.code == code
    assert (answer.remark is None) == (code == 0)


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", ".."])
async def test_system_topics_cannot_be_deleted(topic: str) -> None:
    store = MemoryStore()
    call = Call(215, DeleteTopicInBroker(topic))

    answer = await serve(memory_broker(store), call, topics.delete_topic_in_broker)

    assert answer.code == 1
    assert store.deleted == []


async def test_a_single_topic_can_be_read() -> None:
    broker = memory_broker()

    found = await serve(broker, Call(351, GetTopicConfig("TBW102")), topics.get_topic_config)
    missing = await serve(broker, Call(351, GetTopicConfig("T")), topics.get_topic_config)

    assert json.loads(bytes(found.body))["readQueueNums"] == 8  # type: ignore[arg-type]
    assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: T")
