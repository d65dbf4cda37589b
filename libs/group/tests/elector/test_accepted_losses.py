# SPDX-License-Identifier: Apache-2.0
"""Elections that a person allows although acknowledged messages may be lost."""

import msgspec
import pytest

from cometmq.elector.restoration import ACCEPTANCE_MS
from cometmq.ha.actions import Blocked
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.testing.ha.memory import Fault

from .conftest import rounds, started


async def after_a_crash_of_all_hosts(group):
    """Build an elector whose members have stores with new incarnations, and no record."""
    elector = await started(group)
    for member, offset in zip(group.members, (5, 9, 7), strict=True):
        copy = Copy(member.now.status.copy.ordinal, "new")
        member.becomes(copy=copy, standing=Standing.SUSPECT, max_offset=offset, role=Role.SLAVE)
    group.place.delete()
    await rounds(elector)
    assert group.place.current is None
    assert reason(elector) is Blocked.SUSPECT_COPY
    return elector


def reason(elector):
    return elector.stats.waiting.reason


def copies(group):
    return [member.now.status.copy for member in group.members]


async def test_an_accepted_loss_creates_the_record_once(trio):
    elector = await after_a_crash_of_all_hosts(trio)
    promised = max(member.now.status.promised for member in trio.members)
    elector.restoration.accept_loss(promised, copies(trio))
    assert elector.restoration.is_accepting_loss
    await rounds(elector)
    assert trio.record.holder == Copy(1, "new")
    assert trio.record.epoch > promised
    assert trio.roles() == ["slave", "master", "slave"]
    assert not elector.restoration.is_accepting_loss
    for member in trio.members:
        member.becomes(standing=Standing.SUSPECT)
    trio.place.delete()
    await rounds(elector)
    assert trio.place.current is None  # the next loss is another one


async def test_an_accepted_loss_is_used_up_before_the_record_is_read(trio):
    """The record may be deleted again between its creation and the next read."""
    elector = await after_a_crash_of_all_hosts(trio)
    elector.restoration.accept_loss(40, copies(trio))
    while trio.place.current is None:
        await elector.round()
    trio.place.delete()
    await rounds(elector)
    assert trio.place.current is None
    assert reason(elector) is Blocked.SUSPECT_COPY


async def test_the_epoch_after_an_accepted_loss_is_above_that_of_the_lost_record(trio):
    elector = await after_a_crash_of_all_hosts(trio)
    elector.restoration.accept_loss(40, copies(trio))
    await rounds(elector)
    assert trio.record.epoch > 41  # R10: above the fence, which is above the lost record


async def test_an_accepted_loss_is_not_used_for_other_stores(trio):
    elector = await after_a_crash_of_all_hosts(trio)
    elector.restoration.accept_loss(40, copies(trio))
    trio.members[1].becomes(copy=Copy(1, "newer"))
    await rounds(elector)
    assert trio.place.current is None
    assert reason(elector) is Blocked.SUSPECT_COPY


async def test_an_accepted_loss_expires(trio):
    elector = await after_a_crash_of_all_hosts(trio)
    trio.members[2].is_silent = True
    elector.restoration.accept_loss(40, copies(trio))
    await rounds(elector)
    assert reason(elector) is Blocked.MEMBERS_MISSING
    trio.clock.advance(ACCEPTANCE_MS)
    assert not elector.restoration.is_accepting_loss
    trio.members[2].is_silent = False
    await rounds(elector)
    assert trio.place.current is None
    assert reason(elector) is Blocked.SUSPECT_COPY


@pytest.mark.parametrize("fault", Fault)
async def test_an_accepted_loss_outlasts_a_creation_without_an_answer(trio, fault):
    elector = await after_a_crash_of_all_hosts(trio)
    elector.restoration.accept_loss(40, copies(trio))
    trio.port.faults.extend([None, None, fault])  # a read and fences, a read and the creation
    await rounds(elector, 2)
    assert not trio.port.faults
    await rounds(elector)
    while trio.place.late:
        trio.place.land_late()
    await rounds(elector, 2)
    assert trio.record.holder == Copy(1, "new")
    assert trio.roles() == ["slave", "master", "slave"]


async def test_a_read_that_began_before_the_deletion_does_not_end_an_acceptance(trio):
    elector = await started(trio)
    old = trio.found
    elector.restoration.accept_loss(old.record.epoch, copies(trio))
    elector._record_read(old)
    assert elector.restoration.is_accepting_loss
    later = old.record.elected(trio.copy(0), old.record.epoch + 1)
    elector._record_read(msgspec.structs.replace(old, record=later))
    assert not elector.restoration.is_accepting_loss


async def test_the_log_names_the_command_that_accepts_a_loss(trio):
    await after_a_crash_of_all_hosts(trio)
    (event,) = (one for one in trio.log.named("group.blocked") if one["reason"] == "SuspectCopy")
    assert event["text"].endswith("accept that, with cometmq ha restore --accept-loss")
