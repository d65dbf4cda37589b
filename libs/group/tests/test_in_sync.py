# SPDX-License-Identifier: Apache-2.0
"""A master's view of its copies, rule by rule; the checker shows that the rules are sufficient."""

import msgspec
import pytest

from cometmq.ha import in_sync
from cometmq.ha.in_sync import Ack, AckRefused
from cometmq.ha.port import CONFLICT, UNKNOWN, applied
from cometmq.ha.record import Copy, Record, Versioned

M, X, Y = Copy(0, "m"), Copy(1, "x"), Copy(2, "y")
X2 = Copy(1, "x2")


def leading(*members, start=0, end=0, **record):
    content = Record(
        uid="u", group="g", epoch=3, holder=M, in_sync=tuple(sorted(members)), copies=3, **record
    )
    leadership = in_sync.lead(M, Versioned(content, "1"), start=start)
    return in_sync.appended(leadership, end or start)


def ack(copy, offset, tables=0, epoch=3):
    return Ack(copy, epoch, offset, tables)


def heard(leadership, *acks):
    for one in acks:
        leadership = in_sync.acked(leadership, one)
    return leadership


def proposed(leadership, unfit=()) -> Record:
    record = in_sync.proposal(leadership, unfit)
    assert record
    return record


def lost_write(leadership, unfit=()):
    """Return the view after an unanswered write and a read that returned the same version."""
    record = proposed(leadership, unfit)
    leadership = in_sync.answered(in_sync.written(leadership, record), UNKNOWN)
    assert in_sync.proposal(leadership) is None
    return in_sync.found(leadership, leadership.base)


def test_a_master_alone_confirms_what_it_appends():
    assert leading(M, start=10, end=25).confirmed == 25


def test_the_slowest_member_of_the_set_bounds_the_confirm_offset():
    leadership = heard(leading(M, X, Y, end=30), ack(X, 30))
    assert leadership.confirmed == 0
    assert heard(leadership, ack(Y, 20)).confirmed == 20


def test_the_confirm_offset_never_goes_back():
    leadership = heard(leading(M, X, end=30), ack(X, 20), ack(X, 10))
    assert leadership.confirmed == 20


def test_reports_of_other_epochs_and_incarnations_count_for_nothing():
    leadership = heard(leading(M, X, end=30), ack(X, 30, epoch=2), ack(X, 30, epoch=4))
    assert leadership.acks == ()
    assert heard(leadership, ack(X2, 30)).confirmed == 0


@pytest.mark.parametrize("report", [ack(X, 31), ack(X, 30, tables=1)])
def test_a_report_above_our_end_is_refused(report):
    with pytest.raises(AckRefused, match="but this master has 30 and 0"):
        in_sync.acked(leading(M, X, end=30), report)


def test_one_incarnation_of_a_broker_is_remembered():
    leadership = leading(M, end=30)
    for number in range(100):
        leadership = in_sync.acked(leadership, ack(Copy(1, f"x{number}"), number % 30))
    assert [one.copy.incarnation for one in leadership.acks] == ["x99"]


@pytest.mark.parametrize(
    ("report", "joins"),
    [
        (ack(X, 30), True),
        (ack(X, 29), False),  # only M has confirmed 30
        (ack(X, 30, tables=-1), False),
        (ack(X, 30, epoch=2), False),
    ],
)
def test_a_copy_joins_that_has_everything(report, joins):
    leadership = heard(leading(M, start=20, end=30), report)
    assert in_sync.wanted_set(leadership, ()) == ((M, X) if joins else (M,))
    assert in_sync.wants_write(leadership) is joins


def test_a_copy_joins_only_above_the_start_of_the_epoch():
    leadership = heard(leading(M, Y, start=20, end=30), ack(Y, 5), ack(X, 19))
    assert leadership.confirmed == 5
    assert in_sync.wanted_set(leadership, ()) == (M, Y)
    assert in_sync.wanted_set(heard(leadership, ack(X, 20)), ()) == (M, X, Y)


def test_a_copy_joins_only_with_the_tables_that_were_answered():
    leadership = in_sync.tables_changed(leading(M, end=30), 2)
    assert leadership.confirmed_tables == 2
    assert in_sync.wanted_set(heard(leadership, ack(X, 30, tables=1)), ()) == (M,)
    assert in_sync.wanted_set(heard(leadership, ack(X, 30, tables=2)), ()) == (M, X)


def test_changes_of_tables_wait_for_every_member():
    leadership = in_sync.tables_changed(heard(leading(M, X), ack(X, 0)), 2)
    assert leadership.confirmed_tables == 0
    assert heard(leadership, ack(X, 0, tables=1)).confirmed_tables == 1


def test_silent_and_deposed_members_leave():
    assert in_sync.wanted_set(leading(M, X, Y), {X}) == (M, Y)
    deposed = leading(M, X, Y, deposed=Y)
    assert in_sync.wanted_set(deposed, ()) == (M, X)
    assert in_sync.wanted_set(heard(deposed, ack(Y, 0)), ()) == (M, X, Y)


def test_another_incarnation_takes_the_place_of_the_first():
    leadership = heard(leading(M, X, end=10), ack(X, 10), ack(X2, 10))
    assert in_sync.wanted_set(leadership, ()) == (M, X2)


