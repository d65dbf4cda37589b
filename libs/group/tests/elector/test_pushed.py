# SPDX-License-Identifier: Apache-2.0
"""Statuses that members push: they save requests, but nothing is decided by them."""

from cometmq.elector.app import push_interval_ms
from cometmq.elector.asked_member import ASK_INTERVALS, PUSH_LATE_MS
from cometmq.elector.settings import ElectorSettings
from cometmq.ha.role import Role

from .conftest import INTERVAL_MS, PUSH_MS, started


def push(group, elector):
    """Have all members push their status, as their streams do."""
    for ordinal, member in elector.members.by_ordinal.items():
        member.note_pushed(group.members[ordinal].report(), group.clock.monotonic_ms())


def count_requests(elector):
    """Return a list that gets the ordinal of each member that is asked from now on."""
    asked = []
    for ordinal, member in elector.members.by_ordinal.items():
        status = member.link.status

        async def counted(*, timeout_ms, ordinal=ordinal, status=status):
            asked.append(ordinal)
            return await status(timeout_ms=timeout_ms)

        member.link.status = counted
    return asked


async def settled(group):
    """Return an elector that has just asked all members, and the list of those it asks later."""
    elector = await started(group)
    await elector.round()
    push(group, elector)
    return elector, count_requests(elector)


async def test_members_that_push_that_all_is_well_are_rarely_asked(trio):
    """Three electors that asked twice a second took 2 % of a core of each idle member."""
    elector, asked = await settled(trio)
    for _ in range(10 * ASK_INTERVALS):
        trio.clock.advance(INTERVAL_MS)
        push(trio, elector)
        trio.renew()
        await elector.round()
        assert elector.stats.has_master
    assert sorted(asked) == sorted(10 * [0, 1, 2])


async def test_a_push_that_is_late_or_missing_makes_the_elector_ask(trio):
    elector, asked = await settled(trio)
    trio.clock.advance(PUSH_MS + PUSH_LATE_MS)
    await elector.round()
    assert asked == []
    trio.clock.advance(1)
    await elector.round()
    assert sorted(asked) == [0, 1, 2]
    asked.clear()
    elector.members.by_ordinal[1].note_pushed(None, trio.clock.monotonic_ms())  # its stream broke
    await elector.round()
    assert sorted(asked) == [0, 1, 2]


async def test_the_next_round_begins_when_a_push_is_late_or_a_silence_long_enough(trio):
    elector, _ = await settled(trio)
    trio.clock.advance(PUSH_MS)
    assert elector.pause_ms(trio.clock.monotonic_ms()) == PUSH_LATE_MS + 1
    trio.members[0].is_silent = True
    trio.clock.advance(PUSH_LATE_MS + 1)
    started_ms = trio.clock.monotonic_ms()
    await elector.round()
    trio.clock.advance(300)
    heard_ms = elector.members.by_ordinal[0].heard_ms
    assert elector.pause_ms(started_ms) == min(
        INTERVAL_MS - 300, heard_ms + 1500 - started_ms - 300
    )


async def test_no_order_and_no_election_follows_from_a_push(trio):
    """A push may be older than the record. Here one member pushes that it lost its role."""
    elector, asked = await settled(trio)
    before, orders = trio.record, [list(member.orders) for member in trio.members]
    member = elector.members.by_ordinal[0]
    stale = trio.members[0].report()
    trio.members[0].becomes(role=Role.SLAVE, epoch=0)
    member.note_pushed(trio.members[0].report(), trio.clock.monotonic_ms())
    trio.members[0].now = stale
    await elector.round()
    assert sorted(asked) == [0, 1, 2]
    assert trio.record == before
    assert [member.orders for member in trio.members] == orders
    assert trio.log.named("master.lost") == []


async def test_a_push_that_all_is_well_hides_no_change_of_the_record(trio):
    elector, asked = await settled(trio)
    found = trio.found
    trio.place.replace(found, found.record.elected(trio.copy(1), found.record.epoch + 1))
    await elector.round()
    assert sorted(asked) == [0, 1, 2]
    assert trio.members[1].now.status.role is Role.MASTER


async def test_a_killed_member_is_not_hidden_by_its_last_push(trio):
    elector, _ = await settled(trio)
    trio.members[0].is_refusing_connections = True
    elector.members.by_ordinal[0].note_pushed(None, trio.clock.monotonic_ms())
    for _ in range(3):
        await elector.round()
    assert trio.record.holder.ordinal != 0


def test_members_push_often_enough_to_find_a_silent_one_in_time():
    settings = ElectorSettings()
    silent_ms = push_interval_ms(settings) + PUSH_LATE_MS + settings.status_timeout_mills
    assert silent_ms == settings.heard_within_mills
    quick = ElectorSettings(heard_within_mills=300)
    assert push_interval_ms(quick) == quick.poll_interval_mills
