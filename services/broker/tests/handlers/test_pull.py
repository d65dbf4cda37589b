# SPDX-License-Identifier: Apache-2.0

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.habits import INTERVAL_MS
from cometmq.broker.clients.producers import Client
from cometmq.broker.role import ServedRole
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.record import decode_record
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsFile
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import ask, clock_of, last_answer, stored_broker

from .pulls import COMMIT, SUBSCRIPTION, bodies, pull_call, store


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        yield broker


def pull(broker: Broker, **fields: Any) -> Any:
    return ask(broker, pull_call(**fields))


def subscribe(broker: Broker, expression: str, *, model: str = "CLUSTERING") -> None:
    tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
    subscription = SubscriptionData(
        topic="T",
        sub_string=expression,
        tags_set=tags,
        code_set=[tag_code(tag) for tag in tags],
        sub_version=100,
    )
    data = ConsumerData(
        group_name="G",
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    broker.clients.consumers.register(data, Client(FakePeer(), "c", 0, 401, 0))


def test_messages_are_answered_as_stored(broker: Broker) -> None:
    store(broker, "a", "b", "c")
    reply = pull(broker, queue_offset=1)

    assert (reply.code, reply.remark) == (0, "FOUND")
    assert reply.header == PullMessageReply(0, 3, 0, 3)
    assert bodies(reply) == [b"b", b"c"]
    assert (broker.stats.get_count, broker.stats.found_count) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "code", "remark", "next_offset"),
    [
        ({"queue_offset": 3}, 19, "OFFSET_OVERFLOW_ONE", 3),
        ({"queue_offset": 4}, 21, "OFFSET_OVERFLOW_BADLY", 3),
        ({"queue_offset": -1}, 21, "OFFSET_TOO_SMALL", 0),
        ({"queue_id": 0}, 19, "NO_MESSAGE_IN_QUEUE", 0),
        ({"queue_id": 0, "queue_offset": 7}, 21, "NO_MESSAGE_IN_QUEUE", 0),
        ({"subscription": "nothing"}, 20, "NO_MATCHED_MESSAGE", 3),
    ],
)
def test_statuses(
    broker: Broker, fields: dict[str, Any], code: int, remark: str, next_offset: int
) -> None:
    store(broker, "a", "b", "c")
    reply = pull(broker, **fields)

    assert (reply.code, reply.remark) == (code, remark)
    assert reply.header.next_begin_offset == next_offset
    assert broker.stats.miss_count == 1


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"queue_offset": 3}, 19, "OFFSET_OVERFLOW_ONE"),
        ({"queue_offset": 9}, 20, "OFFSET_OVERFLOW_BADLY"),
        ({"queue_offset": -1}, 20, "OFFSET_TOO_SMALL"),
        ({"queue_id": 0, "queue_offset": 7}, 20, "NO_MESSAGE_IN_QUEUE"),
    ],
)
def test_a_slave_corrects_no_offsets(
    broker: Broker, fields: dict[str, Any], code: int, remark: str
) -> None:
    """A slave's log may lag, so the consumer retries there or on the master."""
    store(broker, "a", "b", "c")
    broker.role.take(ServedRole.SLAVE, 1)
    reply = pull(broker, **fields)

    assert (reply.code, reply.remark) == (code, remark)
    assert reply.header.next_begin_offset == fields["queue_offset"]
    assert reply.header.suggest_which_broker_id == 0
    assert broker.store.reader.max_offset("OFFSET_MOVED_EVENT", 0) == 0


async def test_a_slave_may_be_told_to_correct_offsets(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, offsetCheckInSlave="true") as broker:
        broker.tables.topics.create("T", queue_nums=4)
        store(broker, "a")
        broker.role.take(ServedRole.SLAVE, 1)
        reply = pull(broker, queue_offset=9)

    assert (reply.code, reply.header.next_begin_offset) == (21, 1)


@pytest.mark.parametrize(
    ("enabled", "is_far_behind", "suggested"),
    [("false", True, 0), ("true", False, 0), ("true", True, 1)],
)
async def test_a_consumer_far_behind_is_sent_to_a_slave_if_that_is_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str, *, is_far_behind: bool,
    suggested: int,
) -> None:  # fmt: skip
    async with stored_broker(tmp_path, slaveReadEnable=enabled) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        store(broker, "a")
        result = broker.store.reader.get_messages("T", 1, 0, 32)
        result.suggest_slave = is_far_behind
        monkeypatch.setattr(broker.store.reader, "get_messages", lambda *_, **__: result)
        assert pull(broker).header.suggest_which_broker_id == suggested


