# SPDX-License-Identifier: Apache-2.0
"""Rounds of an elector against members that obey, on a frozen clock."""

import asyncio

import msgspec

from cometmq.ha.actions import Blocked
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Drop, Fence, HandOver, Resize
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing

from .conftest import rounds, started

# ---- the first election ----------------------------------------------------------------------


async def test_a_new_group_gets_a_record_a_master_and_slaves(trio):
    elector = trio.elector()
    await rounds(elector)
    assert trio.roles() == ["master", "slave", "slave"]
    assert trio.record.holder == trio.copy(0)
    assert trio.record.in_sync == (trio.copy(0),)
    assert {member.now.status.epoch for member in trio.members} == {trio.record.epoch}
    assert elector.stats.has_master
    assert +elector.stats.elections == {"NoRecord": 1}
    (event,) = trio.log.named("master.elected")
    assert event == {"group": "orders", "ordinal": 0, "epoch": trio.record.epoch,
                     "cause": "NoRecord"}  # fmt: skip


async def test_a_new_group_waits_until_all_members_answer(trio):
    trio.members[2].is_silent = True
    elector = trio.elector()
    await rounds(elector)
    assert trio.place.current is None
    assert elector.stats.waiting.reason is Blocked.MEMBERS_MISSING
    assert [m.orders for m in trio.members] == [[], [], []]
    (event,) = trio.log.named("group.blocked")  # once, not in every round
    assert "brokers [2] do not answer" in event["text"]
    trio.members[2].is_silent = False
    await rounds(elector)
    assert trio.roles() == ["master", "slave", "slave"]
    assert len(trio.log.named("group.unblocked")) == 1


async def test_a_deleted_record_is_restored_above_all_promises_with_the_best_copy(trio):
    elector = await started(trio)
    epoch = trio.record.epoch
    trio.members[1].becomes(max_offset=9, promised=epoch + 5)
    trio.members[2].becomes(max_offset=7)
    trio.place.delete()
    await rounds(elector)
    assert trio.record.holder == trio.copy(1)
    assert trio.record.epoch > epoch + 5
    assert trio.record.in_sync == (trio.copy(1),)
    assert trio.roles() == ["slave", "master", "slave"]


async def test_a_record_that_members_still_read_is_not_created_elsewhere(trio):
    for member in trio.members[:2]:
        member.now = msgspec.structs.replace(member.now, record_uid="u")
    elector = trio.elector()
    await rounds(elector)
    assert trio.place.current is None
    assert [m.orders for m in trio.members] == [[], [], []]
    assert elector.stats.waiting.reason is Blocked.RECORD_ELSEWHERE
    assert "brokers [0, 1] read a record where this elector finds none" in (
        elector.stats.waiting.text
    )


async def test_a_copy_that_may_have_lost_something_needs_a_person(trio):
    elector = await started(trio)
    trio.members[0].becomes(standing=Standing.SUSPECT)
    trio.place.delete()
    await rounds(elector)
    assert trio.place.current is None
    assert elector.stats.waiting.reason is Blocked.SUSPECT_COPY


async def test_a_copy_in_sync_that_controlmembers_leaves_out_needs_a_person(pair):
    """Its store may be the only one with the newest messages."""
    elector = await started(pair)
    gone = Copy(2, "z")
    pair.members[0].becomes(last_in_sync=(gone,))
    pair.place.delete()
    given = [list(member.orders) for member in pair.members]
    await rounds(elector)
    assert pair.place.current is None
    assert elector.stats.waiting.reason is Blocked.COPY_LEFT_OUT
    assert [member.orders for member in pair.members] == given  # the master is kept


async def test_a_fence_epoch_that_another_elector_has_passed_is_chosen_again(pair):
    elector = pair.elector()
    pair.members[1].refusal = OrderRefused(OrderRefusal.STALE_EPOCH, "promised more")
    await elector.round()
    assert pair.log.named("order.failed")[0]["outcome"] == "refused"
    pair.members[1].refusal = None
    pair.members[1].becomes(promised=40)
    await rounds(elector)
    assert pair.record.epoch > 40
    assert pair.roles() == ["master", "slave"]


