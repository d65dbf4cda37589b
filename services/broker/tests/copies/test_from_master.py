# SPDX-License-Identifier: Apache-2.0
"""A slave's copies of its master's tables."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from cometmq.broker.copies.from_master import MasterCopies
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.delays.level import DelayFile
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Response
from cometmq.remoting.errors import ConnectFailed, ServerError
from cometmq.remoting.message.new_message import encode_record
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.testing.broker.brokers import memory_broker
from cometmq.testing.broker.holds import HOLD_S_MAX, adjusted, longest_hold
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.builders import make_message

MASTER = "10.0.0.1:10911"
CONFIG = (
    b"brokerName=broker-a\nbrokerClusterName=PeersCluster\nbrokerId=0\n"
    b"mappedFileSizeCommitLog=1073741824\nunknown=1\n"
)


class Delay:
    def __init__(self) -> None:
        self.adopted = DelayFile()
        self.is_dirty = False

    def adopt(self, table: DelayFile) -> None:
        self.adopted = table


class Saver:
    def __init__(self) -> None:
        self.requested: list[object] = []

    def request_if_dirty(self, table: Any) -> None:
        if table.is_dirty:
            self.requested.append(table)


class Master:
    """Answers a slave's requests; an answer may be an error to raise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers: dict[int, bytes | Exception] = {
            Code.GET_ALL_TOPIC_CONFIG: encode_json(
                TopicConfigTable(
                    data_version=DataVersion(7, 3),
                    topic_config_table={"T": TopicConfig(topic_name="T")},
                )
            ),
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: encode_json(
                SubscriptionGroupTable(
                    data_version=DataVersion(8, 4),
                    subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")},
                )
            ),
            Code.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:12,1:3}}}',
            Code.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:5,18:2}}',
            Code.GET_BROKER_CONFIG: CONFIG,
        }
        self.set_log(0, 1000)

    def set_log(self, first: int, end: int) -> None:
        table = {"commitLogMinOffset": str(first), "commitLogMaxOffset": str(end)}
        self.answers[Code.GET_BROKER_RUNTIME_INFO] = encode_json(KVTable(table=table))

    async def invoke(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
    ) -> Response:
        self.asked.append((address, int(code)))
        answer = self.answers[int(code)]
        if isinstance(answer, Exception):
            raise answer
        return Response(0, None, {}, answer)


class End:
    end = 500


def stored(body: bytes = b"x", stored_ms: int = 1) -> bytes:
    """Return the bytes of a message at offset 400 of a log."""
    return encode_record(make_message(body=body), 7, 400, stored_ms)


class Rig:
    def __init__(self) -> None:
        self.broker = memory_broker(brokerRole="SLAVE", brokerId="1")
        self.broker.registration.registrant.master_address = MASTER
        self.master = Master()
        self.status = self.broker.replication.following
        self.log = self.broker.log = RecordingLog()
        self.saver = self.broker.tables.saver = cast("Any", Saver())
        self.end = End()
        self.newest: bytes | None = None
        self.unfit: list[UnfitLog] = []
        self.delay = cast("Any", Delay())
        self.broker.clock = clock = FakeClock()
        clock.advance(1)
        self.copies = MasterCopies(
            self.broker,
            self.master,
            is_slave=lambda: self.broker.role.is_slave,
            note_unfit=self.unfit.append,
        )
        replaced: Any = self.copies
        replaced._commit_log, replaced._delay = self.end, self.delay
        replaced._newest_record = self.newest_record

    async def newest_record(self) -> MessageRecord | None:
        return None if self.newest is None else decode_record(self.newest)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_topics_and_groups_become_the_masters_in_its_version(rig: Rig) -> None:
    await rig.copies.step()
    assert set(rig.broker.tables.topics.table) == {"T"}
    assert rig.broker.tables.topics.version == DataVersion(7, 3)
    assert set(rig.broker.tables.groups.table) == {"G"}
    assert rig.broker.tables.groups.version == DataVersion(8, 4)
    assert rig.broker.tables.topics.is_dirty
    assert rig.broker.tables.groups.is_dirty
    assert rig.status.tables_copied_ms > 0
    assert {address for address, _ in rig.master.asked} == {MASTER}


async def test_an_equal_version_changes_nothing(rig: Rig) -> None:
    await rig.copies.step()
    rig.broker.tables.topics.is_dirty = rig.broker.tables.groups.is_dirty = False
    await rig.copies.step()
    assert not rig.broker.tables.topics.is_dirty
    assert not rig.broker.tables.groups.is_dirty


