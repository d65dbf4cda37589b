# SPDX-License-Identifier: Apache-2.0
"""A test for each row of the transition table, and for events without a row."""

import msgspec
import pytest

from cometmq.ha import member as members
from cometmq.ha.member import (
    TRANSITIONS,
    Abandoned,
    BeginEpoch,
    Claim,
    CloseToClients,
    EpochSeen,
    ForwardHeld,
    HandedOver,
    HoldRequests,
    Lead,
    LeaseLapsed,
    Member,
    Opened,
    OrderRefusal,
    OrderRefused,
    ReadRecord,
    RecordRead,
    Recovered,
    SavePromise,
    ServeHeld,
    StartFollowing,
    StopFollowing,
    StoreFailed,
    react,
)
from cometmq.ha.orders import Fence, Follow, HandOver, Promote
from cometmq.ha.port import Answer
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.ha.role import Role

ME, X, Y = Copy(0, "m"), Copy(1, "x"), Copy(2, "y")


def record(epoch, holder=ME, uid="u", in_sync=(ME, X)):
    content = Record(uid=uid, group="g", epoch=epoch, holder=holder, in_sync=in_sync, serial=epoch)
    return Versioned(content, str(epoch))


RECOVERING = Member(me=ME, promised=3)
SLAVE = Member(me=ME, promised=3, role=Role.SLAVE)
FOLLOWING = Member(me=ME, promised=3, role=Role.SLAVE, epoch=3, master=1)
PROMOTING = Member(me=ME, promised=4, role=Role.PROMOTING, epoch=4, found=record(4))
MASTER = Member(me=ME, promised=4, role=Role.MASTER, epoch=4, found=record(4))
HANDING_OVER = Member(
    me=ME, promised=4, role=Role.HANDING_OVER, epoch=4, successor=1, found=record(4)
)
FENCED = Member(me=ME, promised=4, role=Role.FENCED)
HELD = Member(me=ME, promised=5, role=Role.FENCED, is_held=True)
FAILED = Member(me=ME, promised=4, role=Role.FAILED)

STOP, CLOSE, READ = StopFollowing(), CloseToClients(), ReadRecord()
FORWARD = (ForwardHeld(1), STOP, SavePromise(5), StartFollowing(1, 5))


def following(epoch, promised):
    return Member(me=ME, promised=promised, role=Role.SLAVE, epoch=epoch, master=1)


def failed(before):
    return Member(me=ME, promised=before.promised, role=Role.FAILED)


