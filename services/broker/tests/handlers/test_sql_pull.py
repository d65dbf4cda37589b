# SPDX-License-Identifier: Apache-2.0

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.filters.compiling import AT_ONCE_CHARS_MAX, Compiler
from cometmq.broker.handlers import clients
from cometmq.broker.handlers.clients import connection_closed
from cometmq.broker.storing import store_reads
from cometmq.remoting.bodies.heartbeat import (
    ClientConfigCheck,
    ConsumerData,
    Heartbeat,
    SubscriptionData,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.message.record import decode_record
from cometmq.runtime.limits import LimitReached
from cometmq.store.os_disk import OsFile
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import ask, call_with, last_answer, stored_broker

SUSPEND, SUBSCRIPTION = 2, 4
PULL = PullMessage("G", "T", 1, 0, 32, 0, 0, 15_000, 5, None, "SQL92")
OWN = {"sys_flag": SUBSCRIPTION, "subscription": "a > 5"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path, enablePropertyFilter="true") as broker:
        broker.tables.topics.create("T", queue_nums=4)
        yield broker


def store(broker: Broker, *values: object, topic: str = "T", retry_of: str = "") -> None:
    for value in values:
        text = f"a\x01{value}" + (f"\x02RETRY_TOPIC\x01{retry_of}" if retry_of else "")
        header = SendMessageV2("P", topic, "TBW102", 4, 1, 0, 0, 0, text)
        broker.driver.put(message_of(broker, header, str(value).encode()), lambda _: None)
    broker.driver.commit()


def message_of(broker: Broker, header: SendMessageV2, body: bytes) -> Any:
    from cometmq.remoting.message.new_message import NewMessage

    return NewMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=bytes(8),
        store_host=broker.process.store_host,
        body=body,
        properties=header.properties or "",
    )


def subscribe(
    broker: Broker, expression: str = "a > 5", *, version: int = 5, kind: str = "SQL92"
) -> FakePeer:
    peer = FakePeer()
    wanted = SubscriptionData(
        topic="T", sub_string=expression, expression_type=kind, sub_version=version
    )
    retries = SubscriptionData(topic="%RETRY%G", sub_string="*", sub_version=version)
    beat = Heartbeat(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name="G", subscription_data_set=[wanted, retries])],
    )
    clients.heart_beat(broker, Call(34, NoHeader(), body=msgspec.json.encode(beat), peer=peer))
    return peer


def pull_call(**fields: Any) -> Call[PullMessage]:
    return call_with(RequestCode.PULL_MESSAGE, msgspec.structs.replace(PULL, **fields))


def pull(broker: Broker, **fields: Any) -> Any:
    return ask(broker, pull_call(**fields))


def bodies(reply: Any) -> list[bytes]:
    return [decode_record(record).body for record in reply.body]


def hold(broker: Broker, **fields: Any) -> Call[PullMessage]:
    call = pull_call(sys_flag=SUSPEND, **fields)
    assert ask(broker, call) is None
    return call


def test_a_registered_expression_filters(broker: Broker) -> None:
    subscribe(broker)
    store(broker, 5, 6, "x", 7)
    reply = pull(broker)
    assert bodies(reply) == [b"6", b"7"]
    assert (reply.code, reply.remark) == (0, "FOUND")
    assert reply.header.next_begin_offset == 4
    assert broker.stats.groups["T", "G"].get_count == 2


def test_a_pull_may_carry_an_expression(broker: Broker) -> None:
    store(broker, 5, 6)
    assert bodies(pull(broker, **OWN)) == [b"6"]


def test_an_empty_result_moves_the_offset_on(broker: Broker) -> None:
    subscribe(broker)
    store(broker, 1, 2, 3)
    reply = pull(broker)
    assert (reply.code, reply.remark) == (20, "NO_MATCHED_MESSAGE")
    assert reply.header.next_begin_offset == 3


@pytest.mark.parametrize("expression", ["a >", "a IN (1)"])
def test_invalid_sql_in_the_pull_matches_everything(broker: Broker, expression: str) -> None:
    store(broker, 1, 9)
    assert bodies(pull(broker, sys_flag=SUBSCRIPTION, subscription=expression)) == [b"1", b"9"]


@pytest.mark.parametrize("expression", ["", None])
def test_an_empty_expression_in_the_pull_is_refused(broker: Broker, expression: str | None) -> None:
    store(broker, 1)
    reply = pull(broker, sys_flag=SUBSCRIPTION, subscription=expression)
    assert (reply.code, reply.remark) == (23, "parse the consumer's subscription failed")


def test_an_unknown_type_in_the_pull_matches_everything(broker: Broker) -> None:
    store(broker, 1)
    assert bodies(pull(broker, expression_type="LUA", **OWN)) == [b"1"]


def test_an_invalid_registered_expression_does_not_exist(broker: Broker) -> None:
    subscribe(broker, "a >")
    reply = pull(broker)
    assert (reply.code, reply.remark) == (
        27,
        "The broker's consumer filter data is not exist!Your expression may be wrong!",
    )