def test_a_slave_serves_reads_and_commits_no_offsets_of_pulls(broker: Broker) -> None:
    store(broker, "a")
    broker.role.take(ServedRole.SLAVE, 1)
    reply = pull(broker, sys_flag=SUBSCRIPTION | COMMIT, commit_offset=1)

    assert bodies(reply) == [b"a"]
    assert broker.tables.offsets.committed("G", "T", 1) is None


def test_a_pull_creates_no_queue(broker: Broker) -> None:
    pull(broker, queue_id=3)
    assert broker.store.reader.queue("T", 3) is None


def test_an_offset_outside_the_queue_is_reported_to_operators(broker: Broker) -> None:
    store(broker, "a")
    pull(broker, queue_offset=9)
    broker.driver.commit()

    (event,) = broker.store.reader.get_messages("OFFSET_MOVED_EVENT", 0, 0, 32).records
    assert b'"offsetRequest":9' in decode_record(event).body


def test_consumers_cannot_fill_the_disk_with_reports(broker: Broker) -> None:
    store(broker, "a")
    for offset in range(9, 20):
        pull(broker, queue_offset=offset)
    broker.driver.commit()
    assert broker.store.reader.max_offset("OFFSET_MOVED_EVENT", 0) == 1

    clock_of(broker).advance(INTERVAL_MS)
    pull(broker, queue_offset=9)
    broker.driver.commit()
    assert broker.store.reader.max_offset("OFFSET_MOVED_EVENT", 0) == 2


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("*", [b"a", b"b", b"c"]), ("b", [b"b"]), ("a || c", [b"a", b"c"]), ("", [b"a", b"b", b"c"])],
)
def test_tags_in_the_request(broker: Broker, expression: str, expected: list[bytes]) -> None:
    store(broker, "a", "b", "c")
    assert bodies(pull(broker, subscription=expression)) == expected


def test_tags_of_the_registered_subscription(broker: Broker) -> None:
    subscribe(broker, "a || c")
    store(broker, "a", "b", "c")
    reply = pull(broker, sys_flag=0, subscription=None, sub_version=100)
    assert bodies(reply) == [b"a", b"c"]


def test_the_answer_is_bounded_by_count(broker: Broker) -> None:
    store(broker, *("a" for _ in range(40)))
    assert len(pull(broker).body) == 32
    assert len(pull(broker, max_msg_nums=5).body) == 5
    assert len(pull(broker, max_msg_nums=-1).body) == 1
    assert len(pull(broker, max_msg_nums=1 << 30).body) == 32


def refusal(broker: Broker, **fields: Any) -> tuple[int, str | None]:
    reply = pull(broker, **fields)
    return reply.code, reply.remark


