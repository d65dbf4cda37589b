# SPDX-License-Identifier: Apache-2.0
"""How an elector acts when a group has no record: a new group, or a deleted record."""

import msgspec

from cometmq.ha import missing_record
from cometmq.ha.actions import Blocked, Create, Group, Tell
from cometmq.ha.orders import Fence
from cometmq.ha.record import Copy, Record
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.testing.ha.samples import (
    GROUP,
    M,
    X,
    Y,
    fenced,
    master,
    only,
    slave,
)


def restore(*statuses, accept_loss=False):
    return missing_record.restore(GROUP, statuses, 9, "new", accept_loss=accept_loss)


def test_the_fence_is_above_every_promise():
    assert missing_record.restore_epoch((slave(X, promised=8), slave(Y))) == 9
    assert missing_record.restore_epoch(()) == 1


def test_all_brokers_answer_before_a_record_is_created():
    recovering = msgspec.structs.replace(fenced(Y), role=Role.RECOVERING)
    for statuses in [(fenced(M), fenced(X)), (fenced(M), fenced(X), recovering)]:
        action = only(restore(*statuses))
        assert action.reason is Blocked.MEMBERS_MISSING
        assert "brokers [2] do not answer" in action.text


def test_all_are_fenced_before_a_record_is_created():
    before = (master(), fenced(X), fenced(Y, promised=8))
    assert restore(*before) == (Tell(0, Fence(9)), Tell(2, Fence(9)))


def had(copy, max_offset, standing=Standing.PROVEN, **changes):
    return fenced(copy, last_log_epoch=4, max_offset=max_offset, standing=standing, **changes)


def test_the_most_complete_proven_store_is_the_first_member():
    action = only(restore(had(M, 50), had(X, 60, promised=11), had(Y, 90, Standing.NEW)))
    assert action == Create(
        Record(uid="new", group="orders", epoch=12, holder=X, in_sync=(X,), copies=3)
    )


def test_a_store_that_lost_something_may_have_been_the_last_copy():
    stores = (had(M, 50), had(X, 60), had(Y, 90, Standing.SUSPECT))
    action = only(restore(*stores))
    assert action.reason is Blocked.SUSPECT_COPY
    assert "brokers [2]" in action.text
    assert only(restore(*stores, accept_loss=True)).record.holder == Y


def test_a_store_that_left_the_set_long_ago_does_not_win_over_those_that_lost_little():
    stores = (
        had(M, 100),
        had(X, 900, Standing.SUSPECT, last_in_sync=(X, Y)),
        had(Y, 800, Standing.SUSPECT, last_in_sync=(X, Y)),
    )
    later = [msgspec.structs.replace(one, last_log_epoch=7) for one in stores[1:]]
    assert only(restore(stores[0], *later)).reason is Blocked.SUSPECT_COPY
    assert only(restore(stores[0], *later, accept_loss=True)).record.holder == X


def test_a_group_without_epochs_is_new_and_keeps_the_store_with_data():
    action = only(restore(fenced(M), fenced(X, max_offset=500), fenced(Y)))
    assert action.record.holder == X
    assert only(restore(fenced(M), fenced(X), fenced(Y))).record.holder == M


def test_a_store_in_sync_that_is_left_out_may_be_the_only_one_with_the_newest_messages():
    pair = Group(name="orders", ordinals=(0, 1))
    stores = (had(M, 50, last_in_sync=(M, Y)), had(X, 60, last_in_sync=(M, X)))
    for statuses in [stores, (master(last_in_sync=(Y,)), stores[1])]:
        action = only(
            missing_record.restore(pair, statuses, 9, "new")
        )  # no order fences the master for this reason
        assert action.reason is Blocked.COPY_LEFT_OUT
        assert "brokers [2], which were in sync" in action.text
    action = only(missing_record.restore(pair, stores, 9, "new", accept_loss=True))
    assert action.record.holder == X
    assert only(restore(*stores, had(Y, 90))).record.holder == Y