async def test_all_copied_topics_are_registered_whatever_was_before(rig: Rig) -> None:
    await rig.copies.step()
    assert set(rig.broker.tables.topics.changes(None)) == {"T"}
    rig.broker.tables.topics.put(TopicConfig(topic_name="Local"))
    assert set(rig.broker.tables.topics.changes(DataVersion(7, 3))) == {"Local"}


async def test_offsets_overwrite_the_slaves_even_backwards(rig: Rig) -> None:
    rig.broker.tables.offsets.commit("G", "T", 0, 99)
    rig.broker.tables.offsets.commit("Other", "T", 0, 7)
    await rig.copies.step()
    assert rig.broker.tables.offsets.queues("G", "T") == {0: 12, 1: 3}
    assert rig.broker.tables.offsets.committed("Other", "T", 0) == 7
    assert rig.saver.requested == [rig.broker.tables.offsets]
    assert rig.broker.tables.offsets.index.groups_of("T") == {"G", "Other"}


def entries(make: Callable[[int], str], size: int = 16 << 20) -> bytes:
    """Return the members of a table that fill a frame."""
    count = size // len(make(1_000_000))
    return ",".join(map(make, range(1_000_000, 1_000_000 + count))).encode()


def topic(number: int) -> str:
    name = f"T{number}"
    return f'"{name}":{{"perm":6,"readQueueNums":4,"topicName":"{name}","writeQueueNums":4}}'


def group(number: int) -> str:
    return f'"G{number}":{{"groupName":"G{number}","retryMaxTimes":5}}'


def offset(number: int) -> str:
    return f'"T{number}@G{number % 100}":{{0:{number},1:{number},2:{number},3:{number}}}'


@pytest.mark.load
@pytest.mark.parametrize(
    ("code", "body"),
    [
        (Code.GET_ALL_TOPIC_CONFIG, b'{"dataVersion":{"counter":%d},"topicConfigTable":{%b}}'),
        (
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            b'{"dataVersion":{"counter":%d},"subscriptionGroupTable":{%b}}',
        ),
        (Code.GET_ALL_CONSUMER_OFFSET, b'{"dataVersion":{"counter":%d},"offsetTable":{%b}}'),
    ],
)
async def test_the_largest_tables_hold_the_loop_for_a_bounded_time(
    rig: Rig, code: Code, body: bytes
) -> None:
    kinds = {43: offset, 21: topic, 201: group}
    make = kinds[int(code)]
    members, few = entries(make), entries(make, 1_000)
    count, few_count = (size // len(make(1_000_000)) for size in (16 << 20, 1_000))
    tables = rig.broker.tables
    names: dict[int, Any] = {43: tables.offsets, 21: tables.topics, 201: tables.groups}
    counter = iter(range(10, 1_000))

    async def copy() -> float:
        bodies = [body % (next(counter), part) for part in (members, few)]
        counts = []
        with longest_hold() as holds:
            for rig.master.answers[int(code)] in bodies:
                await rig.copies.step()
                await asyncio.sleep(0)
                counts.append(len(names[int(code)].table))
        is_kept = code == Code.GET_ALL_CONSUMER_OFFSET
        assert counts == [count, count if is_kept else few_count]
        assert not rig.log.named("replica.copy_failed")
        return holds.longest_s

    holds = [adjusted(await copy())]
    while holds[-1] >= HOLD_S_MAX:
        assert len(holds) < 8, holds
        holds.append(adjusted(await copy()))


async def test_a_slave_that_becomes_the_master_adopts_no_more(rig: Rig) -> None:
    rig.master.answers[Code.GET_ALL_CONSUMER_OFFSET] = b'{"offsetTable":{%b}}' % entries(
        offset, 4 << 20
    )
    table = rig.broker.tables.offsets.table
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.copies.step())
        while not table:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        vars(rig.copies)["_is_slave"] = lambda: False
        before = len(table)
    assert len(table) == before


async def test_positions_of_delay_levels_are_adopted(rig: Rig) -> None:
    await rig.copies.step()
    assert rig.delay.adopted == DelayFile({1: 5, 18: 2})


async def test_one_failed_table_does_not_keep_the_others_and_is_logged_once(rig: Rig) -> None:
    rig.master.answers[Code.GET_ALL_TOPIC_CONFIG] = ConnectFailed(MASTER)
    rig.master.answers[Code.GET_ALL_DELAY_OFFSET] = b"{"
    for _ in range(3):
        await rig.copies.step()
    assert rig.broker.tables.offsets.committed("G", "T", 0) == 12
    failed = [fact["table"] for fact in rig.log.named("replica.copy_failed")]
    assert failed == ["topics", "delay"]
    assert rig.status.table_failed_count == 6
    assert rig.status.tables_copied_ms == 0


