# SPDX-License-Identifier: Apache-2.0

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import offsets
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.offsets import (
    CorrectionOffsets,
    QueueOffset,
    QueueOffsetList,
    QueueOffsetTable,
)
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.admin import (
    CloneGroupOffset,
    InvokeBrokerToResetOffset,
    QueryCorrectionOffset,
)
from cometmq.remoting.commands.callbacks import ResetConsumerClientOffset
from cometmq.remoting.errors import CommandError, ConsumerNotOnline, ServerError
from cometmq.remoting.types import Language
from cometmq.remoting.versions import RESET_OFFSET_MIN, V4_9_4
from cometmq.testing.broker import (
    FakePeer,
    MemoryStore,
    RecordingLog,
    expected_answer,
    memory_broker,
    replay,
)
from cometmq.testing.broker.replay import call_of, name_of
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
STORED_MS = 1_800_000_000_000
END = (1 << 63) - 1
CHANGE_BEFORE = STORED_MS - 1


def exchanges(pattern: str) -> list[Exchange]:
    return list(load_exchanges(GOLDEN, pattern))


def join(
    broker: Broker,
    group: str = "G",
    *topics: str,
    version: int = V4_9_4,
    language: Language = Language.JAVA,
    port: int = 40001,
) -> FakePeer:
    peer = FakePeer(f"127.0.0.1:{port}")
    data = ConsumerData(
        group_name=group, subscription_data_set=[SubscriptionData(topic=topic) for topic in topics]
    )
    client = Client(peer, f"c{port}", language=language, version=version, seen_ms=0)
    broker.clients.consumers.register(data, client, notify=False)
    return peer


def broker_with(queue_count: int = 2, *, max_offset: int = 10) -> Broker:
    """Build a broker with a topic T; all messages in a queue have the same store time."""
    store = MemoryStore()
    broker = memory_broker(store)
    broker.tables.topics.create("T", queue_nums=queue_count)
    for queue_id in range(queue_count):
        store.set_queue("T", queue_id, max_offset=max_offset, stored_ms=STORED_MS)
    return broker


def reset(broker: Broker, timestamp: int, *, is_force: bool = True, **fields: Any) -> Reply:
    header = InvokeBrokerToResetOffset(
        **{"topic": "T", "group": "G", **fields}, timestamp=timestamp, is_force=is_force
    )
    call: Call[Any] = Call(222, header, peer=FakePeer("127.0.0.1:9"))
    offsets.invoke_broker_to_reset_offset(broker, call)
    reply: Reply = call.peer.replies.pop()
    return reply


def offsets_in(body: Any) -> dict[int, int]:
    table = decode_json(QueueOffsetTable, body).offset_table
    assert {(queue.topic, queue.broker_name) for queue in table} <= {("T", "broker-a")}
    return {queue.queue_id: offset for queue, offset in table.items()}


@pytest.mark.parametrize("exchange", exchanges("222-*"), ids=name_of)
async def test_captured_resets(exchange: Exchange) -> None:
    expected = expected_answer(exchange)
    ext = exchange.request.ext
    wanted = decode_json(QueueOffsetTable, expected.body).offset_table if expected.body else {}
    brokers = {queue.broker_name for queue in wanted} or {"broker-a"}
    store = MemoryStore()
    broker = memory_broker(store, brokerName=brokers.pop())
    broker.tables.topics.create(ext["topic"], queue_nums=max(1, len(wanted)))
    for queue, offset in wanted.items():
        end = offset if ext["timestamp"] == "-1" else 10
        stored_ms = max(1, int(ext["timestamp"]))
        store.set_queue(queue.topic, queue.queue_id, max_offset=end, stored_ms=stored_ms)
    if expected.code != 1:
        broker.tables.offsets.commit(ext["group"], ext["topic"], 0, 10)
    peer = join(broker, ext["group"], ext["topic"]) if wanted else None

    answer = await replay(broker, exchange, offsets.invoke_broker_to_reset_offset)

    assert (answer.code, answer.remark, answer.ext) == (expected.code, expected.remark, {})
    if peer is None:
        return
    assert decode_json(QueueOffsetTable, answer.body).offset_table == wanted
    told: Any
    (told,) = peer.sent
    assert told.body == answer.body
    assert told.header == ResetConsumerClientOffset(
        ext["topic"], ext["group"], int(ext["timestamp"]), is_force=False
    )


@pytest.mark.parametrize("exchange", exchanges("220-*"), ids=name_of)
def test_requests_to_clients_are_as_captured(exchange: Exchange) -> None:
    """Even a forced reset sends isForce=false to the clients."""
    broker = broker_with()
    broker.tables.offsets.commit("G", "T", 0, 5)
    peer = join(broker, "G", "T")

    reset(broker, CHANGE_BEFORE)

    captured = call_of(exchange.request, FakePeer())
    told: Any
    (told,) = peer.sent
    assert told.code == captured.code == 220
    assert type(told.header) is type(captured.header)
    assert captured.header.is_force is told.header.is_force is False
    assert decode_json(QueueOffsetTable, captured.body).offset_table
    assert decode_json(QueueOffsetTable, told.body).offset_table