def test_a_group_whose_only_master_is_left_out_does_not_count_as_new():
    pair = Group(name="orders", ordinals=(1, 2))
    never_in_sync = [fenced(copy, last_in_sync=(M,)) for copy in (X, Y)]
    action = only(missing_record.restore(pair, tuple(never_in_sync), 9, "new"))
    assert action.reason is Blocked.COPY_LEFT_OUT


def test_a_store_in_sync_that_was_replaced_by_an_empty_one_counts_as_left_out():
    empty = fenced(Copy(0, "m2"))
    stores = (empty, had(X, 60, last_in_sync=(M, X)), had(Y, 50, last_in_sync=(M, X)))
    action = only(restore(*stores))
    assert action.reason is Blocked.COPY_LEFT_OUT
    assert "brokers [0] were in sync with other stores" in action.text
    assert only(restore(*stores, accept_loss=True)).record.holder == X
    joined = msgspec.structs.replace(empty, standing=Standing.PROVEN, last_log_epoch=4)
    assert only(restore(joined, *stores[1:])).record.holder == X  # X had everything when it joined


def test_without_a_proven_store_a_person_decides():
    stores = (had(M, 50, Standing.NEW), had(X, 60, Standing.NEW), fenced(Y))
    assert only(restore(*stores)).reason is Blocked.NO_PROVEN_COPY
    assert only(restore(*stores, accept_loss=True)).record.holder == X


def emptied(copy, **changes):
    """Report a new, empty store of a broker that was in sync with another one."""
    return fenced(Copy(copy.ordinal, f"{copy.incarnation}2"), **changes)


def test_a_backup_beside_empty_stores_is_chosen_if_it_has_lost_its_place_in_the_group():
    backup = fenced(Copy(0, "m2"), max_offset=50)
    assert only(restore(backup, emptied(X), emptied(Y))).record.holder == backup.copy


def test_a_backup_that_kept_its_place_in_the_group_needs_a_person():
    kept = had(M, 50, last_in_sync=(M, X, Y))
    assert only(restore(kept, emptied(X), emptied(Y))).reason is Blocked.COPY_LEFT_OUT
    moved = had(Copy(0, "m2"), 50, Standing.SUSPECT, last_in_sync=(M,))
    assert only(restore(moved, emptied(X), emptied(Y))).reason is Blocked.SUSPECT_COPY


def test_a_person_may_accept_each_reason_of_the_stores():
    missing = (fenced(M), fenced(X))
    assert only(restore(*missing, accept_loss=True)).reason is Blocked.MEMBERS_MISSING
    assert Blocked.MEMBERS_MISSING not in missing_record.ACCEPTABLE
    for stores in [
        (had(M, 50), had(X, 60), had(Y, 90, Standing.SUSPECT)),
        (had(M, 50, Standing.NEW), had(X, 60, Standing.NEW), fenced(Y)),
        (fenced(Copy(0, "m2")), had(X, 60, last_in_sync=(M, X)), had(Y, 50)),
    ]:
        action = only(restore(*stores))
        assert action.reason in missing_record.ACCEPTABLE
        assert action.text.endswith(missing_record.ACCEPTANCE)  # the caller adds the command


def test_after_a_crash_of_all_hosts_a_person_decides():
    crashed = [
        had(Copy(copy.ordinal, "new"), 50 + copy.ordinal, Standing.SUSPECT, last_in_sync=(M, X, Y))
        for copy in (M, X, Y)
    ]
    assert only(restore(*crashed)).reason is Blocked.SUSPECT_COPY
    assert only(restore(*crashed, accept_loss=True)).record.holder == Copy(2, "new")


def test_empty_stores_that_have_seen_a_record_do_not_start_an_empty_group():
    empty = [emptied(copy, last_in_sync=(M, X, Y)) for copy in (M, X, Y)]
    assert only(restore(*empty)).reason is Blocked.COPY_LEFT_OUT
