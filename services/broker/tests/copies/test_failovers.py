# SPDX-License-Identifier: Apache-2.0
"""Groups of two and three brokers: elections, kills, switchovers, and the data that survives."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.handlers.runtime_info import expected_members
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import Drop, Fence, HandOver
from cometmq.ha.port import Outcome
from cometmq.ha.record import Record, Versioned
from cometmq.ha.role import Role
from cometmq.ha.state import StateDamaged
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.topics import DeleteTopicInBroker
from cometmq.remoting.errors import CometError, CommandError
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker.broker_groups import DEADLINE_S, BrokerGroup, running_group
from cometmq.testing.broker.clients import Client


async def send_all(client: Client, first: int, count: int, topic: str = "T") -> list[bytes]:
    """Send numbered bodies; return the bodies that were acknowledged with code 0."""
    acknowledged = []
    for number in range(first, first + count):
        body = b"%06d" % number
        if (await client.send(body, topic=topic)).code == ResponseCode.SUCCESS:
            acknowledged.append(body)
    return acknowledged


async def bodies(client: Client, topic: str = "T") -> list[bytes]:
    return [record.body for record in await client.all_messages(topic)]


def logs_are_equal(group: BrokerGroup) -> bool:
    logs = [app.broker.store.commit_log for app in group.apps.values()]
    if len({log.end for log in logs}) != 1:
        return False
    return len({log.read(log.min_offset, log.end - log.min_offset) for log in logs}) == 1


@pytest.mark.parametrize("count", [2, 3])
async def test_the_first_election_opens_one_master_that_all_others_follow(
    tmp_path: Path, count: int
) -> None:
    async with running_group(tmp_path, count) as group:
        master = group.open_master
        for ordinal in group.apps:
            role = Role.MASTER if ordinal == master else Role.SLAVE
            assert group.status(ordinal).role is role
            identity = group.apps[ordinal].broker.registration.registrant.identity
            assert identity.broker_id == (0 if ordinal == master else ordinal + 1)
            assert identity.epoch == group.record.epoch
        async with group.client(master) as client:
            sent = await send_all(client, 0, 50)
            assert len(sent) == 50
            assert sorted(await bodies(client)) == sent
        await group.until(lambda: logs_are_equal(group))


async def test_acknowledged_messages_topics_and_offsets_survive_the_masters_death(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, 2, minInSync="1") as group:
        old = group.open_master
        async with group.client(old) as client:
            sent = await send_all(client, 0, 200)
            await client.commit(77)
            late = await send_all(client, 0, 1, topic="Late")  # creates its topic
        await group.until_in_sync(0, 1)
        await group.kill(old)
        new = await group.until_master(old)
        assert new != old
        async with group.client(new) as client:
            await group.until(lambda: group.in_sync == [new])
            assert set(sent) <= set(await bodies(client))
            assert await bodies(client, "Late") == late
            assert await client.committed() == 77
            more = await send_all(client, 1_000, 20)
            assert len(more) == 20
        await group.start(old)
        await group.until_in_sync(0, 1)
        await group.until(lambda: logs_are_equal(group))
        assert group.status(old).role is Role.SLAVE


@pytest.mark.parametrize("count", [2, 3])
async def test_a_fenced_master_follows_another(tmp_path: Path, count: int) -> None:
    async with running_group(tmp_path, count) as group:
        old = group.master
        assert old == 0  # an election between equal copies would choose it again
        async with group.client(old) as client:
            sent = await send_all(client, 0, 30)
        await group.until(lambda: logs_are_equal(group))
        await group.member(old).obey(Fence(group.record.epoch + 1))
        new = await group.until_master(old)
        async with group.client(new) as client:
            assert await bodies(client) == sent
        async with asyncio.timeout(DEADLINE_S):
            while group.status(old).epoch != group.record.epoch:
                await group.elect()
                await asyncio.sleep(0.02)
        assert group.status(old).role is Role.SLAVE
        await group.until(lambda: logs_are_equal(group))


async def test_a_restarted_master_without_another_broker_elects_itself(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        await group.kill(1 - master)
        await group.until_in_sync(master)
        async with group.client(master) as client:
            sent = await send_all(client, 0, 30)
        epoch = group.record.epoch
        await group.kill(master)
        await group.start(master)
        await group.until(lambda: group.master == master)  # no elector
        assert group.record.epoch > epoch
        async with group.client(master) as client:
            assert set(sent) <= set(await bodies(client))


async def test_messages_are_refused_while_too_few_copies_are_in_sync(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2, minInSync="2") as group:
        master = group.open_master
        await group.kill(1 - master)
        await group.until_in_sync(master)
        replication = group.apps[master].broker.replication
        copies = replication.copies
        assert copies() == (master,)
        assert replication.copy_count() == 2
        async with group.client(master) as client:
            with pytest.raises(CommandError, match="minInSync=2") as caught:
                await client.send(b"refused", topic="New")
            assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "New" not in group.apps[master].broker.tables.topics.table
            await group.start(1 - master)
            await group.until_in_sync(0, 1)
            assert (await client.send(b"accepted")).code == 0
        await group.until(lambda: copies() == (0, 1))


async def test_a_slave_forwards_what_changes_state_to_its_master(tmp_path: Path) -> None:
    """Clients use the addresses of their routes for up to 30 s after a failover."""
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        for master in (old, 1 - old):
            if master != old:
                await group.kill(old)
                await group.until_master(old)
                await group.start(old)  # it has never been master in this life
                await group.until_in_sync(0, 1)
            topic = f"Of{master}"
            async with group.client(1 - master) as client:
                sent = await send_all(client, 0, 20, topic=topic)
                await client.commit(7)
            assert len(sent) == 20
            async with group.client(master) as client:
                assert await bodies(client, topic) == sent
                assert await client.committed() == 7
            forwarder = group.copies(1 - master)
            assert forwarder.parts.gate.diversion.forwarded_count >= 21


async def test_a_send_to_a_broker_without_a_master_names_the_election(tmp_path: Path) -> None:
    """The code is the same as for a full disk, so only the remark tells producers the reason."""
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        await group.member(master).obey(Fence(group.record.epoch + 1))
        async with group.client(master) as client:
            with pytest.raises(CommandError, match="it is fenced: an election or") as caught:
                await client.send(b"refused", topic="New")
        assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "disk" not in str(caught.value)
        assert "New" not in group.apps[master].broker.tables.topics.table


@pytest.mark.parametrize(
    ("in_sync", "copy_count", "expected"),
    [
        ((0, 1, 2), 3, [0, 1, 2]),
        ((0, 2), 3, [0, 1, 2]),
        ((3,), 2, [0, 3]),
        ((0, 1, 2), 2, [0, 1, 2]),
    ],
)
def test_brokers_that_the_group_may_grow_to_are_not_missing(in_sync, copy_count, expected):
    """An operator configures nine members in every broker; the record holds the actual number."""
    assert expected_members(range(9), in_sync, copy_count) == expected


async def test_a_stopping_broker_that_is_made_the_master_hands_over_again(tmp_path: Path) -> None:
    """The broker still follows while it forwards requests, so an elector may choose it."""
    async with running_group(tmp_path, 2, handOverLingerMills="600000") as group:
        old = group.open_master
        other, epoch = 1 - old, group.record.epoch
        stopping = asyncio.get_running_loop().create_task(group.apps[old].stop())
        await group.until(lambda: group.member(other).status().role is Role.MASTER)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await group.member(other).obey(HandOver(old))
                    break
                except OrderRefused:  # the broker does not follow yet
                    await asyncio.sleep(0.05)
        await group.until(
            lambda: group.record.epoch >= epoch + 3 and group.record.holder.ordinal == other
        )
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await group.kill(old)


async def test_a_deleted_topic_does_not_return_if_all_brokers_are_killed(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        async with group.client(master) as client:
            await send_all(client, 0, 10, topic="Old")
            await client.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("Old"))
        for ordinal in tuple(group.apps):
            await group.kill(ordinal)
        for ordinal in group.group.ordinals:
            await group.start(ordinal)
        await group.until_master()
        await group.until_in_sync(0, 1)
        tables = [app.broker.tables.topics.table for app in group.apps.values()]
        assert ["Old" in table for table in tables] == [False, False]


@pytest.mark.parametrize("is_answer_late", [False, True])
async def test_a_switchover_under_load_fails_no_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_answer_late: bool
) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        if is_answer_late:
            monkeypatch.setattr(group.ports[old], "replace", _answered_late(group, old))
        acknowledged: list[bytes] = []
        is_done = asyncio.Event()

        async def produce(client: Client, number: int) -> None:
            count = 0
            while not is_done.is_set():
                body = b"%d-%d" % (number, count)
                assert (await client.send(body)).code == ResponseCode.SUCCESS
                acknowledged.append(body)
                count += 1

        async with group.client(old) as client, asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(produce(client, number))
            await group.until(lambda: len(acknowledged) > 100)
            status = await group.member(old).obey(HandOver(1 - old))
            assert (status.role, status.epoch) == (Role.SLAVE, group.record.epoch)
            before = len(acknowledged)
            await group.until(lambda: len(acknowledged) > before + 100)
            is_done.set()
        assert group.master == 1 - old
        async with group.client(1 - old) as client:
            found = await bodies(client)
            assert sorted(found) == sorted(acknowledged)  # nothing lost or duplicated
        await group.until(lambda: logs_are_equal(group))


def _answered_late(group: BrokerGroup, old: int) -> Callable[[Versioned, Record], Any]:
    """Return a `replace` that hands over at once and answers when the new master is open."""
    replace = group.ports[old].replace

    async def replaced(base: Versioned, record: Record) -> Outcome:
        outcome = await replace(base, record)
        if record.holder.ordinal != old:
            await group.until(lambda: group.master == 1 - old)
        return outcome

    return replaced


async def test_a_switchover_to_a_broker_that_is_not_in_sync_changes_nothing(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, 2, switchoverTimeoutMills="100") as group:
        master = group.open_master
        await group.kill(1 - master)
        membership = group.copies(master)
        await group.until(lambda: not membership.parts.sender.followers())
        async with group.client(master) as client:
            with pytest.raises(OrderRefused, match="did not catch up in time"):
                await group.member(master).obey(HandOver(1 - master))
            await group.until_in_sync(master)
            assert (await client.send(b"accepted")).code == 0


async def test_a_master_alone_that_loses_the_record_stops(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        await group.kill(1 - master)
        await group.until_in_sync(master)
        group.ports[master].is_cut_off = True
        await group.until(lambda: group.status(master).role is Role.FENCED)
        async with group.client(master) as client:
            with pytest.raises(CometError):
                await client.send(b"refused")
            group.ports[master].is_cut_off = False
            await group.until(lambda: group.master == master)
            assert (await client.send(b"accepted")).code == 0


async def test_a_master_whose_copies_answer_goes_on_without_the_record(tmp_path: Path) -> None:
    patient = {"heardWithinMills": "20000", "renewDeadlineMills": "25000"}
    async with running_group(tmp_path, 2, **patient) as group:
        master = group.open_master
        group.ports[master].is_cut_off = True
        membership = group.copies(master)
        leading = membership.roles.leading
        assert leading is not None
        confirmation = leading
        confirmation.renewed_ms -= 60_000  # longer than the renew deadline
        confirmation.adopt(confirmation.view)
        async with group.client(master) as client:
            for _ in range(20):
                assert (await client.send(b"accepted")).code == 0
                await asyncio.sleep(0.1)
        assert group.master == master
        assert group.in_sync == [0, 1]


async def test_a_removed_member_stays_out(tmp_path: Path) -> None:
    async with running_group(tmp_path, 3) as group:
        master = group.open_master
        leaving = next(ordinal for ordinal in group.apps if ordinal != master)
        await group.member(master).obey(Drop(leaving))
        await group.until(lambda: leaving not in group.in_sync)
        async with group.client(master) as client:
            assert (await client.send(b"accepted")).code == 0
        await asyncio.sleep(0.3)
        assert leaving not in group.in_sync


async def test_a_master_that_stops_hands_over(tmp_path: Path) -> None:
    async with running_group(tmp_path, 3) as group:
        old = group.open_master
        async with group.client(old) as client:
            sent = await send_all(client, 0, 50)
        await group.stop(old)
        assert group.ports[old].is_closed
        await group.until(lambda: group.master is not None)  # no elector
        new = group.open_master
        assert new != old
        async with group.client(new) as client:
            assert await bodies(client) == sent
            assert (await client.send(b"more")).code == 0


async def test_a_master_whose_lease_ended_while_it_slept_answers_nothing(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        await group.kill(1 - master)
        await group.until_in_sync(master)
        group.ports[master].is_cut_off = True
        membership = group.copies(master)
        leading = membership.roles.leading
        assert leading is not None
        confirmation = leading
        async with group.client(master) as client:
            assert (await client.send(b"awake")).code == 0
            confirmation.renewed_ms -= 60_000
            confirmation.adopt(confirmation.view)
            with pytest.raises(CometError):
                await client.send(b"late")
        await group.until(lambda: group.status(master).role is Role.FENCED)


async def test_a_master_whose_disk_fails_is_replaced(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        old = group.open_master
        group.apps[old].broker.store.write_state.set(Refusal.SYNC_FAILED, holds=True)
        await group.until(lambda: group.status(old).role is Role.FAILED)
        assert await group.until_master(old) == 1 - old


async def test_a_store_belongs_to_one_broker_of_one_group(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        await group.stop(1)
        (tmp_path / "1").rename(tmp_path / "away")
        await group.stop(0)
        (tmp_path / "0").rename(tmp_path / "1")
        with pytest.raises(StateDamaged, match="Give each broker its own store folder"):
            await group.start(1)
        (tmp_path / "1").rename(tmp_path / "0")
        (tmp_path / "away").rename(tmp_path / "1")
        await group.start(1)


async def test_an_idle_group_stays_in_sync_with_the_shortest_intervals(tmp_path: Path) -> None:
    async with running_group(tmp_path, 3, heardWithinMills="300") as group:
        master = group.open_master

        async def is_quiet() -> bool:
            before = len(group.logs[master].named("in_sync.changed"))
            await asyncio.sleep(2)
            after = len(group.logs[master].named("in_sync.changed"))
            return after == before and group.in_sync == [0, 1, 2]

        async with asyncio.timeout(DEADLINE_S):
            # On a loaded machine, the event loop may block for longer than an interval.
            while not await is_quiet():
                pass


@pytest.mark.parametrize("accept_loss", [True, False])
async def test_offsets_are_lowered_if_an_accepted_loss_has_cost_messages(
    tmp_path: Path, accept_loss: bool
) -> None:
    async with running_group(tmp_path, 2, minInSync="1") as group:
        old = group.open_master
        async with group.client(old) as client:
            await send_all(client, 0, 20)
            await client.commit(50)  # as after the loss of 30 messages
        await group.until_in_sync(0, 1)
        ends = [app.broker.tables.offsets for app in group.apps.values()]
        await group.until(lambda: [it.committed("G", "T", 0) for it in ends] == [50, 50])
        group.place.current = None
        await group.elect(accept_loss=accept_loss)
        await group.elect(accept_loss=accept_loss)
        master = await group.until_master()
        async with group.client(master) as client:
            await send_all(client, 20, 1)
        expected = 20 if accept_loss else 50
        await group.until(lambda: [it.committed("G", "T", 0) for it in ends] == [expected] * 2)
    assert any(log.named("offsets.lowered") for log in group.logs) == accept_loss
