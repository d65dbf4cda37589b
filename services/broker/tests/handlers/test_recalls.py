# SPDX-License-Identifier: Apache-2.0
"""Recalls of delayed messages, on a real store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.delays import recalled
from cometmq.broker.delays.due_runs import RUN_COUNT_MAX
from cometmq.broker.delays.recalled import COPIES_MAX
from cometmq.broker.handlers import HANDLERS, recalls
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.send import RecallMessage, RecallMessageReply, SendMessageV2
from cometmq.remoting.errors import CommandError, IllegalOperation, ServerError, TopicNotExist
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.runtime.limits import LimitReached
from cometmq.store import lookups
from cometmq.store.log.damage import DamagedRange
from cometmq.testing.broker.journals import InlineWorker, MemoryFiles, Node
from cometmq.testing.broker.stored import ask, call_with, clock_of, stored_broker
from cometmq.testing.store.memory_disk import MemoryDisk

DELAY_MS = 5_000
LEVEL = 2


@pytest.fixture(params=["32"])
async def broker(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """The parameter is the number of messages that a search by key may find."""
    given = {"messageDelayLevel": "1s 5s 10s", "recalledMax": "4"}
    async with stored_broker(tmp_path, **given, maxMsgsNumBatch=request.param) as broker:
        broker.tables.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        yield broker


def send(broker: Broker, key: str, more: str = "") -> None:
    text = f"UNIQ_KEY\x01{key}\x02DELAY\x01{LEVEL}\x02{more}"
    header = SendMessageV2("P", "T", "TBW102", 4, 0, 0, 0, 0, text)
    assert ask(broker, call_with(Code.SEND_MESSAGE_V2, header, key.encode())).code == 0


async def recall(broker: Broker, key: str, **changes: Any) -> str:
    handle = RecallHandle("T", "broker-a", 0, key)._replace(**changes).encode()
    return await recall_by(broker, handle)


async def recall_by(broker: Broker, handle: str, topic: str = "T") -> str:
    header = RecallMessage(topic, handle, "P")
    reply: Any = await HANDLERS[Code.RECALL_MESSAGE](broker, call_with(Code.RECALL_MESSAGE, header))  # type: ignore[misc]
    assert isinstance(reply, RecallMessageReply)
    return reply.msg_id


async def deliver(broker: Broker, after_ms: int = DELAY_MS) -> None:
    clock_of(broker).advance(after_ms)
    for _ in range(3):
        broker.deferred.delays.step(broker.clock.now_ms())
        broker.driver.commit()
        await asyncio.sleep(0)


def delivered(broker: Broker) -> int:
    return max(0, broker.store.reader.max_offset("T", 0))


async def test_a_recalled_message_is_not_delivered_and_its_neighbours_are(broker: Broker) -> None:
    for key in ("a", "b", "c"):
        send(broker, key)
    assert await recall(broker, "b") == "b"
    assert await recall(broker, "b") == "b", "a repeated request has the same answer"
    await deliver(broker)
    assert (delivered(broker), broker.deferred.delays.counts.delivered) == (2, 2)
    assert broker.deferred.delays.counts.recalled == 1


@pytest.mark.parametrize("broker", ["32", "1"], indirect=True)
async def test_every_message_of_a_repeated_send_is_recalled(broker: Broker) -> None:
    send(broker, "a")
    send(broker, "a")
    await recall(broker, "a")
    await deliver(broker)
    assert (delivered(broker), broker.deferred.delays.counts.recalled) == (0, 2)


async def test_messages_that_have_the_id_as_a_key_hide_none(broker: Broker) -> None:
    send(broker, "a")
    for number in range(COPIES_MAX):
        send(broker, f"other{number}", "KEYS\x01a\x02")
    await recall(broker, "a")
    await deliver(broker)
    assert (delivered(broker), broker.deferred.delays.counts.recalled) == (COPIES_MAX, 1)


async def test_a_recall_that_cannot_find_every_copy_is_refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, "a")
    send(broker, "a")
    with monkeypatch.context() as patch:
        patch.setattr(lookups, "CANDIDATES_COUNT_MAX", 1)
        with pytest.raises(IllegalOperation, match="too many messages have the key a"):
            await recall(broker, "a")
    with monkeypatch.context() as patch:
        patch.setattr(recalls, "SEARCH_MS_MAX", 0)
        with pytest.raises(IllegalOperation, match="too many messages have the key a"):
            await recall(broker, "a")
    with monkeypatch.context() as patch:
        patch.setattr(recalled, "COPIES_MAX", 2)
        with pytest.raises(IllegalOperation, match="too many messages have the key a"):
            await recall(broker, "a")
    end = broker.store.commit_log.end
    for damage in (DamagedRange(0, 1), DamagedRange(end // 2 - 1, end // 2)):  # the older copy
        broker.store.commit_log.set_damage([damage])
        with pytest.raises(IllegalOperation, match="or one of them is damaged"):
            await recall(broker, "a")
    broker.store.commit_log.set_damage([])
    assert broker.deferred.delays.positions.recalled.count == 0
    await recall(broker, "a")


async def test_a_message_that_is_due_or_delivered_is_refused(broker: Broker) -> None:
    send(broker, "a")
    clock_of(broker).advance(DELAY_MS)
    with pytest.raises(IllegalOperation, match="the message a is due now or has been delivered"):
        await recall(broker, "a")
    await deliver(broker, 0)
    with pytest.raises(IllegalOperation, match="the message a is due now or has been delivered"):
        await recall(broker, "a")
    assert (delivered(broker), broker.deferred.delays.positions.recalled.count) == (1, 0)


async def test_a_message_stored_after_the_last_read_of_its_level_is_recalled(
    broker: Broker,
) -> None:
    send(broker, "a")
    broker.deferred.delays.step(broker.clock.now_ms())
    clock_of(broker).advance(50)
    send(broker, "b")
    assert await recall(broker, "b") == "b"


async def test_a_message_stored_during_a_backlog_keeps_its_delay(broker: Broker) -> None:
    for number in range(RUN_COUNT_MAX + 1):  # more than one read takes
        send(broker, f"a{number}")
    clock_of(broker).advance(DELAY_MS)
    broker.deferred.delays.step(broker.clock.now_ms())
    clock_of(broker).advance(10)
    send(broker, "late")
    for _ in range(20):
        broker.driver.commit()
        await asyncio.sleep(0)
    assert delivered(broker) == RUN_COUNT_MAX + 1
    await deliver(broker, DELAY_MS - 1)
    assert delivered(broker) == RUN_COUNT_MAX + 1
    await deliver(broker, 1)
    assert delivered(broker) == RUN_COUNT_MAX + 2


async def test_a_message_may_have_been_delivered_before_a_crash(broker: Broker) -> None:
    send(broker, "a")
    broker.deferred.delays.expect_copies(broker.clock.now_ms() + DELAY_MS)
    with pytest.raises(IllegalOperation, match="is due now or has been delivered"):
        await recall(broker, "a")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unique_key": "z"}, "broker-a has no delayed message of the topic T with the id z"),
        ({"topic": "U"}, "the handle names the topic U, the request T"),
        ({"broker_name": "broker-b"}, "names the broker broker-b, and this is broker-a"),
        ({"unique_key": "x" * 256}, "the id has more than 255 characters"),
    ],
)
async def test_what_a_handle_must_name(broker: Broker, changes: Any, reason: str) -> None:
    send(broker, "a")
    with pytest.raises(IllegalOperation, match=reason):
        await recall(broker, "a", **changes)


@pytest.mark.parametrize("handle", ["", "\u00e9", "a" * 3000, "djEgVA==", "djEgVCBiIHggYQ=="])
async def test_an_invalid_handle_is_refused(broker: Broker, handle: str) -> None:
    with pytest.raises(IllegalOperation, match="recall failed: the handle is invalid: it"):
        await recall_by(broker, handle)


async def test_other_messages_are_not_recalled(broker: Broker) -> None:
    send(broker, "a", "KEYS\x01z\x02")
    with pytest.raises(IllegalOperation, match="no delayed message"):
        await recall(broker, "z")
    retry = RecallHandle("%RETRY%G", "broker-a", 0, "a").encode()
    with pytest.raises(IllegalOperation, match="waits for its next attempt"):
        await recall_by(broker, retry, "%RETRY%G")
    with pytest.raises(TopicNotExist):
        await recall_by(broker, RecallHandle("N", "broker-a", 0, "a").encode(), "N")


async def test_recalls_are_bounded(broker: Broker) -> None:
    for key in ("a", "b", "c"):
        send(broker, key)
    await recall(broker, "a")
    await recall(broker, "b")
    with pytest.raises(LimitReached, match="peerShareMax"):
        await recall(broker, "c")
    broker.deferred.delays.positions.recalled.update({LEVEL: {98: "other", 99: "other"}})
    with pytest.raises(LimitReached, match="there are 4 of at most 4; raise recalledMax") as error:
        await recall(broker, "c")
    assert error.value.code == ResponseCode.SYSTEM_BUSY


async def test_only_a_master_recalls(broker: Broker) -> None:
    send(broker, "a")
    broker.role.is_master = False
    with pytest.raises(CommandError):
        await recall(broker, "a")
    assert broker.deferred.delays.positions.recalled.count == 0


async def test_nothing_is_recalled_that_the_journal_cannot_keep(broker: Broker) -> None:
    send(broker, "a")
    node = Node(MemoryDisk(), MemoryFiles(), worker=InlineWorker())
    broker.tables.journal = node.journal
    node.journal.fault = "the disk is full"
    with pytest.raises(ServerError, match="nothing is recalled: the journal cannot be written"):
        await recall(broker, "a")
    assert broker.deferred.delays.positions.recalled.count == 0