async def test_a_master_copies_nothing(rig: Rig) -> None:
    rig.broker.registration.registrant.master_address = (
        rig.broker.registration.registrant.identity.broker_addr
    )
    await rig.copies.step()
    await rig.copies.inspect()
    assert rig.master.asked == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CONFIG.replace(b"broker-a", b"broker-b"), Unfit.FOREIGN),
        (CONFIG.replace(b"PeersCluster", b"Other"), Unfit.FOREIGN),
        (CONFIG.replace(b"brokerId=0", b"brokerId=2"), Unfit.FOREIGN),
        (CONFIG.replace(b"1073741824", b"4096"), Unfit.FILE_SIZE),
    ],
)
async def test_another_master_is_refused_by_name(rig: Rig, config: bytes, reason: Unfit) -> None:
    rig.master.answers[Code.GET_BROKER_CONFIG] = config
    with pytest.raises(UnfitLog, match=MASTER) as caught:
        await rig.copies.inspect()
    assert caught.value.reason is reason


async def test_the_name_of_a_master_is_asked_once(rig: Rig) -> None:
    await rig.copies.inspect()
    await rig.copies.inspect()
    assert [code for _, code in rig.master.asked].count(Code.GET_BROKER_CONFIG) == 1
    assert rig.status.behind_bytes(rig.end.end) == 500


@pytest.mark.parametrize(
    ("first", "end", "reason"), [(0, 499, Unfit.AHEAD), (501, 900, Unfit.EXPIRED)]
)
async def test_a_log_without_a_common_place_is_refused(
    rig: Rig, first: int, end: int, reason: Unfit
) -> None:
    rig.master.set_log(first, end)
    with pytest.raises(UnfitLog, match="500") as caught:
        await rig.copies.inspect()
    assert caught.value.reason is reason


async def test_a_log_that_is_ahead_is_noticed_while_it_is_followed(rig: Rig) -> None:
    """RocketMQ's master keeps sending heartbeats to a slave that is ahead of it."""
    rig.master.set_log(0, 499)
    await rig.copies.step()
    assert [error.reason for error in rig.unfit] == [Unfit.AHEAD]


async def test_a_log_that_was_ahead_stays_refused(rig: Rig) -> None:
    rig.status.unfit, rig.status.unfit_detail = Unfit.AHEAD, "was ahead"
    rig.master.set_log(0, 10_000)
    with pytest.raises(UnfitLog, match="was ahead"):
        await rig.copies.inspect()


@pytest.mark.parametrize("theirs", [stored(b"y"), stored(stored_ms=2)])
async def test_a_log_whose_last_message_is_another_one_is_refused(rig: Rig, theirs: bytes) -> None:
    """A former master whose last messages were not copied before a slave replaced it."""
    rig.newest = stored()
    rig.master.answers[Code.VIEW_MESSAGE_BY_ID] = theirs
    with pytest.raises(UnfitLog, match="at offset 400") as caught:
        await rig.copies.inspect()
    assert caught.value.reason is Unfit.DIVERGED
    rig.master.answers[Code.VIEW_MESSAGE_BY_ID] = stored()
    await rig.copies.inspect()


@pytest.mark.parametrize(
    "answer", [ServerError("can not find message by the offset, 400"), b"", stored()[:-1]]
)
async def test_a_last_message_that_the_master_does_not_return_proves_nothing(
    rig: Rig, answer: bytes | Exception
) -> None:
    rig.newest = stored()
    rig.master.answers[Code.VIEW_MESSAGE_BY_ID] = answer
    await rig.copies.inspect()
    assert len(rig.log.named("replica.unchecked")) == 1


async def test_an_empty_slave_may_begin_anywhere(rig: Rig) -> None:
    rig.end.end = 0
    rig.master.set_log(501, 900)
    await rig.copies.inspect()
    assert rig.status.behind_bytes(rig.end.end) == 900


@pytest.mark.parametrize("error", [ConnectFailed(MASTER), ServerError("No accessKey")])
async def test_a_master_that_does_not_answer_is_left_to_the_stream(
    rig: Rig, error: Exception
) -> None:
    rig.master.answers[Code.GET_BROKER_RUNTIME_INFO] = error
    await rig.copies.inspect()
    rig.master.answers[Code.GET_BROKER_RUNTIME_INFO] = b'{"table":{}}'
    await rig.copies.inspect()
    assert len(rig.log.named("replica.unchecked")) == 2