ROWS = [
    (RECOVERING, Recovered(), SLAVE, (READ,)),
    (RECOVERING, StoreFailed(), failed(RECOVERING), (CLOSE, STOP)),
    (FAILED, Recovered(), Member(me=ME, promised=4, role=Role.SLAVE), (READ,)),
    # a record read by a member that is not master
    (SLAVE, RecordRead(record(4)), PROMOTING, (STOP, SavePromise(4), BeginEpoch(4))),
    (SLAVE, RecordRead(None), SLAVE, ()),
    (
        SLAVE,
        RecordRead(record(3)),  # burned: epoch 3 may have been opened before a restart (R4)
        SLAVE,
        (Claim(record(3), record(3).record.elected(ME, 4)),),
    ),
    (
        SLAVE,
        RecordRead(record(5, X)),
        following(5, 5),
        (STOP, SavePromise(5), StartFollowing(1, 5)),
    ),
    (SLAVE, RecordRead(record(3, X)), following(3, 3), (STOP, StartFollowing(1, 3))),
    (SLAVE, RecordRead(record(2, X)), SLAVE, ()),  # below its promise
    (SLAVE, RecordRead(record(9, Copy(0, "old"), in_sync=(Copy(0, "old"),))), SLAVE, ()),
    (FOLLOWING, RecordRead(record(3, X)), FOLLOWING, ()),
    (SLAVE, Promote(4), SLAVE, (READ,)),
    (SLAVE, Follow(3, 1), FOLLOWING, (STOP, StartFollowing(1, 3))),
    (FOLLOWING, Follow(3, 1), FOLLOWING, ()),
    (
        FOLLOWING,
        Follow(5, 1),
        following(5, 5),
        (STOP, SavePromise(5), StartFollowing(1, 5)),
    ),
    (FOLLOWING, Fence(5), HELD, (STOP, SavePromise(5))),
    (FOLLOWING, EpochSeen(4), FOLLOWING, (READ,)),
    (FOLLOWING, EpochSeen(3), FOLLOWING, ()),
    (FOLLOWING, StoreFailed(), failed(FOLLOWING), (CLOSE, STOP)),
    # between promise and opening
    (PROMOTING, Opened(4), MASTER, (Lead(record(4)),)),
    (PROMOTING, Opened(3), PROMOTING, ()),
    (PROMOTING, RecordRead(record(4)), PROMOTING, ()),
    (PROMOTING, RecordRead(record(5, X)), FENCED, (READ,)),
    (PROMOTING, Promote(4), PROMOTING, ()),
    (
        PROMOTING,
        Follow(5, 1),
        following(5, 5),
        (CLOSE, STOP, SavePromise(5), StartFollowing(1, 5)),
    ),
    (PROMOTING, Fence(5), HELD, (STOP, SavePromise(5))),
    (PROMOTING, EpochSeen(5), PROMOTING, (READ,)),
    (PROMOTING, EpochSeen(4), PROMOTING, ()),
    (PROMOTING, StoreFailed(), failed(PROMOTING), (CLOSE, STOP)),
    # a master, and a master that hands over
    (MASTER, HandOver(1), HANDING_OVER, (HoldRequests(1),)),
    (HANDING_OVER, Abandoned(), MASTER, (ServeHeld(),)),
    (
        HANDING_OVER,
        HandedOver(Answer.APPLIED, 1, 5),
        following(5, 5),
        FORWARD,
    ),
    (HANDING_OVER, HandedOver(Answer.UNKNOWN, 1, 5), MASTER, (ServeHeld(), READ)),
    (HANDING_OVER, HandedOver(Answer.CONFLICT, 1, 5), MASTER, (ServeHeld(), READ)),
    # the effect of the write is seen before its answer arrives
    *[
        (HANDING_OVER, event, following(5, 5), FORWARD)
        for event in (RecordRead(record(5, X)), Follow(5, 1))
    ],
    (HANDING_OVER, EpochSeen(5), HANDING_OVER, (READ,)),
    (HANDING_OVER, RecordRead(record(6, X, uid="other")), FENCED, (CLOSE, READ)),
    (
        HANDING_OVER,
        Follow(5, 2),
        msgspec.structs.replace(following(5, 5), master=2),
        (CLOSE, STOP, SavePromise(5), StartFollowing(2, 5)),
    ),
    (MASTER, RecordRead(record(5, X)), FENCED, (CLOSE, READ)),
    (
        MASTER,
        Follow(5, 1),
        following(5, 5),
        (CLOSE, STOP, SavePromise(5), StartFollowing(1, 5)),
    ),
    (MASTER, EpochSeen(5), MASTER, (READ,)),
    *[
        row
        for role in (MASTER, HANDING_OVER)
        for row in [
            (role, RecordRead(record(4)), role, ()),
            (role, RecordRead(None), role, ()),  # decision 7
            (role, RecordRead(record(5, Y, in_sync=(ME, X, Y))), FENCED, (CLOSE, READ)),
            (role, RecordRead(record(5)), FENCED, (CLOSE, READ)),
            (role, RecordRead(record(4, uid="other")), FENCED, (CLOSE, READ)),
            (role, Promote(4), role, ()),
            (role, Promote(5), role, (READ,)),
            (role, Fence(5), HELD, (CLOSE, STOP, SavePromise(5))),
            (role, EpochSeen(6), role, (READ,)),
            (role, EpochSeen(4), role, ()),
            (role, LeaseLapsed(), FENCED, (CLOSE, READ)),
            (role, StoreFailed(), failed(role), (CLOSE, STOP)),
        ]
    ],
    # fenced, by itself or by an order
    (
        FENCED,
        RecordRead(record(4)),
        FENCED,
        (Claim(record(4), record(4).record.elected(ME, 5)),),
    ),
    (HELD, RecordRead(record(4)), HELD, ()),
    (
        HELD,
        RecordRead(record(6)),
        msgspec.structs.replace(PROMOTING, promised=6, epoch=6, found=record(6)),
        (STOP, SavePromise(6), BeginEpoch(6)),
    ),
    (FENCED, Promote(5), FENCED, (READ,)),
    (FENCED, Follow(4, 1), following(4, 4), (STOP, StartFollowing(1, 4))),
    (FENCED, Fence(5), HELD, (STOP, SavePromise(5))),
    (FENCED, Fence(4), msgspec.structs.replace(HELD, promised=4), (STOP,)),
    (FENCED, EpochSeen(5), FENCED, (READ,)),
    (FENCED, StoreFailed(), failed(FENCED), (CLOSE, STOP)),
]


