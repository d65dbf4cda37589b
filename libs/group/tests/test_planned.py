# SPDX-License-Identifier: Apache-2.0
"""Planned changes to a group: switchovers, removals and changes to the number of copies."""

import msgspec
import pytest

from cometmq.ha import election, planned
from cometmq.ha.actions import Blocked, Group, Tell, Wait
from cometmq.ha.orders import Drop, HandOver, Resize
from cometmq.ha.role import Role
from cometmq.testing.ha.samples import (
    GROUP,
    X2,
    M,
    X,
    Y,
    master,
    only,
    recorded,
    slave,
)


def test_a_switchover_goes_to_the_member_that_lags_least():
    statuses = (master(), slave(X, lag_bytes=500), slave(Y, lag_bytes=10))
    record = recorded().record
    assert planned.switch_over(record, statuses) == Tell(0, HandOver(2))
    assert planned.switch_over(record, statuses, 1) == Tell(0, HandOver(1))


@pytest.mark.parametrize(
    "target",
    [
        slave(X, lag_bytes=1 << 20),
        slave(X, epoch=3),
        slave(X2),
        msgspec.structs.replace(slave(X), role=Role.FENCED),
    ],
)
def test_a_switchover_needs_a_member_that_is_nearly_level(target):
    action = planned.switch_over(recorded().record, (master(), target), 1)
    assert isinstance(action, Wait)
    assert action.reason is Blocked.TARGET_UNFIT
    assert "broker 1" in action.text


def test_a_switchover_needs_a_master():
    seen = {"is silent": (), "is slave in epoch 4": (slave(M),), "in epoch 3": (master(epoch=3),)}
    for text, holder in seen.items():
        action = planned.switch_over(recorded().record, (*holder, slave(X)))
        assert isinstance(action, Wait)
        assert action.reason is Blocked.NO_MASTER
        assert action.text.startswith("broker 0, the master of epoch 4, ")
        assert action.text.endswith(text)


def test_the_master_takes_a_member_out_that_is_to_go():
    statuses = (master(), slave(X), slave(Y))
    actions = election.decide(GROUP, recorded(), statuses, is_master_lost=False, removing={2})
    assert actions == (Tell(0, Drop(2)),)
    actions = election.decide(GROUP, recorded(M, X), statuses, is_master_lost=False, removing={2})
    assert actions == ()


def test_a_removal_keeps_enough_copies_in_sync():
    statuses = (master(), slave(X))
    action = only(planned.retire(GROUP, recorded(M, X).record, statuses, {1}))
    assert action == Wait(Blocked.TOO_FEW_IN_SYNC, "2 copies are in sync and 2 are needed")


def test_a_full_set_gets_room_for_the_successor_of_a_member_that_leaves():
    group = Group(name="orders", ordinals=(0, 2), min_in_sync=2)
    full = msgspec.structs.replace(recorded(M, X).record, copies=2)
    statuses = (master(), slave(X), slave(Y))
    assert only(planned.retire(group, full, statuses, {1})) == Tell(0, Resize(3))
    joined = recorded().record
    assert only(planned.retire(group, joined, statuses, {1})) == Tell(0, Drop(1))
    assert only(planned.resize(group, recorded(M, Y).record)) == Tell(0, Resize(2))


def test_a_full_set_of_members_that_all_leave_gets_room_for_a_successor():
    group = Group(name="orders", ordinals=(2,))
    full = msgspec.structs.replace(recorded(M, X).record, copies=2)
    statuses = (master(), slave(X), slave(Y))
    assert only(planned.retire(group, full, statuses, {0, 1})) == Tell(0, Resize(3))
    with_room = recorded(M, X).record
    assert only(planned.retire(group, with_room, statuses, {0, 1})).reason is Blocked.TARGET_UNFIT
    joined = recorded().record
    assert only(planned.retire(group, joined, statuses, {0, 1})) == Tell(
        0, HandOver(2, leaves=True)
    )


def test_another_number_of_copies_is_written_by_the_master():
    group = Group(name="orders", ordinals=(0, 1, 2, 3))
    statuses = (master(), slave(X), slave(Y))
    actions = election.decide(group, recorded(), statuses, is_master_lost=False)
    assert actions == (Tell(0, Resize(4)),)
    actions = election.decide(group, recorded(), statuses, is_master_lost=False, removing={2})
    assert actions == (Tell(0, Drop(2)),)


def test_a_master_that_is_to_go_hands_over_first():
    statuses = (master(), slave(X, lag_bytes=5), slave(Y))
    action = only(planned.retire(GROUP, recorded().record, statuses, {0, 2}))
    assert action == Tell(0, HandOver(1, leaves=True))


def relief(*statuses, record=None, removing=()):
    record = record or recorded()
    return election.decide(GROUP, record, statuses, is_master_lost=False, removing=removing)


FULL = master(is_full=True)


def test_a_master_with_a_full_disk_hands_over_to_a_member_with_room():
    assert relief(FULL, slave(X), slave(Y, has_room=True)) == (Tell(0, HandOver(2, leaves=True)),)
    assert relief(master(), slave(X, has_room=True), slave(Y, has_room=True)) == ()


@pytest.mark.parametrize(
    ("statuses", "record"),
    [
        ((slave(X), slave(Y)), recorded()),  # they would soon be full, too
        ((slave(X, has_room=True, lag_bytes=1 << 20), slave(Y)), recorded()),
        ((slave(X), slave(Y, has_room=True)), recorded(M, X)),  # not in sync
        ((slave(X, has_room=True),), recorded()),  # one copy is left, and two are needed
        ((slave(X, has_room=True), slave(Y, is_full=True)), recorded()),
    ],
)
def test_a_master_with_a_full_disk_stays_if_a_hand_over_would_not_help(statuses, record):
    assert relief(FULL, *statuses, record=record) == ()


def test_a_member_that_leaves_relieves_no_master():
    statuses = slave(X, has_room=True), slave(Y, has_room=True)
    group = msgspec.structs.replace(GROUP, min_in_sync=1)
    record = recorded().record
    assert planned.relieve(group, record, (FULL, *statuses), {1}) == (
        Tell(0, HandOver(2, leaves=True)),
    )
    assert planned.relieve(group, record, (FULL, statuses[0]), {1}) == ()