def test_the_set_never_exceeds_the_number_of_copies():
    leadership = heard(leading(M, X, Y), ack(Copy(3, "z"), 0))
    assert in_sync.wanted_set(leadership, ()) == (M, X, Y)


def test_a_group_grows_by_its_number_of_copies_first():
    leadership = heard(leading(M, X, Y), ack(Copy(3, "z"), 0))
    record = in_sync.proposal(leadership, copies=4)
    assert record
    assert (record.copies, record.in_sync) == (4, (M, X, Y))
    leadership = in_sync.answered(in_sync.written(leadership, record), applied(record, "2"))
    assert in_sync.wanted_set(leadership, ()) == (M, X, Y, Copy(3, "z"))


def test_a_pending_addition_is_required_and_not_counted():
    leadership = lost_write(heard(leading(M, end=10), ack(X, 10)))
    assert in_sync.maximal_set(leadership) == (M, X)
    assert in_sync.certain_set(leadership) == (M,)
    assert in_sync.appended(leadership, 20).confirmed == 10
    assert not in_sync.may_acknowledge(leadership, 2)
    assert in_sync.may_acknowledge(leadership, 1)


def test_a_pending_removal_is_required_and_not_counted():
    leadership = lost_write(heard(leading(M, X, end=10), ack(X, 5)), {X})
    assert in_sync.maximal_set(leadership) == (M, X)
    assert in_sync.certain_set(leadership) == (M,)
    assert leadership.confirmed == 5
    assert not in_sync.may_acknowledge(leadership, 2)


def test_another_version_settles_pending_changes():
    leadership = lost_write(heard(leading(M, end=10), ack(X, 10)))
    record = leadership.base.record
    landed = in_sync.found(leadership, Versioned(record.renewed([M, X]), "2"))
    assert landed.possible == ((M, X),)
    overtaken = in_sync.found(leadership, Versioned(record.renewed(), "2"))
    assert overtaken.possible == ((M,),)


def test_the_next_write_settles_a_lost_one():
    leadership = lost_write(heard(leading(M, end=10), ack(X, 10)))
    record = proposed(leadership, {X})
    leadership = in_sync.answered(in_sync.written(leadership, record), applied(record, "2"))
    assert leadership.possible == ((M,),)
    assert not in_sync.wants_write(leadership, {X})


def test_after_a_conflict_the_recorded_set_is_adopted():
    leadership = heard(leading(M, end=10), ack(X, 10))
    record = proposed(leadership)
    leadership = in_sync.answered(in_sync.written(leadership, record), CONFLICT)
    assert in_sync.proposal(leadership) is None
    other = Versioned(leadership.base.record.renewed([M, Y]), "2")
    assert in_sync.found(leadership, other).possible == ((M, Y),)


def test_nothing_is_written_while_the_record_is_missing():
    leadership = in_sync.found(leading(M, X), None)
    assert in_sync.proposal(leadership) is None
    assert in_sync.maximal_set(leadership) == (M, X)


@pytest.mark.parametrize(
    ("change", "deposed"),
    [({}, False), ({"epoch": 4}, True), ({"holder": X}, True), ({"uid": "other"}, True)],
)
def test_a_record_of_another_reign_deposes(change, deposed):
    leadership = leading(M, X)
    read = Versioned(msgspec.structs.replace(leadership.base.record, **change), "2")
    assert in_sync.is_deposed(leadership, read) is deposed


def test_reads_open_at_the_start_of_the_epoch():
    leadership = heard(leading(M, X, start=20), ack(X, 15))
    assert not in_sync.may_read(leadership, 20)
    leadership = heard(leadership, ack(X, 20))
    assert in_sync.may_read(leadership, 20)
    assert not in_sync.may_read(leadership, 19)


def test_a_hand_over_waits_until_the_target_has_caught_up():
    leadership = in_sync.tables_changed(heard(leading(M, X, end=10), ack(X, 9)), 1)
    assert in_sync.hand_over(leadership, X) is None
    leadership = heard(leadership, ack(X, 10))
    assert in_sync.hand_over(leadership, X) is None
    record = in_sync.hand_over(heard(leadership, ack(X, 10, tables=1)), X)
    assert record
    assert (record.holder, record.epoch, record.in_sync, record.deposed) == (X, 4, (M, X), None)


def test_a_hand_over_waits_until_every_send_is_answered():
    leadership = heard(leading(M, X, Y, end=10), ack(X, 10), ack(Y, 9))
    assert in_sync.hand_over(leadership, X) is None
    assert in_sync.hand_over(heard(leadership, ack(Y, 10)), X)


def test_a_master_that_leaves_is_deposed_by_its_hand_over():
    leadership = heard(leading(M, X), ack(X, 0))
    record = in_sync.hand_over(leadership, X, leaves=True)
    assert record
    assert record.deposed == M


def test_only_a_member_for_certain_takes_over():
    leadership = heard(leading(M), ack(X, 0))
    assert in_sync.hand_over(leadership, X) is None
    assert in_sync.hand_over(lost_write(leadership), X) is None