def test_refusals_of_requests(broker: Broker) -> None:
    faq = "See http://rocketmq.apache.org/docs/faq/ for further details."
    assert refusal(broker, topic="No") == (17, f"topic[No] not exist, apply first please! \n{faq}")
    assert refusal(broker, queue_id=4) == (
        1,
        (
            "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] "
            "consumer:[/127.0.0.1:40001]"
        ),
    )
    assert refusal(broker, queue_id=-1)[0] == 1
    assert refusal(broker, expression_type="SQL92", subscription="a > 1") == (
        1,
        "The broker does not support consumer to filter message by SQL92",
    )
    assert refusal(broker, subscription="||")[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_refusals_by_configuration(broker: Broker) -> None:
    config = broker.tables.topics.get("T")
    assert config is not None
    broker.tables.topics.put(msgspec.structs.replace(config, perm=2))
    assert refusal(broker) == (16, "the topic[T] pulling message is forbidden")
    broker.tables.groups.disable("G")
    assert refusal(broker) == (16, "subscription group no permission, G")


async def test_refusals_by_settings(tmp_path: Path) -> None:
    settings = {"autoCreateSubscriptionGroup": "false", "brokerPermission": "2"}
    async with stored_broker(tmp_path, **settings) as broker:
        assert refusal(broker) == (16, "the broker[127.0.0.1] pulling message is forbidden")
    settings["brokerPermission"] = "6"
    async with stored_broker(tmp_path, **settings) as broker:
        code, remark = refusal(broker)
        assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (remark or "").startswith("subscription group [G] does not exist, \n")


def test_consumers_must_be_registered_with_their_latest_subscription(broker: Broker) -> None:
    registered = {"sys_flag": 0, "subscription": None, "sub_version": 101}
    assert refusal(broker, **registered)[0] == ResponseCode.SUBSCRIPTION_NOT_EXIST
    subscribe(broker, "*")
    assert refusal(broker, **registered) == (25, "the consumer's subscription not latest")
    broker.tables.topics.create("U", queue_nums=4)
    code, remark = refusal(broker, **registered, topic="U")
    assert code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert (remark or "").startswith("the consumer's subscription not exist\n")


def test_broadcasting_must_be_allowed(broker: Broker) -> None:
    subscribe(broker, "*", model="BROADCASTING")
    config = broker.tables.groups.find("G", auto_create=True)
    assert config is not None
    broker.tables.groups.put(msgspec.structs.replace(config, consume_broadcast_enable=False))
    assert refusal(broker, sys_flag=0, subscription=None) == (
        16,
        "the consumer group[G] can not consume by broadcast way",
    )


def test_a_pull_may_carry_a_commit(broker: Broker) -> None:
    pull(broker, sys_flag=SUBSCRIPTION | COMMIT, commit_offset=7)
    assert broker.tables.offsets.committed("G", "T", 1) == 7
    pull(broker, sys_flag=SUBSCRIPTION, commit_offset=9)
    assert broker.tables.offsets.committed("G", "T", 1) == 7


async def test_cold_messages_are_read_on_a_worker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(broker, "a")
    monkeypatch.setattr(OsFile, "read_cached", lambda *_: None)
    call = pull_call()

    assert ask(broker, call) is None
    assert broker.stats.cold_read_count == 1
    await broker.driver.drain()

    answer = last_answer(call)
    assert answer is not None
    assert bodies(answer) == [b"a"]


async def test_a_cold_read_waits_for_room_and_reads_nothing_before(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(broker, "a")
    monkeypatch.setattr(OsFile, "read_cached", lambda *_: None)
    call = pull_call()
    call.peer.has_room = False

    assert ask(broker, call) is None
    await broker.driver.drain()
    assert last_answer(call) is None
    (waiting,) = call.peer.waiting

    call.peer.has_room = True
    waiting()
    await broker.driver.drain()
    answer = last_answer(call)
    assert answer is not None
    assert bodies(answer) == [b"a"]


async def test_a_commit_during_a_cold_read_is_newer_than_that_of_the_pull(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a departing member's pull would revert that member's last commit, and messages
    would be redelivered.
    """
    store(broker, "a")
    monkeypatch.setattr(OsFile, "read_cached", lambda *_: None)

    assert ask(broker, pull_call(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=7)) is None
    assert broker.tables.offsets.committed("G", "T", 1) == 7
    broker.tables.offsets.commit("G", "T", 1, 8)
    await broker.driver.drain()

    assert broker.tables.offsets.committed("G", "T", 1) == 8


async def test_a_cold_read_that_fails_is_an_answer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise DiskError("read", "/store/commitlog/0", errno.EIO)

    store(broker, "a")
    monkeypatch.setattr(OsFile, "read_cached", lambda *_: None)
    monkeypatch.setattr(OsFile, "read", fail)
    call = pull_call()

    assert ask(broker, call) is None
    await broker.driver.drain()

    answer = last_answer(call)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "EIO" in (answer.remark or "")


def test_a_topic_that_rocketmq_5_forbids_to_a_group_is_refused(broker: Broker) -> None:
    store(broker, "a")
    broker.tables.groups.kept = {"forbiddenTable": {"G": {"T": 4}}}
    remark = "the consumer group[G] is forbidden for topic[T]"
    assert refusal(broker) == (ResponseCode.NO_PERMISSION, remark)
    broker.tables.groups.kept = {}
    assert pull(broker).code == ResponseCode.SUCCESS