def test_a_filter_that_is_older_than_the_pull(broker: Broker) -> None:
    subscribe(broker, version=5)
    group = broker.clients.consumers.group("G")
    assert group is not None
    group.subscriptions["T"].sub_version = 6
    reply = pull(broker, sub_version=6)
    assert (reply.code, reply.remark) == (28, "the consumer's consumer filter data not latest")


@pytest.mark.parametrize(
    ("expression", "kind", "sub_version", "code"),
    [("a > 5", "SQL92", 5, 1), ("a >", "SQL92", 5, 27), ("a > 5", "LUA", 5, 27),
     ("", "SQL92", 5, 27), ("a > 5", "SQL92", 6, 28)],
)  # fmt: skip
async def test_a_broker_without_sql_looks_for_the_filter_first(
    tmp_path: Path, expression: str, kind: str, sub_version: int, code: int
) -> None:
    async with stored_broker(tmp_path) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        subscribe(broker, expression, kind=kind, version=5)
        group = broker.clients.consumers.group("G")
        assert group is not None
        group.subscriptions["T"].sub_version = sub_version
        assert pull(broker, sub_version=sub_version).code == code


async def test_a_broker_without_sql_refuses(tmp_path: Path) -> None:
    async with stored_broker(tmp_path) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        subscribe(broker)
        for fields in ({}, OWN):
            reply = pull(broker, **fields)
            assert (reply.code, reply.remark) == (
                1,
                "The broker does not support consumer to filter message by SQL92",
            )


def test_an_arrival_wakes_only_if_the_filter_accepts_it(broker: Broker) -> None:
    subscribe(broker)
    call = hold(broker)
    store(broker, 1, 2)
    store(broker, 3)
    assert last_answer(call) is None
    assert broker.pending.hold.count == 1

    store(broker, 4, 6, 5)

    reply = last_answer(call)
    assert bodies(reply) == [b"6"]
    assert reply.header.next_begin_offset == 6
    assert broker.pending.hold.count == 0


