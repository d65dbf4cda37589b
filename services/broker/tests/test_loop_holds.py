# SPDX-License-Identifier: Apache-2.0
"""No request holds the loop for more than 20 ms, whatever it contains."""

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest

from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.storing import store_reads
from cometmq.broker.testing.holds import HOLD_S_MAX, Holds, longest_hold
from cometmq.broker.testing.scripted import Connected, ScriptedBroker, frames_of
from cometmq.broker.testing.scripts import frame
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.header import decode_header
from cometmq.remoting.message.batch import split_batch
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.testing.peer import FakePeer
from cometmq.store.queues.consume_queue import entries_from

from .costly import expression, properties
from .holding import check, consumer, json_of, lanes, run_broker, subscriptions

BUSY, RETRY = 2, 20
CHUNK_BYTES = 256 << 10


def pull(text: str, opaque: int, *, offset: int = 0) -> bytes:
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": text, "subVersion": "0", "expressionType": "SQL92",
    }  # fmt: skip
    return frame(RequestCode.PULL_MESSAGE, ext, opaque=opaque)


def store(broker: ScriptedBroker, texts: list[str]) -> None:
    driver = broker.broker.driver
    for text in texts:
        message = NewMessage(
            topic="T",
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=bytes(8),
            store_host=broker.broker.process.store_host,
            body=b"x",
            properties=text,
        )
        driver.put(message, lambda _: None)
        driver.commit()


async def answered(connections: list[Connected], holds: Any, frames: list[bytes]) -> list[Any]:
    """Send one frame on each connection; return the answers' headers."""
    for connected, data in zip(connections, frames, strict=True):
        connected.wire.sent.clear()
        holds.measure(lambda peer=connected.peer, data=data: peer.data_received(data))
    while not all(connected.wire.sent for connected in connections):  # noqa: ASYNC110  # no event
        await asyncio.sleep(0)
    return [
        decode_header(serialization, head)
        for connected in connections
        for serialization, head, _ in frames_of(bytes(connected.wire.sent))
    ]


async def pull_all(broker: ScriptedBroker, text: str, pull_count: int) -> float:
    """Pull with an expression until it is compiled, then often at once; return the longest hold."""
    connections = [broker.connect() for _ in range(pull_count)]
    with longest_hold() as holds:
        codes = [BUSY]
        while codes == [BUSY]:
            (first,) = await answered(connections[:1], holds, [pull(text, 1)])
            codes = [first.code]
            await asyncio.sleep(0)
            broker.clock.advance(1_000)
        for _ in range(2):  # the lane knows the expression at the second pull
            frames = [pull(text, number) for number in range(pull_count)]
            for answer in await answered(connections, holds, frames):
                assert answer.code in (0, RETRY)
                assert int(answer.ext["nextBeginOffset"]) > 0
    for connected in connections:
        connected.peer.connection_lost(None)
    return holds.longest_s


@lanes
@pytest.mark.parametrize("seed", range(12))
def test_filters_hold_the_loop_for_a_bounded_time(lane: bool, seed: int) -> None:
    random = Random(f"filters {seed}")
    text, texts = expression(random), [properties(random) for _ in range(12)]

    async def work(broker: ScriptedBroker) -> None:
        store(broker, texts)
        await check(lambda: pull_all(broker, text, 3))

    run_broker(lane, work)


@lanes
def test_many_pulls_at_once_share_a_turn(lane: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reads, "SEARCH_S_MAX", 0.02)
    text = " OR ".join(f"p CONTAINS '{'a' * (3 + number % 9)}b'" for number in range(300))

    async def work(broker: ScriptedBroker) -> None:
        store(broker, [f"p\x01{'a' * 32_000}"] * 100)
        await check(lambda: pull_all(broker, text, 16))

    run_broker(lane, work)


def queues(count: int) -> list[dict[str, Any]]:
    return [{"topic": "T", "brokerName": "b", "queueId": number} for number in range(count)]


def keys(form: bytes, count: int) -> bytes:
    """Return the members of an object, and the end of it and of the body."""
    return b"".join(form % number for number in range(count)) + b'"last":1}}'