async def test_an_old_record_that_was_restored_does_not_elect_a_copy_that_fell_behind(trio):
    elector = await started(trio)
    old = trio.place.current
    trio.members[0].is_refusing_connections = True  # it fell behind, but the old record names it
    await rounds(elector)
    epoch = trio.record.epoch
    assert trio.roles()[1] == "master"

    trio.members[0].is_refusing_connections = False
    trio.place._set(old)
    trio.members[1].becomes(role=Role.FENCED, epoch=0)  # the record does not name it
    for one in (elector, trio.elector()):  # also without a memory of the later record
        await rounds(one)
        assert trio.record == old.record
        assert one.stats.waiting.reason is Blocked.RECORD_OLD
        assert f"brokers [1, 2] contain epoch {epoch}" in one.stats.waiting.text

    trio.place.delete()
    await rounds(elector)
    assert trio.record.epoch > epoch
    assert trio.record.holder == trio.copy(1)


async def test_a_record_that_changed_after_it_was_read_does_not_block_anything(trio):
    elector = await started(trio)
    first, member = trio.record, trio.members[0]
    read = elector._record.read

    async def read_and_hand_over():
        found = await read()
        if found.record.epoch == first.epoch:
            await member.obey(HandOver(1))
            trio.members[1].becomes(
                role=Role.MASTER, epoch=first.epoch + 1, promised=first.epoch + 1,
                last_log_epoch=first.epoch + 1,
            )  # fmt: skip
        return found

    elector._record.read = read_and_hand_over
    await rounds(elector, 1)
    assert elector.wake.is_set()
    await rounds(elector)
    assert not trio.log.named("group.blocked")
    assert elector.stats.has_master
    assert trio.record.holder == trio.copy(1)


async def test_the_record_of_another_group_is_not_touched(pair):
    elector = await started(pair)
    found = pair.place.current
    pair.place._set(
        msgspec.structs.replace(found, record=msgspec.structs.replace(found.record, group="bills"))
    )
    pair.members[0].is_refusing_connections = True
    await rounds(elector)
    assert pair.record.holder == pair.copy(0)
    assert elector.stats.waiting.reason is Blocked.WRONG_GROUP
    assert not elector.stats.has_master


# ---- failover --------------------------------------------------------------------------------


async def test_a_killed_master_is_replaced_at_once(trio):
    elector = await started(trio)
    epoch = trio.record.epoch
    trio.members[0].is_refusing_connections = True
    trio.members[2].becomes(max_offset=5)
    await rounds(elector, 3)
    assert trio.record.holder == trio.copy(2)
    assert trio.record.epoch == epoch + 1
    assert trio.record.deposed == trio.copy(0)
    assert trio.roles()[1:] == ["slave", "master"]
    assert elector.stats.elections["Gone"] == 1
    assert trio.log.named("master.lost") == [
        {"group": "orders", "ordinal": 0, "epoch": epoch, "cause": "Gone"}
    ]
    trio.members[0].is_refusing_connections = False  # with the same state as before
    await rounds(elector, 2)
    assert trio.roles() == ["slave", "slave", "master"]


async def test_a_silent_master_is_replaced_when_its_slaves_have_lost_it_too(trio):
    elector = await started(trio)
    trio.members[0].is_silent = True
    await rounds(elector, 2)
    trio.clock.advance(1_499)
    trio.members[1].becomes(has_lost_master=True)
    await rounds(elector, 1)
    assert trio.record.holder == trio.copy(0)
    trio.clock.advance(1)
    await rounds(elector, 3)
    assert trio.record.holder == trio.copy(1)
    assert elector.stats.elections["ReplicationLost"] == 1
    (opened,) = trio.log.named("master.open")[1:]
    assert opened["ordinal"] == 1


async def test_rounds_do_not_wait_for_a_silent_member(trio, monkeypatch):
    """News from the slaves must not be delayed until requests to the lost master time out."""
    elector = await started(trio)
    link, is_asked = elector.members.by_ordinal[0].link, asyncio.Event()
    answered = link.status

    async def hang(*, timeout_ms):
        is_asked.set()
        await asyncio.Event().wait()

    trio.members[0].is_silent = True
    await elector.round()
    monkeypatch.setattr(link, "status", hang)
    trio.clock.advance(1_500)
    trio.members[1].becomes(has_lost_master=True)
    async with asyncio.timeout(60):
        await elector.round()
        await is_asked.wait()
        assert trio.record.holder == trio.copy(1)
        await elector.close()
    trio.members[0].is_silent = False
    monkeypatch.setattr(link, "status", answered)
    elector.wake.clear()
    await elector.round()
    async with asyncio.timeout(60):
        await elector.wake.wait()  # the probe was answered
    await elector.round()
    assert elector.stats.answering_count == 3