def test_the_end_of_each_queue() -> None:
    broker = broker_with()
    broker.tables.offsets.commit("G", "T", 0, 5)
    broker.tables.offsets.commit("G", "T", 1, 7)
    join(broker)

    assert offsets_in(reset(broker, -1).body) == {0: 10, 1: 10}


def test_without_force_a_group_only_moves_backwards() -> None:
    broker = broker_with()
    broker.tables.offsets.commit("G", "T", 0, 5)
    broker.tables.offsets.commit("G", "T", 1, 7)
    join(broker)

    assert offsets_in(reset(broker, -1, is_force=False).body) == {0: 5, 1: 7}
    assert offsets_in(reset(broker, CHANGE_BEFORE, is_force=False).body) == {0: 0, 1: 0}


def test_a_queue_without_an_offset_counts_as_not_consumed() -> None:
    """RocketMQ refuses the reset if a queue was added to the topic and has not been
    consumed yet.
    """
    broker = broker_with()
    broker.tables.offsets.commit("G", "T", 0, 5)
    join(broker)

    assert offsets_in(reset(broker, -1, is_force=False).body) == {0: 5, 1: 0}
    assert offsets_in(reset(broker, -1, is_force=True).body) == {0: 10, 1: 10}


def test_queues_that_are_only_read_are_reset_too() -> None:
    """A topic is made smaller by writing to fewer queues, until the rest of the others is read."""
    broker = broker_with(4)
    broker.tables.topics.put(
        msgspec.structs.replace(broker.tables.topics.table["T"], write_queue_nums=2)
    )
    join(broker, "G", "T")
    assert offsets_in(reset(broker, -1).body) == dict.fromkeys(range(4), 10)


def test_a_connected_group_that_has_committed_nothing_is_reset() -> None:
    broker = broker_with()
    peer = join(broker, "G", "T")
    assert offsets_in(reset(broker, -1).body) == {0: 10, 1: 10}
    assert len(peer.sent) == 1
    assert offsets_in(reset(broker, -1, is_force=False).body) == {0: 0, 1: 0}


def test_all_members_get_the_offsets_and_none_is_stored() -> None:
    broker, log = broker_with(), RecordingLog()
    broker.log = log
    broker.tables.offsets.commit("G", "T", 0, 5)
    one, two = join(broker, port=1), join(broker, port=2)

    reply = reset(broker, -1)

    (logged,) = log.named("offsets.reset")
    assert (logged["group"], logged["to_ms"], logged["queues"]) == ("G", -1, 2)

    assert [sent.code for sent in one.sent] == [220]
    assert one.sent == two.sent
    assert (reply.code, reply.remark) == (0, "not set any response code")
    assert broker.tables.offsets.queues("G", "T") == {0: 5}


def test_members_in_cpp_get_a_list() -> None:
    broker = broker_with(1)
    broker.tables.offsets.commit("G", "T", 0, 5)
    cpp = join(broker, language=Language.CPP, port=1)
    java = join(broker, language=Language.JAVA, port=2)

    reply = reset(broker, -1)

    assert decode_json(QueueOffsetList, cast("bytes", cpp.sent[0].body)).offset_table == [
        QueueOffset("broker-a", 10, 0, "T")
    ]
    assert java.sent[0].body == reply.body


def test_an_unwritable_member_is_logged() -> None:
    broker, log = broker_with(), RecordingLog()
    broker.log = log
    broker.tables.offsets.commit("G", "T", 0, 5)
    stalled, well = join(broker, port=1), join(broker, port=2)
    stalled.is_writable = False

    assert reset(broker, -1).code == 0

    assert [facts["client_id"] for facts in log.named("client_call.failed")] == ["c1"]
    assert len(well.sent) == 1


def test_a_single_queue_as_sent_by_5_x_tools() -> None:
    broker = broker_with()
    broker.tables.offsets.commit("G", "T", 0, 5)
    join(broker)

    assert offsets_in(reset(broker, 0, queue_id=1, offset=3).body) == {1: 3}
    assert offsets_in(reset(broker, 0, queue_id=1, offset=99).body) == {1: 10}
    assert offsets_in(reset(broker, -1, queue_id=1, offset=-1).body) == {1: 10}
    assert offsets_in(reset(broker, -1, queue_id=-1, offset=-1).body) == {0: 10, 1: 10}


def refused(broker: Broker, **fields: Any) -> CommandError:
    with pytest.raises(CommandError) as caught:
        reset(broker, 77, **fields)
    return caught.value