def tags(count: int) -> str:
    return "||".join(f"{number:03x}" for number in range(count))


TAGS = " || ".join("abcdefgh")
TABLE_SIZE = 3_000
MANY = 20_000
DELETING = {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP}
BODIES: dict[str, tuple[int, dict[str, str], Callable[[], bytes]]] = {
    "many groups": (34, {}, lambda: json_of(
        clientID="c",
        consumerDataSet=[consumer(f"g{number}", subscriptions(1)) for number in range(900)])),
    "groups with many topics": (34, {}, lambda: json_of(
        clientID="c",
        consumerDataSet=[
            consumer(f"g{number}", subscriptions(50, subVersion=1)) for number in range(380)])),
    "many topics": (34, {}, lambda: json_of(
        clientID="c", consumerDataSet=[consumer("g", subscriptions(100_000))])),
    "a group with many topics": (34, {}, lambda: json_of(
        clientID="c", consumerDataSet=[consumer("g", subscriptions(9_900, subString=TAGS))])),
    "many tags of many topics": (34, {}, lambda: json_of(
        clientID="c", consumerDataSet=[consumer("g", subscriptions(900, subString=tags(200)))])),
    "a long expression": (34, {}, lambda: json_of(
        clientID="c", consumerDataSet=[consumer("g", subscriptions(1, subString=tags(140_000)))])),
    "empty groups": (34, {}, lambda: b'{"consumerDataSet":[' + b"{}," * 340_000 + b"{}]}"),
    "groups without names": (34, {}, lambda: json_of(
        consumerDataSet=[{"unitMode": False, "x": "x" * 12}] * 25_000)),
    "nulls": (34, {}, lambda: json_of(
        clientID="c", consumerDataSet=[consumer("g", subscriptions(900, tagsSet=None, x=1))])),
    "null names": (34, {}, lambda: json_of(clientID=None, producerDataSet=[None] * 150_000)),
    "a broken body": (34, {}, lambda: b'{"x":[' + b",1" * 500_000 + b"]}"),
    "a control character": (34, {}, lambda: b'{"\x01":[' + b"1," * 9_000 + b'"\\ud800"]}'),
    "numbers as keys": (41, {}, lambda: b'{"x":{' + keys(b"%d:1,", 95_000)),
    "objects as keys": (41, {}, lambda: b'{"mqSet":1,"x":{' + keys(b'"{%030x":1,', 24_000)),
    "few objects as keys": (41, {}, lambda: b'{"mqSet":1,"x":{' + keys(b'"{%034x":1,', 880)),
    "many tags": (34, {}, lambda: json_of(
        clientID="c",
        consumerDataSet=[consumer("g", subscriptions(1, codeSet=list(range(900_000))))])),
    "unknown fields": (34, {}, lambda: b'{"clientID":"c","x":[' + b"1," * 5_000_000 + b"1]}"),
    "locks": (41, {}, lambda: json_of(consumerGroup="g", clientId="c", mqSet=queues(150_000))),
    "unlocks": (42, {}, lambda: json_of(consumerGroup="g", clientId="c", mqSet=queues(150_000))),
    "a check": (46, {}, lambda: json_of(subscriptionData=subscriptions(1, tagsSet=["t"] * 10**6))),
    "settings": (25, {}, lambda: b"a=b\n" * 2_000_000),
    "a group": (200, {}, lambda: json_of(groupName="g", x=["x"] * 10**6)),
    "topics": (21, {}, bytes),
    "groups": (201, {}, bytes),
    "offsets": (43, {}, bytes),
    "progress": (317, {"isOrder": "false"}, bytes),
}  # fmt: skip


