# SPDX-License-Identifier: Apache-2.0
"""No request holds the loop for more than 20 ms, whatever it contains."""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.storing import store_reads
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.header import decode_header
from cometmq.remoting.message.new_message import NewMessage
from cometmq.testing.broker.holds import HOLD_S_MAX, Holds, longest_hold
from cometmq.testing.broker.scripted import Connected, ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import frame
from cometmq.testing.remoting.peer import FakePeer

from .costly import expression, properties
from .holding import (
    CHUNK_BYTES,
    answered_later,
    check,
    consumer,
    json_of,
    lanes,
    run_broker,
    subscriptions,
)

BUSY, RETRY = 2, 20


def pull(text: str, opaque: int, *, offset: int = 0, suspend_ms: int = 0) -> bytes:
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6" if suspend_ms else "4", "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
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


@pytest.mark.load
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
def test_the_filters_of_many_held_pulls_share_turns(lane: bool) -> None:
    """The pulls are of one account's connections, and so are the messages that wake no pull."""
    text = "nobody = 1"

    async def work(broker: ScriptedBroker) -> None:
        store(broker, ["p\x011"])
        with longest_hold() as holds:
            codes = [BUSY]
            while codes == [BUSY]:
                first = await answered([broker.connect()], holds, [pull(text, 1)])
                codes = [first[0].code]
                broker.clock.advance(1_000)
        connections = [broker.connect() for _ in range(60)]
        for connected in connections:
            for number in range(200):
                connected.peer.data_received(pull(text, number, offset=1, suspend_ms=60_000))
        hold, reads = broker.broker.pending.hold, broker.broker.driver.reads
        while hold.count < 12_000:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)

        async def arrive() -> float:
            with longest_hold() as holds:
                holds.measure(lambda: store(broker, ["p\x011"]))
                while hold.visits or hold.unsure or len(reads):  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0)
            return holds.longest_s

        await check(arrive)
        assert hold.count == 12_000

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


@pytest.mark.load
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


@pytest.mark.load
@lanes
def test_many_locks_that_come_and_go_hold_the_loop_for_a_bounded_time(lane: bool) -> None:
    """Each is counted against the share of its peer, which takes longer than to renew it."""
    body = json_of(consumerGroup="g", clientId="c", mqSet=queues(19_000))

    async def send(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        with longest_hold() as holds:
            for number, code in enumerate((41, 42), 1):
                await answered_later(connected, holds, frame(code, {}, body))
                while len(replies_of(connected)) < number:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0)
                assert broker.broker.clients.locks.count == (19_000 if code == 41 else 0)
        assert [header.code for header in replies_of(connected)] == [0, 0]
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send(broker))

    run_broker(lane, work)


def replies_of(connected: Connected) -> list[Any]:
    headers = [decode_header(*found[:2]) for found in frames_of(bytes(connected.wire.sent))]
    return [header for header in headers if header.is_reply]


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


@pytest.mark.load
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


@pytest.mark.load
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
