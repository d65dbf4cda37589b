# SPDX-License-Identifier: Apache-2.0
"""Rounds of an elector whose record is unreachable, changes or answers late."""

import pytest

from cometmq.ha.port import RecordUnreachable
from cometmq.testing.ha.memory import Fault

from .conftest import Log, rounds, started


async def test_without_the_record_nothing_is_done_and_the_fault_says_why(pair):
    elector = await started(pair)
    pair.port.is_cut_off = True
    pair.members[0].is_refusing_connections = True
    before = [list(member.orders) for member in pair.members]
    await rounds(elector)
    assert "no elections are possible: the record in memory is out of reach" in elector.fault
    assert not elector.stats.is_record_reachable
    assert [member.orders for member in pair.members] == before
    assert len(pair.log.named("record.unreachable")) == 1
    pair.port.is_cut_off = False
    await rounds(elector)
    assert elector.fault == ""
    assert len(pair.log.named("record.reachable")) == 1
    assert pair.record.holder == pair.copy(1)


async def test_figures_are_current_without_the_record(trio):
    elector = await started(trio)
    stats = elector.stats
    trio.port.is_cut_off = True
    await rounds(elector, 1)
    assert (stats.has_master, stats.answering_count) == (True, 3)  # only the record is lost
    trio.members[0].is_silent = True
    await rounds(elector, 1)
    assert (stats.has_master, stats.answering_count) == (False, 2)
    # An elector that reaches the record elects.
    other = trio.elector(trio.place.port(), Log())
    trio.members[0].is_refusing_connections = True
    await rounds(other, 4)
    assert trio.record.holder == trio.copy(1)
    await rounds(elector, 1)
    assert stats.has_master
    opened = len(trio.log.named("master.open"))
    trio.port.is_cut_off = False
    await rounds(elector, 1)
    assert stats.has_master
    assert len(trio.log.named("master.open")) == opened


async def test_a_master_that_led_an_earlier_epoch_is_none_without_the_record(trio):
    elector = await started(trio)
    trio.members[0].becomes(epoch=trio.record.epoch - 1)
    trio.port.is_cut_off = True
    await rounds(elector, 1)
    assert not elector.stats.has_master


async def test_an_elector_that_starts_without_the_record_sees_the_master(trio):
    await started(trio)
    log = Log()
    elector = trio.elector(log=log)
    trio.port.is_cut_off = True
    await rounds(elector, 2)
    assert elector.stats.has_master
    assert not log.named("master.open")
    trio.port.is_cut_off = False
    await rounds(elector, 2)
    assert len(log.named("master.open")) == 1


async def test_an_outage_of_the_record_ends_no_reign_of_a_sole_copy_that_leads(pair):
    elector = await started(pair)
    pair.in_sync(0)
    await rounds(elector, 1)
    record = pair.record
    pair.port.is_cut_off = True
    await rounds(elector, 1)
    pair.clock.advance(60_000)
    pair.port.is_cut_off = False
    await rounds(elector, 2)  # before the master renews the record
    assert pair.record == record
    pair.renew()
    await rounds(elector, 1)
    assert elector.stats.waiting is None


async def test_an_outage_is_counted_from_its_own_loss(pair):
    """A master that renews the record late has not been replaced."""
    elector = await started(pair)
    pair.in_sync(0)
    await rounds(elector, 1)
    pair.clock.advance(60_000)
    await rounds(elector, 1)
    (lost,) = pair.log.named("master.lost")
    assert lost["cause"] == "LeaseExpired"
    pair.in_sync(0, 1)  # the master renews the record
    await rounds(elector, 1)
    pair.clock.advance(86_400_000)
    pair.renew()
    await rounds(elector, 1)
    pair.members[0].is_refusing_connections = True
    await rounds(elector, 1)
    pair.clock.advance(700)
    await rounds(elector)
    assert pair.record.holder == pair.copy(1)
    assert elector.stats.last_outage_ms == 700


async def test_a_record_that_fails_without_a_reason_is_not_a_missing_one(pair, monkeypatch):
    async def fail():
        raise RecordUnreachable

    elector = await started(pair)
    orders = [list(member.orders) for member in pair.members]
    monkeypatch.setattr(elector._record, "read", fail)
    await elector.round()
    assert elector.fault
    assert [member.orders for member in pair.members] == orders


async def test_a_record_that_never_answers_counts_as_unreachable(pair, monkeypatch):
    async def never():
        raise TimeoutError

    elector = await started(pair)
    monkeypatch.setattr(elector._record, "read", never)
    await elector.round()
    assert "did not answer within 5000 ms" in elector.fault


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LAND_LATE, Fault.UNREACHABLE])
async def test_an_election_whose_answer_is_lost_is_decided_again(pair, fault):
    elector = await started(pair)
    pair.members[0].is_refusing_connections = True
    pair.port.faults.extend([None, fault])
    await elector.round()
    assert elector.stats.writes["unknown"] == 1
    assert pair.log.named("record.write_unknown")
    if pair.place.late:
        pair.place.land_late()
    await rounds(elector)
    assert pair.record.holder == pair.copy(1)
    assert pair.roles()[1] == "master"


async def test_two_electors_elect_once(trio):
    first = await started(trio)
    second = trio.elector(trio.place.port())
    await second.round()
    trio.members[0].is_refusing_connections = True
    epoch = trio.record.epoch
    for elector in (first, second) * 4:
        await elector.round()
    assert trio.record.epoch == epoch + 1
    assert first.stats.elections["Gone"] + second.stats.elections["Gone"] == 1


async def test_a_member_of_the_set_that_settings_omit_is_named(trio):
    await started(trio)
    log = Log()
    elector = trio.elector(log=log, control_members="0=127.0.0.1:1;1=127.0.0.1:2")
    await rounds(elector, 3)
    (event,) = log.named("member.unlisted")
    assert event["ordinals"] == [2]