@lanes
@pytest.mark.parametrize("name", BODIES)
def test_bodies_hold_the_loop_for_a_bounded_time(lane: bool, name: str) -> None:
    code, ext, make = BODIES[name]
    body = make()
    data = frame(code, ext, body)

    async def send(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                await answered_later(connected, holds, chunk)
            while not (replies := replies_of(connected)):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        assert [header.code in (0, 1) for header in replies] == [True]
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        if not body:
            fill(broker)
        await check(lambda: send(broker))

    run_broker(lane, work)


def replies_of(connected: Connected) -> list[Any]:
    headers = [decode_header(*found[:2]) for found in frames_of(bytes(connected.wire.sent))]
    return [header for header in headers if header.is_reply]


async def answered_later(connected: Connected, holds: Any, chunk: bytes) -> None:
    holds.measure(lambda: connected.peer.data_received(chunk))
    await asyncio.sleep(0)


def fill(broker: ScriptedBroker) -> None:
    """Fill the tables that answers contain."""
    whole = broker.broker
    for number in range(TABLE_SIZE):
        whole.tables.topics.create(f"topic-{number}", queue_nums=8)
        whole.tables.groups.put(SubscriptionGroupConfig(group_name=f"group-{number}"))
        if number < TABLE_SIZE // 4:
            whole.tables.offsets.commit(f"group-{number}", f"topic-{number}", 0, 1)


def value_of(field: msgspec.structs.FieldInfo) -> str:
    """Return a value for a field of any request."""
    name = field.encode_name
    if name in {"topic", "srcTopic", "b"}:
        return "topic-1"
    if name.lower().endswith("group") or name == "groupName":
        return "group-2" if name == "destGroup" else "group-1"
    kind = str(field.type)
    return "false" if "bool" in kind else "1" if "int" in kind.lower() else ""


def test_no_request_holds_the_loop_whatever_the_tables_contain() -> None:
    """Each code is asked for a group in many topics, and a topic with many groups."""

    async def ask(broker: ScriptedBroker, code: int, holds: Holds) -> float:
        holds.longest_s = 0.0
        connected = broker.connect()
        fields = msgspec.structs.fields(COMMANDS[code].header_type)
        data = frame(code, {field.encode_name: value_of(field) for field in fields}, b"{}")
        holds.measure(lambda: connected.peer.data_received(data))
        for _ in range(200):  # some requests have no answer
            await asyncio.sleep(0)
        while broker.broker.pending.incremental.is_running:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        whole = broker.broker
        for number in range(MANY):
            whole.tables.topics.create(f"topic-{number}", queue_nums=4)
            whole.tables.groups.put(SubscriptionGroupConfig(group_name=f"group-{number}"))
            whole.tables.offsets.commit("group-1", f"topic-{number}", 0, 1)
            whole.tables.offsets.commit(f"group-{number}", "topic-1", 0, 1)
        with longest_hold() as holds:
            for code in sorted(HANDLERS, key=lambda code: code in DELETING):
                await check(partial(ask, broker, code, holds))

    run_broker(False, work)


LISTING_S_MAX = 0.01
ENTRY_COUNT, MEMBER_COUNT, QUEUE_COUNT = 10_000, 5_000, 8_000
LISTINGS: dict[int, dict[str, str]] = {
    RequestCode.QUERY_CONSUME_QUEUE: {
        "topic": "T", "queueId": "0", "index": "0", "count": str(ENTRY_COUNT)},
    RequestCode.GET_TOPIC_STATS_INFO: {"topic": "wide"},
    RequestCode.GET_CONSUME_STATS: {"consumerGroup": "group"},
    RequestCode.QUERY_CONSUME_TIME_SPAN: {"topic": "wide", "group": "group"},
    RequestCode.GET_BROKER_CONSUME_STATS: {"isOrder": "false"},
    RequestCode.GET_CONSUMER_CONNECTION_LIST: {"consumerGroup": "group"},
    RequestCode.GET_PRODUCER_CONNECTION_LIST: {"producerGroup": "group"},
    RequestCode.GET_ALL_PRODUCER_INFO: {},
    RequestCode.CLEAN_UNUSED_TOPIC: {},
}  # fmt: skip


def fill_one_of_each(broker: ScriptedBroker) -> None:
    """Make a queue with many entries, a topic with many queues, groups with many members, and many
    topics that are not configured any more.
    """
    whole = broker.broker
    store(broker, [""] * ENTRY_COUNT)
    whole.tables.topics.create("wide", queue_nums=QUEUE_COUNT)
    whole.tables.groups.put(SubscriptionGroupConfig(group_name="group"))
    for number in range(QUEUE_COUNT):
        whole.tables.offsets.commit("group", "wide", number, 1)
    data = decode_json(ConsumerData, json_of(groupName="group"))
    for number in range(MEMBER_COUNT):
        peer = FakePeer(f"10.0.0.1:{number}")
        client = Client(peer, f"client-{number}", 0, 401, seen_ms=0)
        whole.clients.consumers.register(data, client)
        whole.clients.producers.register("group", client)
        whole.clients.producers.register(f"group-{number}", client)


def test_long_answers_are_made_in_steps() -> None:
    async def ask(broker: ScriptedBroker, code: int) -> float:
        connected = broker.connect()
        for number in range(300 if code == RequestCode.CLEAN_UNUSED_TOPIC else 0):
            broker.broker.store._parts.queues.create(f"unused-{number}", 0)
        with longest_hold() as holds:
            (answer,) = await answered([connected], holds, [frame(code, LISTINGS[code])])
        assert answer.code == 0
        connected.peer.connection_lost(None)
        return holds.longest_s * HOLD_S_MAX / LISTING_S_MAX

    async def work(broker: ScriptedBroker) -> None:
        fill_one_of_each(broker)
        for code in LISTINGS:
            await check(partial(ask, broker, code))

    run_broker(False, work)


def items(count: int) -> bytes:
    parts = []
    for number in range(count):
        text = b"UNIQ_KEY\x01%08X" % number
        head = struct.pack(">iiiii", 0, 0, 0, 0, 1)
        parts.append(head + b"x" + struct.pack(">h", len(text)) + text)
    return b"".join(parts)


def send(topic: str, body: bytes, opaque: int, *, batch: bool = False, text: str = "") -> bytes:
    ext = {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": text, "j": "0", "k": "false", "l": "0", "m": str(batch).lower(),
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return frame(code, ext, body, opaque=opaque)


@lanes
@pytest.mark.parametrize("count", [3_000, 65_536])
def test_batches_hold_the_loop_for_a_bounded_time(lane: bool, count: int) -> None:
    data = send("T", items(count), 1, batch=True)

    async def send_batch(broker: ScriptedBroker) -> float:
        connected, beside = broker.connect(), broker.connect()
        before = broker.broker.store.reader.max_offset("T", 0)
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                await answered_later(connected, holds, data[start : start + CHUNK_BYTES])
            turns = 0
            while not connected.wire.sent:  # no event
                turns += 1
                beside.peer.data_received(send("T", b"beside", 10 + turns))
                await asyncio.sleep(0)
            await broker.settle()
        ((serialization, head, _),) = frames_of(bytes(connected.wire.sent))
        answer = decode_header(serialization, head)
        ids = answer.ext["msgId"].split(",")
        assert (answer.code, len(ids)) == (0, count)
        first = int(answer.ext["queueOffset"])
        queue = broker.broker.store.reader.queue("T", 0)
        assert queue is not None
        entries = entries_from(queue, first, count)
        assert [f"{offset:016X}" for offset, _, _ in entries] == [one[-16:] for one in ids]
        assert all(offset + size == later for (offset, size, _), (later, _, _) in pairwise(entries))
        assert len(frames_of(bytes(beside.wire.sent))) == turns
        assert broker.broker.store.reader.max_offset("T", 0) == before + count + turns
        for one in (connected, beside):
            one.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_batch(broker))

    run_broker(lane, work)


@lanes
def test_requests_behind_a_large_batch_keep_their_order(lane: bool) -> None:
    async def work(broker: ScriptedBroker) -> None:
        connected = broker.connect()
        connected.peer.data_received(
            send("T", b"1", 1) + send("T", items(5_000), 2, batch=True) + send("T", b"3", 3)
            + send("T", items(5_000)[:-1], 4, batch=True) + send("T", b"5", 5)
        )  # fmt: skip
        async with asyncio.timeout(30):
            while len(frames_of(bytes(connected.wire.sent))) < 5:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        found = {
            answer.opaque: (answer.code, answer.ext.get("queueOffset"))
            for answer in (decode_header(*one[:2]) for one in frames_of(bytes(connected.wire.sent)))
        }
        assert found == {1: (0, "0"), 2: (0, "1"), 3: (0, "5001"), 4: (1, None), 5: (0, "5002")}
        assert broker.broker.pending.large_batches.size == 0

    run_broker(lane, work)


def test_a_broker_that_stops_stores_a_large_batch_whole() -> None:
    async def work(broker: ScriptedBroker) -> None:
        connected = broker.connect()
        connected.peer.data_received(send("T", items(30_000), 1, batch=True))
        while broker.broker.store.writer.placing is None:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        assert broker.broker.store.reader.max_offset("T", 0) == 0
        await broker.broker.driver.drain()
        assert broker.broker.store.reader.max_offset("T", 0) == 30_000

    run_broker(False, work)


def test_a_batch_above_the_limit_is_not_split_whole() -> None:
    item = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + bytes(2)
    items = split_batch(item * 100_000, 11)
    assert len(items) == 11


def texts(kind: str) -> list[bytes]:
    """Return the properties of a batch of about 4 MB that take as much time as possible."""
    if kind == "keys":
        return [b"KEYS\x01" + b" ".join([b"%x" % key for key in range(6_000)])] * 40
    if kind == "separators":
        return [b"\x02" * 32_000] * 128
    return [b"b\x01c\x02" * 2_000] * 500


@lanes
@pytest.mark.parametrize("kind", ["keys", "separators", "pairs"])
def test_batches_of_costly_properties_hold_the_loop_for_a_bounded_time(
    lane: bool, kind: str
) -> None:
    parts = [struct.pack(">iiiiih", 0, 0, 0, 0, 0, len(text)) + text for text in texts(kind)]
    data = send("T", b"".join(parts), 1, batch=True)

    async def send_batch(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                await answered_later(connected, holds, data[start : start + CHUNK_BYTES])
            while not connected.wire.sent:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
            await broker.settle()
        ((serialization, head, _),) = frames_of(bytes(connected.wire.sent))
        assert decode_header(serialization, head).code == 0
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_batch(broker))

    run_broker(lane, work)


SENDS_WITH_KEYS = 25


@lanes
def test_sends_with_thousands_of_keys_hold_the_loop_for_a_bounded_time(lane: bool) -> None:
    keys = " ".join(f"{key:x}" for key in range(6_000))
    data = b"".join(
        send("T", b"x", number, text=f"KEYS\x01{keys}") for number in range(SENDS_WITH_KEYS)
    )

    async def send_all(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                await answered_later(connected, holds, data[start : start + CHUNK_BYTES])
            async with asyncio.timeout(30):
                while len(frames_of(bytes(connected.wire.sent))) < SENDS_WITH_KEYS:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await broker.settle()
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_all(broker))

    run_broker(lane, work)


@lanes
def test_a_batch_does_not_multiply_the_properties_of_its_request(lane: bool) -> None:
    body = struct.pack(">iiiiih", 0, 0, 0, 0, 0, 0) * 8_000
    data = send("T", body, 1, batch=True, text=f"a\x01{'b' * 30_000}")
    assert len(data) < CHUNK_BYTES

    async def send_batch(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        connected.peer.data_received(send("T", b"x", 0))  # the lane knows the topic
        await broker.settle()
        connected.wire.sent.clear()
        with longest_hold() as holds:
            await answered_later(connected, holds, data)
            while not connected.wire.sent:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        ((serialization, head, _),) = frames_of(bytes(connected.wire.sent))
        answer = decode_header(serialization, head)
        assert (answer.code, "33554432" in str(answer.remark)) == (13, True)
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_batch(broker))

    run_broker(lane, work)
