# SPDX-License-Identifier: Apache-2.0
from functools import partial

import pytest

from cometmq.ha import fencing, in_sync
from cometmq.ha.fencing import NEVER, Progress, Timing
from cometmq.ha.in_sync import Ack
from cometmq.ha.port import UNKNOWN
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.remoting.errors import SettingsError

M, X, Y = Copy(0, "m"), Copy(1, "x"), Copy(2, "y")
TIMING = Timing()


def leading(*members):
    record = Record(uid="u", group="g", epoch=1, holder=M, in_sync=members, copies=3)
    return in_sync.lead(M, Versioned(record, "1"), start=0)


@pytest.mark.parametrize(
    ("members", "heard", "until"),
    [
        ((M,), {}, 6_000),
        ((M, X), {}, 6_000),
        ((M, X), {X: 3_000}, 6_000),
        ((M, X), {X: 90_000}, 91_500),
        ((M, X, Y), {X: 90_000}, 6_000),
        ((M, X, Y), {X: 90_000, Y: 80_000}, 81_500),
    ],
)
def test_a_master_stops_without_renewal_unless_all_its_copies_answer(members, heard, until):
    leadership = leading(*members)
    is_lapsed = partial(fencing.is_lapsed, leadership, renewed_ms=0, heard=heard, timing=TIMING)
    found = fencing.valid_until_ms(leadership, renewed_ms=0, heard=heard, timing=TIMING)
    assert found == until
    assert not is_lapsed(until - 1)
    assert is_lapsed(until)


def test_a_master_that_may_be_alone_needs_its_lease():
    leadership = leading(M, X)
    record = in_sync.proposal(leadership, {X})
    assert record
    leadership = in_sync.written(leadership, record)
    leadership = in_sync.answered(leadership, UNKNOWN)
    assert fencing.heard_by_all_ms(leadership, {X: 90_000}) == NEVER


def unlogged(now_ms, members=(M, X), heard=None, is_predecessor_gone=False):
    return fencing.may_answer_unlogged(
        leading(*members),
        now_ms,
        heard=heard or {},
        opened_ms=10_000,
        timing=TIMING,
        is_predecessor_gone=is_predecessor_gone,
    )


def test_locks_are_answered_while_every_copy_is_heard_of():
    assert unlogged(20_000, heard={X: 19_000})
    assert not unlogged(20_000, heard={X: 18_500})
    assert not unlogged(20_000)
    assert unlogged(20_000, members=(M,))


def test_locks_wait_for_the_end_of_the_predecessors_permission():
    assert not unlogged(11_649, heard={X: 11_600})
    assert unlogged(11_650, heard={X: 11_600})
    assert unlogged(10_001, heard={X: 10_000}, is_predecessor_gone=True)


def test_a_copy_had_caught_up_at_the_time_whose_end_it_has_reached():
    progress = fencing.progressed(None, Ack(X, 1, 0), end=100, now_ms=1_000)
    assert progress == Progress(1_000, 100, 1_000)
    progress = fencing.progressed(progress, Ack(X, 1, 60), end=150, now_ms=2_000)
    assert progress.caught_up_ms == 1_000
    progress = fencing.progressed(progress, Ack(X, 1, 120), end=200, now_ms=3_000)
    assert progress == Progress(1_000, 200, 3_000)
    progress = fencing.progressed(progress, Ack(X, 1, 200), end=300, now_ms=4_000)
    assert progress == Progress(3_000, 300, 4_000)
    assert fencing.progressed(progress, Ack(X, 1, 300), end=300, now_ms=5_000).caught_up_ms == 5_000


def test_members_that_stay_behind_are_laggards():
    level = {X: Progress(15_000, 0, 0)}
    laggards = partial(fencing.laggards, leading(M, X, Y), level, opened_ms=10_000, timing=TIMING)
    assert laggards(20_000) == set()
    assert laggards(20_001) == {Y}
    assert laggards(25_001) == {X, Y}


def test_a_lease_outlasts_the_deadline_on_a_slower_clock():
    with pytest.raises(SettingsError, match=r"it needs 1\.3 times as much"):
        Timing(renew_deadline_ms=6_000, lease_duration_ms=7_000)


@pytest.mark.parametrize("deadline_ms", [1, 10, 5_999, 6_000])
def test_a_lease_is_as_short_as_is_safe(deadline_ms):
    timing = Timing.renewed_within(deadline_ms, heard_within_ms=700)
    assert 1.3 * deadline_ms <= timing.lease_duration_ms <= 1.3 * deadline_ms + 1
    assert (timing.renew_deadline_ms, timing.heard_within_ms) == (deadline_ms, 700)