async def test_a_master_with_a_full_disk_is_relieved_once(trio):
    elector = await started(trio)
    trio.in_sync(0, 1, 2)
    trio.members[0].becomes(is_full=True)
    trio.members[1].becomes(is_full=True)
    trio.members[2].becomes(has_room=True)
    await rounds(elector)
    assert trio.record.holder == trio.copy(2)
    epoch = trio.record.epoch
    trio.members[2].becomes(is_full=True, has_room=False)
    await rounds(elector)
    assert (trio.record.holder, trio.record.epoch) == (trio.copy(2), epoch)


async def test_a_master_that_only_the_elector_cannot_reach_stays(trio):
    elector = await started(trio)
    trio.members[0].is_silent = True
    for _ in range(20):
        trio.clock.advance(1_000)
        trio.in_sync(0, 1, 2)  # and renews the record
        await elector.round()
    assert trio.record.holder == trio.copy(0)


async def test_a_lease_that_expires_ends_the_reign(pair):
    elector = await started(pair)
    pair.members[0].is_silent = True
    pair.in_sync(0)
    await rounds(elector, 1)
    pair.clock.advance(60_000)
    await rounds(elector, 2)
    assert elector.stats.waiting.reason is Blocked.NO_CANDIDATE
    assert "brokers 0" in elector.stats.waiting.text
    pair.members[0].is_silent = False
    pair.members[0].becomes(role=Role.SLAVE, epoch=0)
    await rounds(elector)
    assert pair.record.holder == pair.copy(0)
    assert pair.roles()[0] == "master"


async def test_only_members_of_the_set_with_the_recorded_store_are_elected(trio):
    elector = await started(trio)
    trio.in_sync(0, 1)
    trio.members[1].becomes(copy=msgspec.structs.replace(trio.copy(1), incarnation="new"))
    trio.members[2].becomes(max_offset=1 << 40)
    trio.members[0].is_refusing_connections = True
    await rounds(elector)
    assert trio.record.holder == trio.copy(0)
    assert elector.stats.waiting.reason is Blocked.NO_CANDIDATE


async def test_a_winner_that_never_heard_of_its_election_is_told_by_any_elector(pair):
    first = await started(pair)
    pair.members[0].is_refusing_connections = True
    pair.members[1].refusal = OrderRefused(OrderRefusal.RECOVERING, "recovering")
    await rounds(first, 2)
    assert pair.record.holder == pair.copy(1)
    assert pair.roles()[1] == "slave"
    pair.members[1].refusal = None
    second = pair.elector()
    await rounds(second, 2)
    assert pair.roles()[1] == "master"
    assert not second.stats.elections.total()


async def test_a_master_that_a_person_fenced_is_not_elected_again(trio):
    elector = await started(trio)
    trio.members[0].becomes(max_offset=9)  # more than any other
    await trio.members[0].obey(Fence(trio.record.epoch + 1))
    await rounds(elector)
    assert trio.record.holder == trio.copy(1)
    assert trio.roles() == ["slave", "master", "slave"]


async def test_a_fenced_master_without_another_broker_is_elected_again(pair):
    elector = await started(pair)
    pair.members[1].is_silent = True
    await pair.members[0].obey(Fence(pair.record.epoch + 1))
    await rounds(elector)
    assert pair.roles()[0] == "master"


# ---- planned changes -------------------------------------------------------------------------


async def test_a_leaving_slave_is_dropped_and_the_number_of_copies_follows(trio):
    await started(trio)
    elector = trio.elector(leaving_members="2")
    await rounds(elector)
    assert trio.record.in_sync == (trio.copy(0), trio.copy(1))
    assert trio.record.copies == 2
    assert Drop(2) in trio.members[0].orders
    assert Resize(2) in trio.members[0].orders


async def test_a_leaving_master_hands_over_first(trio):
    await started(trio)
    elector = trio.elector(leaving_members="0")
    await rounds(elector, 10)
    handed = [order for order in trio.members[0].orders if isinstance(order, HandOver)]
    assert handed == [HandOver(1, leaves=True)]
    assert trio.record.holder == trio.copy(1)
    assert trio.copy(0) not in trio.record.in_sync


async def test_a_member_that_is_needed_does_not_leave(pair):
    await started(pair)
    elector = pair.elector(leaving_members="1", min_in_sync=1)
    pair.in_sync(0)
    await rounds(elector)
    pair.in_sync(0, 1)
    strict = pair.elector(min_in_sync=2)
    await rounds(strict)
    assert pair.record.in_sync == (pair.copy(0), pair.copy(1))
