# SPDX-License-Identifier: Apache-2.0
"""Delays, transactions, locks, held pulls, offsets and routes survive a failover."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.delays.level import DelayFile
from cometmq.ha.orders import HandOver
from cometmq.ha.role import Role
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.send import RecallMessage, SendMessageReply
from cometmq.remoting.commands.topics import TrimQueue, UpdateAndCreateTopic
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.errors import CommandError
from cometmq.remoting.message.flags import TRANSACTION_COMMIT
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.message.record import decode_records
from cometmq.runtime.clock import SystemClock
from cometmq.store.log.damage import DamagedRange
from cometmq.testing.broker.broker_groups import BrokerGroup, running_group
from cometmq.testing.broker.clients import Client
from cometmq.testing.broker.process import RecordingNamesrv

DELAYED = "DELAY\x011\x02UNIQ_KEY\x01{}\x02"  # delay level 1: one second
HALF = "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01P"
QUEUES = [MessageQueue("T", "broker-a", n) for n in range(2)]


async def bodies(client: Client, topic: str = "T") -> list[bytes]:
    try:
        return [record.body for record in await client.all_messages(topic)]
    except CommandError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return []


async def until_bodies(client: Client, count: int) -> list[bytes]:
    async with asyncio.timeout(60):
        while len(found := await bodies(client)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # no event signals new messages
    return found


async def fail_over(group: BrokerGroup) -> int:
    """Kill the master; return its successor."""
    old = group.open_master
    await group.until_in_sync(0, 1)
    await group.kill(old)
    return await group.until_master(old)


async def test_delayed_messages_are_delivered_once_by_whoever_is_master(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        sent = []
        async with group.client(old) as client:
            for number in range(40):
                body = b"%d" % number
                answer = await client.send(body, properties=DELAYED.format(number))
                assert answer.code == ResponseCode.SUCCESS
                sent.append(body)
                await asyncio.sleep(0.04)
            await until_bodies(client, 1)  # some are delivered before the kill, most are not
        new = await fail_over(group)
        async with group.client(new) as client:
            await until_bodies(client, len(sent))
            await asyncio.sleep(0.5)  # a second copy would arrive now
            assert sorted(await bodies(client)) == sorted(sent)


async def test_timed_messages_are_delivered_once_in_time_and_recalled_ones_never(
    tmp_path: Path,
) -> None:
    """The kill meets messages at every stage: first hops, last hops, delivered ones."""
    clock = SystemClock()
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        due: dict[str, int] = {}
        recalled = set()
        async with group.client(old) as client:
            for number in range(60):
                key = f"{number:02}"
                due[key] = clock.now_ms() + 300 + 137 * (number % 25)
                if number % 6 == 0:
                    due[key] += 20_000  # waits at least until after the kill
                text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due[key]}\x02"
                answer = await client.send(key.encode(), properties=text)
                assert answer.code == ResponseCode.SUCCESS
                await asyncio.sleep(0.02)
                if number % 6 == 0:
                    handle = RecallHandle("T", "broker-a", 0, key).encode()
                    await client.invoke(RequestCode.RECALL_MESSAGE, RecallMessage("T", handle))
                    recalled.add(key)
            await until_bodies(client, 1)
        new = await fail_over(group)
        async with group.client(new) as client:
            await until_bodies(client, len(due) - len(recalled))
            delays = group.apps[new].broker.deferred.delays
            await group.until(lambda: not any(delays.waiting.counts().values()))
            await group.until(lambda: delays.counts.recalled == len(recalled))
            found = await client.all_messages()
            assert sorted(str(it.unique_key) for it in found) == sorted(due.keys() - recalled)
            assert all(it.store_timestamp >= due[str(it.unique_key)] for it in found)


async def test_a_trimmed_queue_stays_trimmed_on_each_master(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        first = group.open_master
        async with group.client(first) as client:
            for number in range(20):
                await client.send(b"%d" % number)
            await client.invoke(RequestCode.TRIM_QUEUE, TrimQueue("T", 0, 15))
        second = await fail_over(group)
        await group.start(first)
        await group.until_in_sync(0, 1)
        third = await fail_over(group)
        assert (second, third) == (1 - first, first)
        async with group.client(third) as client:
            moved = await client.pull(0)
            assert (moved.code, moved.header.next_begin_offset) == (
                ResponseCode.PULL_OFFSET_MOVED,
                15,
            )
            found = decode_records((await client.pull(15)).body)
            assert [it.body for it in found] == [b"%d" % number for number in range(15, 20)]


async def test_a_new_master_counts_no_message_below_an_old_position_as_delivered(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        positions = msgspec.Raw(encode_json(DelayFile({1: 17})))
        group.apps[1 - old].broker.deferred.delays.positions.apply_changes(positions)
        new = await fail_over(group)
        async with group.client(new) as client:
            await client.send(b"delayed", properties=DELAYED.format("K"))
            assert await until_bodies(client, 1) == [b"delayed"]


async def test_a_damaged_delayed_message_waits_for_its_repair(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        log = group.apps[master].broker.store.commit_log
        async with group.client(master) as client:
            answer = await client.send(b"damaged", properties=DELAYED.format("A"))
            await client.send(b"intact", properties=DELAYED.format("B"))
            assert isinstance(answer.header, SendMessageReply)
            place = parse_offset_message_id(answer.header.msg_id).physical_offset
            log.set_damage([DamagedRange(place, place + 1)])
            assert await until_bodies(client, 1) == [b"intact"]
            log.set_damage([])
            assert await until_bodies(client, 2) == [b"intact", b"damaged"]


def end_of(response: Response) -> EndTransaction:
    reply = response.header
    assert isinstance(reply, SendMessageReply)
    place = parse_offset_message_id(reply.msg_id).physical_offset
    return EndTransaction("P", reply.queue_offset, place, TRANSACTION_COMMIT, "K")


async def test_a_transaction_is_ended_once_whichever_master_is_asked(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        async with group.client(old) as client:
            ended = end_of(await client.send(b"ended", properties=HALF))
            opened = end_of(await client.send(b"open", properties=HALF))
            await client.invoke(RequestCode.END_TRANSACTION, ended)
        new = await fail_over(group)
        async with group.client(new) as client:
            for end in (ended, opened, opened):
                await client.invoke(RequestCode.END_TRANSACTION, end)
            assert sorted(await bodies(client)) == [b"ended", b"open"]


async def locked(client: Client, client_id: str) -> int:
    body = encode_json(LockBatch(client_id=client_id, consumer_group="G", mq_set=QUEUES))
    response = await client.invoke(RequestCode.LOCK_BATCH_MQ, None, body)
    return len(decode_json(LockBatchReply, response.body).lock_ok_mq_set)


async def test_orderly_consumers_lock_again_at_the_new_master(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        async with group.client(old) as client:
            assert await locked(client, "one") == 2
            assert await locked(client, "two") == 0
        new = await fail_over(group)
        await group.until(lambda: group.in_sync == [new])
        async with group.client(new) as client:
            assert await locked(client, "two") == 2
            assert await locked(client, "one") == 0


async def test_a_held_pull_is_answered_when_the_master_hands_over(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        async with group.client(old) as client, asyncio.TaskGroup() as tasks:
            await client.send(b"first")
            held = tasks.create_task(client.pull(1, wait_ms=50_000))
            await asyncio.sleep(0.2)
            assert not held.done()
            began = time.monotonic()
            await group.member(old).obey(HandOver(1 - old))
            assert (await held).code == ResponseCode.PULL_NOT_FOUND
            assert time.monotonic() - began < 30


async def test_offsets_committed_at_the_old_master_reach_the_new_one(tmp_path: Path) -> None:
    """Clients learn of a switchover from the name server, up to 30 s later."""
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        async with group.client(old) as client:
            await client.send(b"first")
            await client.commit(1)
            await group.member(old).obey(HandOver(1 - old))
            await group.until(lambda: group.master == 1 - old)
            await client.commit(7)
        async with group.client(1 - old) as client:
            assert await client.committed() == 7


async def test_name_servers_hear_of_a_new_master_at_once(tmp_path: Path) -> None:
    namesrv = RecordingNamesrv()
    await namesrv.start()
    try:
        async with running_group(tmp_path, 2, namesrvAddr=namesrv.address) as group:
            old = group.open_master
            await group.until(lambda: masters(namesrv)[-1:] == [group.address(old)])
            first = epochs_of(namesrv, group.address(old))[-1]
            new = await fail_over(group)
            began = time.monotonic()
            await group.until(lambda: masters(namesrv)[-1] == group.address(new))
            assert time.monotonic() - began < 15  # half the registration interval
            assert epochs_of(namesrv, group.address(new))[-1] == group.record.epoch > first
            assert all(one.group_proof for one in namesrv.headers)
            await group.start(old)
            await group.until(lambda: group.status(old).role is Role.SLAVE)
            await group.until(
                lambda: (
                    (group.address(old), old + 1)
                    in [(one.broker_addr, one.broker_id) for one in namesrv.headers]
                )
            )
            assert masters(namesrv)[-1] == group.address(new)
    finally:
        await namesrv.stop()


def masters(namesrv: RecordingNamesrv) -> list[str]:
    return [one.broker_addr for one in namesrv.headers if one.broker_id == 0]


def epochs_of(namesrv: RecordingNamesrv, address: str) -> list[int]:
    return [one.group_epoch or 0 for one in namesrv.headers if one.broker_addr == address]


async def test_topics_and_groups_are_not_created_while_too_few_copies_are_in_sync(
    tmp_path: Path,
) -> None:
    """An answer would promise a change that the only copy might lose."""
    async with running_group(tmp_path, 2, minInSync="2") as group:
        master = group.open_master
        await group.kill(1 - master)
        await group.until_in_sync(master)
        broker = group.apps[master].broker
        payers = encode_json(SubscriptionGroupConfig(group_name="payers"))
        async with group.client(master) as client:
            with pytest.raises(CommandError, match="nothing was changed: fewer copies"):
                await client.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, topic("New"))
            with pytest.raises(CommandError, match="nothing was changed: fewer copies"):
                await client.invoke(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, payers)
            assert "New" not in broker.tables.topics.table
            assert "payers" not in broker.tables.groups.table
            await group.start(1 - master)
            await group.until_in_sync(0, 1)
            await client.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, topic("New"))
            assert "New" in broker.tables.topics.table


async def test_a_change_that_cannot_be_journaled_is_not_confirmed(tmp_path: Path) -> None:
    """The copies receive table changes from the journal (R7)."""
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        journal = group.apps[master].broker.tables.journal
        assert journal is not None
        journal.fault = "no space"
        async with group.client(master) as client:
            with pytest.raises(CommandError, match=r"cannot be journaled.*no space"):
                await client.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, topic("Created"))


def topic(name: str) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(name, 3, 3, 6)
