# SPDX-License-Identifier: Apache-2.0
"""An elector's decisions, case by case; the checker shows that they are safe within its bounds."""

import msgspec
import pytest

from cometmq.ha import election, losses
from cometmq.ha.actions import Blocked, Elect, Group, Status, Tell
from cometmq.ha.losses import Loss, Watched
from cometmq.ha.orders import Follow, Promote
from cometmq.ha.record import Copy, Versioned
from cometmq.ha.role import Role
from cometmq.remoting.errors import SettingsError
from cometmq.testing.ha.samples import (
    GROUP,
    TIMING,
    X2,
    M,
    X,
    Y,
    master,
    only,
    recorded,
    slave,
)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_in_sync": 4}, "minInSync is 4, but group 'g' has 3 copies"),
        ({"min_in_sync": 0}, "minInSync is 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(SettingsError, match=words):
        Group(**{"name": "g", "ordinals": (0, 1, 2), **settings})


# ---- loss ------------------------------------------------------------------------------------


def loss(statuses, *, found=None, now_ms=0, epoch_ms=-60_000, **facts):
    found = found or recorded()
    watched = Watched(found.version, 0, found.record.epoch, epoch_ms)
    return losses.loss(found, statuses, watched, now_ms, timing=TIMING, **facts)


def test_a_master_that_answers_and_renews_is_not_lost():
    assert loss((master(), slave(X))) is None


@pytest.mark.parametrize(
    "holder",
    [
        master(epoch=3),
        slave(M),  # restarted: its epoch is burned
        msgspec.structs.replace(slave(M), role=Role.FENCED),
        msgspec.structs.replace(master(), role=Role.FAILED),
        slave(Copy(0, "other"), promised=0),
    ],
)
def test_a_holder_that_cannot_be_master_of_its_epoch_is_lost(holder):
    assert loss((holder, slave(X))) is Loss.NO_MASTER


@pytest.mark.parametrize(
    "holder",
    [
        slave(M, epoch=3),  # elected, and about to learn it
        msgspec.structs.replace(slave(M), role=Role.RECOVERING),
        msgspec.structs.replace(master(), role=Role.PROMOTING),
        msgspec.structs.replace(master(), role=Role.HANDING_OVER),
    ],
)
def test_a_holder_that_may_still_open_is_not_lost(holder):
    assert loss((holder, slave(X))) is None


def test_a_master_whose_process_ended_is_lost_at_once():
    assert loss((slave(X),), is_gone=True) is Loss.GONE


def test_elector_and_a_member_must_both_miss_the_master():
    missing = slave(X, has_lost_master=True)
    assert loss((missing, slave(Y)), unheard_ms=1_500) is Loss.REPLICATION_LOST
    assert loss((missing, slave(Y)), unheard_ms=1_499) is None
    assert loss((slave(X), slave(Y)), unheard_ms=60_000) is None
    assert loss((master(), missing), unheard_ms=0) is None


def test_a_new_master_has_time_to_be_heard_from():
    """After a switchover to a member that the elector cannot reach, no slave follows it yet."""
    late = slave(X, epoch=3)
    assert loss((late,), now_ms=1_499, epoch_ms=0, unheard_ms=60_000) is None
    assert loss((late,), now_ms=1_500, epoch_ms=0, unheard_ms=60_000) is Loss.REPLICATION_LOST


def test_a_lease_expires_unless_all_members_lost_only_the_record():
    missing = slave(X, has_lost_master=True)
    assert loss((missing,), now_ms=8_000) is Loss.LEASE_EXPIRED
    assert loss((missing,), now_ms=7_999) is None
    assert loss((missing, slave(Y)), now_ms=60_000) is None
    assert loss((), found=recorded(M), now_ms=8_000) is Loss.LEASE_EXPIRED


def test_each_new_version_of_the_record_starts_the_time_again():
    seen = losses.watched(None, recorded(), 100)
    assert seen == Watched("7", 100, 4, 100)
    assert losses.watched(seen, recorded(), 900) == seen
    newer = Versioned(recorded().record, "8")
    assert losses.watched(seen, newer, 900) == Watched("8", 900, 4, 100)
    elected = Versioned(recorded(epoch=5).record, "9")
    assert losses.watched(seen, elected, 950) == Watched("9", 950, 5, 950)


# ---- election --------------------------------------------------------------------------------


def test_the_member_with_the_longest_log_of_the_last_epoch_wins():
    found = recorded()
    for statuses, winner in [
        ((slave(X, max_offset=9), slave(Y, max_offset=8)), X),
        ((slave(X, max_offset=8), slave(Y, max_offset=9)), Y),
        ((slave(X, last_log_epoch=3, max_offset=99), slave(Y, max_offset=9)), Y),
        ((slave(X), slave(Y)), X),
    ]:
        action = only(election.elect(found, statuses))
        assert action == Elect(found, found.record.elected(winner, 5))
        assert action.record.in_sync == found.record.in_sync
        assert action.record.deposed == M


def test_a_restarted_holder_is_a_candidate_like_others():
    action = only(election.elect(recorded(M), (slave(M),)))
    assert (action.record.holder, action.record.epoch, action.record.deposed) == (M, 5, None)


@pytest.mark.parametrize("role", [Role.FENCED, Role.SLAVE])  # a slave after a restart
def test_a_fenced_holder_wins_only_alone(role):
    found = recorded(M, X)
    stopped = Status(copy=M, role=role, promised=5, last_log_epoch=4, max_offset=99)
    for statuses, removing, winner in [
        ((stopped, slave(X)), (), X),
        ((stopped, slave(X)), {1}, X),
        ((stopped,), (), M),
        ((stopped, slave(Y)), (), M),  # Y is not in the set
        ((stopped, msgspec.structs.replace(slave(X), role=Role.RECOVERING)), (), M),
    ]:
        action = only(election.elect(found, statuses, removing=removing))
        assert (action.record.holder, action.record.epoch) == (winner, 6)


def test_a_holder_that_fenced_itself_is_a_candidate_like_others():
    stopped = msgspec.structs.replace(slave(M), role=Role.FENCED)
    assert only(election.elect(recorded(), (stopped, slave(X)))).record.holder == M


def test_the_new_epoch_is_above_every_promise_of_a_candidate():
    assert only(election.elect(recorded(), (slave(X, promised=8),))).record.epoch == 9


@pytest.mark.parametrize(
    "statuses",
    [
        (),
        (slave(X2),),
        (msgspec.structs.replace(slave(X), role=Role.RECOVERING),),
        (msgspec.structs.replace(slave(X), role=Role.FAILED),),
        (master(epoch=3),),
    ],
)
def test_without_a_member_of_the_set_there_is_no_election(statuses):
    action = only(election.elect(recorded(M, X), statuses))
    assert action.reason is Blocked.NO_CANDIDATE
    assert "brokers 0, 1" in action.text


def test_a_member_that_is_being_removed_wins_only_alone():
    found = recorded()
    statuses = (slave(X, max_offset=9), slave(Y))
    assert only(election.elect(found, statuses, removing={1})).record.holder == Y
    assert only(election.elect(found, statuses[:1], removing={1})).record.holder == X


def test_a_lost_master_is_replaced_and_others_complete():
    found = recorded()
    statuses = (slave(X),)
    lost = election.decide(GROUP, found, statuses, is_master_lost=True)
    assert isinstance(only(lost), Elect)
    assert election.decide(GROUP, found, statuses, is_master_lost=False) == ()


# ---- completion ------------------------------------------------------------------------------


def test_the_recorded_holder_is_told_and_then_the_others():
    found = recorded(epoch=5)
    statuses = (slave(M), slave(X), slave(Y))
    assert election.complete(found.record, statuses) == (Tell(0, Promote(5)),)
    statuses = (master(epoch=5), slave(X), slave(Y, epoch=5))
    assert election.complete(found.record, statuses) == (Tell(1, Follow(5, 0)),)


@pytest.mark.parametrize(
    "other",
    [
        slave(X, promised=6),
        msgspec.structs.replace(slave(X), role=Role.RECOVERING),
        msgspec.structs.replace(slave(X), role=Role.FAILED),
    ],
)
def test_members_that_cannot_follow_are_not_ordered_to(other):
    assert election.complete(recorded(epoch=5).record, (master(epoch=5), other)) == ()


@pytest.mark.parametrize("role", [Role.SLAVE, Role.FENCED])
def test_the_epoch_rises_above_a_promise_to_an_abandoned_election(role):
    found = recorded()
    stuck = Status(copy=X, role=role, promised=6)
    action = only(election.decide(GROUP, found, (master(), stuck, slave(Y)), is_master_lost=False))
    assert action == Elect(found, found.record.elected(M, 7))
    assert action.record.in_sync == found.record.in_sync
    assert action.record.deposed is None


@pytest.mark.parametrize(
    "holder",
    [
        master(role=Role.PROMOTING),
        master(role=Role.HANDING_OVER),
        master(copy=Copy(0, "m2")),
        master(epoch=5),
        slave(X),
    ],
)
def test_the_epoch_stays_while_the_recorded_master_does_not_lead(holder):
    stuck = Status(copy=Y, role=Role.FENCED, promised=6)
    assert election.promises_beyond(recorded().record, (holder, stuck)) == 0


def test_a_former_master_is_told_to_follow():
    found = recorded(epoch=5, holder=X)
    statuses = (master(M, 4), master(X, 5))
    assert election.complete(found.record, statuses) == (Tell(0, Follow(5, 1)),)


def test_nothing_is_ordered_while_the_holder_is_unknown():
    found = recorded(epoch=5)
    assert election.complete(found.record, (slave(X),)) == ()
    assert election.complete(found.record, (slave(Copy(0, "other")),)) == ()
    promoting = msgspec.structs.replace(master(epoch=5), role=Role.PROMOTING)
    assert election.complete(found.record, (promoting, slave(X))) == ()