def test_refusals_in_their_order() -> None:
    broker = broker_with()
    unknown = refused(broker, topic="U")
    assert isinstance(unknown, ServerError)
    assert unknown.remark == (
        "[reset-offset] reset offset failed, no topic in this broker. topic=U"
    )
    assert refused(broker, queue_id=2).remark == "queueId=2: topic[T] has no such queue"

    assert refused(broker).remark == "THe consumer group <G> not exist"
    broker.tables.offsets.commit("G", "T", 0, 5)

    offline = refused(broker)
    assert isinstance(offline, ConsumerNotOnline)
    assert offline.remark == (
        "Consumer not online, so can not reset offset, Group: G Topic: T Timestamp: 77"
    )


def test_a_group_with_an_old_member_is_not_reset() -> None:
    broker = broker_with()
    broker.tables.offsets.commit("G", "T", 0, 5)
    new = join(broker, version=RESET_OFFSET_MIN, port=1)
    join(broker, version=RESET_OFFSET_MIN - 1, port=2)

    refusal = refused(broker)

    assert refusal.code == 1
    assert refusal.remark == "the client does not support this feature. version=V3_0_6"
    assert new.sent == []


@pytest.mark.parametrize("exchange", exchanges("308-*"), ids=name_of)
async def test_captured_corrections(exchange: Exchange) -> None:
    expected = expected_answer(exchange)
    wanted = decode_json(CorrectionOffsets, expected.body)
    broker, ext = memory_broker(), exchange.request.ext
    for queue_id, offset in wanted.correction_offsets.items():
        broker.tables.offsets.commit(ext["compareGroup"], ext["topic"], queue_id, offset)

    answer = await replay(broker, exchange, offsets.query_correction_offset)

    assert (answer.code, answer.remark) == (0, None)
    assert decode_json(CorrectionOffsets, answer.body) == wanted


async def corrections(broker: Broker, filter_groups: str | None = None) -> dict[int, int]:
    header = QueryCorrectionOffset(compare_group="G", topic="T", filter_groups=filter_groups)
    reply = await offsets.query_correction_offset(broker, Call(308, header, peer=FakePeer()))
    return decode_json(CorrectionOffsets, reply.body).correction_offsets  # type: ignore[arg-type]


async def test_corrections_mark_queues_where_the_compared_group_is_behind() -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    store.set_queue("T", 2, min_offset=5, max_offset=9, stored_ms=1)
    for group, places in {"G": (4, 1, 3), "A": (3, 6, 7), "B": (9, 5, 8)}.items():
        for queue_id, offset in enumerate(places):
            broker.tables.offsets.commit(group, "T", queue_id, offset)

    assert await corrections(broker) == {0: 3, 1: 1, 2: END}
    assert await corrections(broker, "G,B") == {0: 3, 1: END, 2: END}
    assert broker.tables.offsets.committed("B", "T", 0) == 9


@pytest.mark.parametrize("exchange", exchanges("314-*"), ids=name_of)
async def test_captured_copies(exchange: Exchange) -> None:
    broker, ext = memory_broker(), exchange.request.ext
    broker.tables.topics.create(ext["topic"], queue_nums=2)
    broker.tables.offsets.commit(ext["srcGroup"], ext["topic"], 1, 6)

    answer = await replay(broker, exchange, offsets.clone_group_offset)

    assert answer == expected_answer(exchange)
    assert broker.tables.offsets.queues(ext["destGroup"], ext["topic"]) == {1: 6}


async def clone(broker: Broker, topic: str | None = None, *, offline: bool = False) -> Reply:
    header = CloneGroupOffset(src_group="G", dest_group="D", topic=topic, offline=offline)
    return await offsets.clone_group_offset(broker, Call(314, header, peer=FakePeer()))


async def test_copies_skip_deleted_and_left_topics() -> None:
    broker = memory_broker()
    for topic in ("T", "Left", "Gone"):
        broker.tables.offsets.commit("G", topic, 0, 4)
        if topic != "Gone":
            broker.tables.topics.create(topic, queue_nums=1)
    join(broker, "G", "T")

    assert await clone(broker) is OK
    assert broker.tables.offsets.index.topics_of("D") == {"T"}
    await clone(broker, offline=True)
    assert broker.tables.offsets.index.topics_of("D") == {"T", "Left"}
    assert broker.tables.offsets.index.topics_of("G") == {"T", "Left", "Gone"}


async def test_a_copy_replaces_offsets_once() -> None:
    broker = memory_broker()
    broker.tables.topics.create("T", queue_nums=3)
    broker.tables.offsets.commit("G", "T", 0, 4)
    broker.tables.offsets.commit("D", "T", 2, 9)

    await clone(broker, "T")
    broker.tables.offsets.commit("G", "T", 0, 5)

    assert broker.tables.offsets.queues("D", "T") == {0: 4}
    broker.tables.offsets.drop_group("G")
    await clone(broker, "T")
    assert broker.tables.offsets.queues("D", "T") == {0: 4}


async def test_a_copy_to_a_dangerous_name_is_refused() -> None:
    header = CloneGroupOffset(src_group="G", dest_group="a@b")

    with pytest.raises(ServerError, match="illegal characters"):
        await offsets.clone_group_offset(memory_broker(), Call(314, header, peer=FakePeer()))