def test_each_message_is_tested_once_for_a_held_pull(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(broker)
    hold(broker)
    looked: list[int] = []
    find = broker.store.reader.find_messages

    def note(*args: Any, **fields: Any) -> Any:
        looked.append(args[2])
        return find(*args, **fields)

    monkeypatch.setattr(broker.store.reader, "find_messages", note)
    for value in (1, 2, 3):
        store(broker, value)
    assert looked == [0, 1, 2]


def test_the_sweep_moves_a_filtered_consumer_on(broker: Broker) -> None:
    subscribe(broker)
    call = hold(broker)
    store(broker, 1, 2)
    broker.pending.hold.sweep(0, broker.store.reader.max_offset)
    broker.driver.turn.wake()
    reply = last_answer(call)
    assert (reply.code, reply.header.next_begin_offset) == (20, 2)


def test_the_search_of_a_closed_connection_ends(broker: Broker) -> None:
    subscribe(broker)
    call = hold(broker)
    broker.pending.hold.drop(call.peer)
    store(broker, 6)
    assert last_answer(call) is None


async def test_a_long_search_yields_the_loop(broker: Broker) -> None:
    subscribe(broker)
    store(broker, *range(-700, 0))
    call = pull_call()
    assert ask(broker, call) is None  # the read has reached the limit of this turn
    await broker.driver.drain()
    reply = last_answer(call)
    assert (reply.code, reply.header.next_begin_offset) == (20, 700)


async def test_several_searches_share_a_turn(broker: Broker) -> None:
    subscribe(broker)
    store(broker, *range(-200, 0))
    calls = [pull_call() for _ in range(8)]
    at_once = [ask(broker, call) is not None for call in calls]
    assert at_once[0]
    assert not all(at_once)
    await broker.driver.drain()
    replies = [last_answer(call) for call in calls]
    assert [reply.code for reply in replies if reply is not None] == [20] * 8


async def test_a_cold_search_waits_on_a_thread(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(broker)
    store(broker, 6)
    monkeypatch.setattr(OsFile, "read_cached", lambda *_: None)
    call = pull_call()
    assert ask(broker, call) is None
    await broker.driver.drain()
    assert bodies(last_answer(call)) == [b"6"]


async def test_a_held_pull_whose_new_messages_are_cold_is_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(broker)
    call = hold(broker)
    monkeypatch.setattr(OsFile, "read_cached", lambda *_: None)
    store(broker, 1)
    store(broker, 6)
    await broker.driver.drain()
    assert bodies(last_answer(call)) == [b"6"]


async def test_retries_are_filtered_if_the_setting_says_so(tmp_path: Path) -> None:
    settings = {"enablePropertyFilter": "true", "filterSupportRetry": "true"}
    async with stored_broker(tmp_path, **settings) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        broker.tables.topics.create("%RETRY%G", queue_nums=4)
        subscribe(broker)
        for value, origin in ((5, "T"), (6, "T"), (5, "other")):
            store(broker, value, topic="%RETRY%G", retry_of=origin)
        retry_pull = {"topic": "%RETRY%G", "expression_type": "TAG"}
        assert bodies(pull(broker, **retry_pull)) == [b"6", b"5"]
        broker.tables.filters.unregister("G")
        assert bodies(pull(broker, **retry_pull)) == [b"6", b"5"]


async def test_compiling_for_retries_counts_against_the_allowance(tmp_path: Path) -> None:
    settings = {"enablePropertyFilter": "true", "filterSupportRetry": "true"}
    async with stored_broker(tmp_path, **settings) as broker:
        turns: list[Callable[[], None]] = []
        broker.tables.filters.arriving.compiler = Compiler(broker.clock.now_ms, turns.append)
        broker.tables.topics.create("T", queue_nums=4)
        broker.tables.topics.create("%RETRY%G", queue_nums=4)
        subscribe(broker)
        found = broker.tables.filters.get("T", "G")
        assert found is not None
        found.expression = "a > 5 ".ljust(AT_ONCE_CHARS_MAX + 1)  # as loaded from a file
        store(broker, 5, 6, topic="%RETRY%G", retry_of="T")
        retry_pull = {"topic": "%RETRY%G", "expression_type": "TAG"}
        assert pull(broker, **retry_pull).code == ResponseCode.SYSTEM_BUSY
        while turns:
            turns.pop(0)()
        assert bodies(pull(broker, **retry_pull)) == [b"6"]


def test_a_check_of_a_long_expression_is_answered_after_compiling(broker: Broker) -> None:
    turns: list[Callable[[], None]] = []
    broker.tables.filters.arriving.compiler = Compiler(broker.clock.now_ms, turns.append)
    answers: list[int] = []
    for expression in ("b > 5", "b >"):
        wanted = SubscriptionData(
            topic="T", sub_string=expression.rjust(AT_ONCE_CHARS_MAX + 1), expression_type="SQL92"
        )
        check = ClientConfigCheck(client_id="c", group="G", subscription_data=wanted)
        call = call_with(RequestCode.CHECK_CLIENT_CONFIG, NoHeader())
        call.body = msgspec.json.encode(check)
        assert clients.check_client_config(broker, call) is None
        assert not call.is_answered
        while turns:
            turns.pop(0)()
        answer = last_answer(call)
        answers.append(answer.code)
    assert answers == [ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_PARSE_FAILED]


def test_retries_are_not_filtered_by_default(broker: Broker) -> None:
    subscribe(broker)
    store(broker, 5, 6, topic="%RETRY%G", retry_of="T")
    group = broker.tables.groups.get("G")
    config = broker.tables.topics.get("%RETRY%G")
    assert group is not None
    assert config is not None
    broker.tables.topics.put(msgspec.structs.replace(config, read_queue_nums=4))
    assert bodies(pull(broker, topic="%RETRY%G", expression_type="TAG")) == [b"5", b"6"]


def test_the_filter_is_marked_dead_with_the_last_member(broker: Broker) -> None:
    peer = subscribe(broker)
    found = broker.tables.filters.get("T", "G")
    assert found is not None
    assert not found.is_dead
    connection_closed(broker, peer)
    assert found.is_dead
    subscribe(broker)
    assert not found.is_dead


async def test_a_long_expression_tests_fewer_messages_per_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is: the length of the expression counts here, not the time.
    monkeypatch.setattr(store_reads, "thread_time", lambda: 0.0)
    store(broker, *range(-200, 0))
    chain = " OR ".join(f"a={number}" for number in range(500))
    call = pull_call(sys_flag=SUBSCRIPTION, subscription=chain)
    short = pull_call(sys_flag=SUBSCRIPTION, subscription="a = 1")
    assert ask(broker, short) is not None
    await broker.driver.drain()
    assert ask(broker, call) is None
    await broker.driver.drain()
    reply = last_answer(call)
    assert (reply.code, reply.header.next_begin_offset) == (20, 200)


def test_the_filter_characters_of_a_client_are_bounded(broker: Broker) -> None:
    long = "a = '" + "x" * 8_000 + "'"
    wanted = [
        SubscriptionData(topic=f"T{number}", sub_string=long, expression_type="SQL92")
        for number in range(5)
    ]
    beat = Heartbeat(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name="G", subscription_data_set=wanted)],
    )
    call = Call(34, NoHeader(), body=msgspec.json.encode(beat), peer=FakePeer())
    with pytest.raises(LimitReached, match=r"SQL92 filters in one heartbeat: .* 32768"):
        clients.heart_beat(broker, call)
    assert broker.tables.filters.count == 0


def test_a_flood_of_expressions_is_answered_busy(broker: Broker) -> None:
    subscribe(broker)
    store(broker, 6)
    answers = [
        pull(broker, sys_flag=SUBSCRIPTION, subscription=f"flood = {number}".ljust(8_000)).code
        for number in range(20)
    ]
    assert set(answers) == {2, 20}
    assert answers == sorted(answers, reverse=True)
    assert bodies(pull(broker)) == [b"6"]