def row_name(value):
    return f"{value.role}" if isinstance(value, Member) else type(value).__name__


@pytest.mark.parametrize(("before", "event", "after", "actions"), ROWS, ids=row_name)
def test_row(before, event, after, actions):
    assert react(before, event) == (after, actions)


def test_every_row_of_the_table_is_tested():
    assert {(before.role, type(event)) for before, event, _, _ in ROWS} == set(TRANSITIONS)


@pytest.mark.parametrize(
    ("before", "order", "reason"),
    [
        (RECOVERING, Fence(9), OrderRefusal.RECOVERING),
        (RECOVERING, Follow(9, 1), OrderRefusal.RECOVERING),
        (FAILED, Promote(9), OrderRefusal.STORE_FAILED),
        (FAILED, Fence(9), OrderRefusal.STORE_FAILED),
        (SLAVE, HandOver(1), OrderRefusal.NOT_MASTER),
        (FENCED, HandOver(1), OrderRefusal.NOT_MASTER),
        (HANDING_OVER, HandOver(1), OrderRefusal.NOT_MASTER),
        (SLAVE, Promote(3), OrderRefusal.STALE_EPOCH),
        (SLAVE, Follow(2, 1), OrderRefusal.STALE_EPOCH),
        (SLAVE, Fence(2), OrderRefusal.STALE_EPOCH),
        (SLAVE, Follow(5, 0), OrderRefusal.NOT_IN_SYNC),
        (MASTER, Follow(4, 1), OrderRefusal.STALE_EPOCH),
        (MASTER, Fence(3), OrderRefusal.STALE_EPOCH),
        (MASTER, Promote(3), OrderRefusal.STALE_EPOCH),
        (MASTER, HandOver(0), OrderRefusal.NOT_IN_SYNC),
        (PROMOTING, Follow(4, 1), OrderRefusal.STALE_EPOCH),
    ],
)
def test_orders_that_do_not_fit_are_refused(before, order, reason):
    with pytest.raises(OrderRefused) as raised:
        react(before, order)
    assert raised.value.reason is reason
    assert str(raised.value)


@pytest.mark.parametrize(
    ("before", "event"),
    [
        (RECOVERING, RecordRead(record(9))),
        (FAILED, RecordRead(record(9))),
        (FAILED, EpochSeen(9)),
        (SLAVE, Opened(3)),
        (SLAVE, LeaseLapsed()),
        (FENCED, HandedOver(Answer.APPLIED, 1, 5)),
        (following(5, 5), HandedOver(Answer.UNKNOWN, 1, 5)),
        (MASTER, Abandoned()),
    ],
)
def test_observations_without_meaning_change_nothing(before, event):
    assert react(before, event) == (before, ())


def test_streams_below_the_promise_are_refused():
    assert [members.accepts(FENCED, epoch) for epoch in (3, 4, 5)] == [False, True, True]


@pytest.mark.parametrize(
    ("found", "may_open"),
    [
        (record(4), True),
        (record(3), False),
        (record(4, X), False),
        (record(4, Copy(0, "other"), in_sync=(Copy(0, "other"), X)), False),
    ],
)
def test_only_the_recorded_copy_opens_and_only_a_new_epoch(found, may_open):
    assert members.may_open(SLAVE, found.record) is may_open
