# SPDX-License-Identifier: Apache-2.0
"""Tables that map a spec and a state to the next step."""

from typing import Any

import pytest

from cometmq.ha.actions import Tell
from cometmq.ha.orders import HandOver
from cometmq.operator.broker_groups import decide
from cometmq.operator.broker_groups.decide import Nothing, Reason, Release, Restart, Wait
from cometmq.operator.broker_groups.seen import Backlog, Seen
from cometmq.testing.operator.states import (
    DOWN,
    DOWN_STALE,
    ENDING,
    READY,
    STALE,
    deleting,
    group,
    seen,
)

ROLLS: dict[str, Any] = {
    "all current": ({}, seen(READY, READY, READY), Nothing()),
    "no pods": ({}, Seen(), Nothing()),
    "the highest slave first": ({}, seen(STALE, STALE, STALE), Restart(2)),
    "then the next slave": ({}, seen(STALE, STALE, READY), Restart(1)),
    "a switchover before the master": ({}, seen(STALE, READY, READY), Tell(0, HandOver(1))),
    "the old master after it": ({}, seen(STALE, READY, READY, master=1), Restart(0)),
    "the master has a high ordinal": ({}, seen(STALE, STALE, STALE, master=2), Restart(1)),
    "a single broker": ({"replicas": 1}, seen(STALE), Restart(0)),
    "on delete": ({"updateStrategy": {"type": "OnDelete"}}, seen(STALE, STALE), Nothing()),
    "the controller lags": ({}, seen(STALE, READY, is_settled=False), Reason.STATEFUL_SET_LAGS),
    "a pod is missing": ({}, seen(STALE, STALE, None), Reason.POD_MISSING),
    "a pod ends": ({}, seen(STALE, STALE, ENDING), Reason.POD_MISSING),
    "missing, nothing to roll": ({}, seen(READY, None), Nothing()),
    "a new pod is broken": ({}, seen(STALE, STALE, DOWN, out=(2,)), Reason.ROLL_BLOCKED),
    "a new pod is not in sync": ({}, seen(STALE, STALE, READY, out=(2,)), Reason.ROLL_BLOCKED),
    "the broken pod itself is replaced": (
        {}, seen(STALE, STALE, DOWN_STALE, out=(2,)), Restart(2),
    ),
    "a broken pod that is in sync counts": ({}, seen(STALE, DOWN_STALE), Restart(1)),
    "all other copies are needed": (
        {"replicas": 3, "replication": {"minInSync": 2}}, seen(STALE, STALE, STALE), Restart(2),
    ),
    "as many as the group": ({"replication": {"minInSync": 2}}, seen(STALE, STALE), Restart(1)),
    "never a record, nothing ready": (
        {}, seen(DOWN_STALE, DOWN, record=None, may_have_data=False), Restart(0),
    ),
    "no record, nothing ready": ({}, seen(DOWN_STALE, DOWN, record=None), Reason.NO_RECORD),
    "no record, one broken pod": ({"replicas": 1}, seen(DOWN_STALE, record=None), Restart(0)),
    "no record, a ready pod": ({}, seen(STALE, READY, record=None), Reason.NO_RECORD),
    "a pod leaves": ({"replicas": 2}, seen(STALE, STALE, STALE), Reason.MEMBER_LEAVES),
    "the master is not open": (
        {}, seen(STALE, READY, READY, statuses=()), Reason.NO_SUCCESSOR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROLLS)
def test_rolling_updates(case):
    spec, state, wanted = ROLLS[case]
    step = decide.next_step(group(**{"replicas": state.replicas or 2, **spec}), state)
    assert (step.reason if isinstance(step, Wait) else step) == wanted


def test_a_rolling_update_ends_with_each_pod_restarted_once_and_the_master_last():
    pods, master, restarts = [STALE, STALE, STALE], 2, []
    for _ in range(10):
        step = decide.next_step(group(replicas=3), seen(*pods, master=master))
        match step:
            case Restart(ordinal=ordinal):
                restarts.append(ordinal)
                pods[ordinal] = READY
            case Tell(order=HandOver(successor=target)):
                assert restarts == [1, 0]
                master = target
            case _:
                break
    assert restarts == [1, 0, 2]


SCALES = {
    "created": (3, Seen(), 3),
    "out": (3, seen(READY, READY), 3),
    "out without a master": (3, seen(READY, READY, record=None), 3),
    "in, still in sync": (2, seen(READY, READY, READY), 3),
    "in, out of the set": (2, seen(READY, READY, READY, out=(2,)), 2),
    "in, one of two is out": (1, seen(READY, READY, READY, out=(2,)), 3),
    "in, state unknown": (1, seen(READY, READY, record=None), 2),
}


@pytest.mark.parametrize("case", SCALES)
def test_replicas(case):
    wanted, state, expected = SCALES[case]
    assert decide.replicas(group(replicas=wanted), state) == expected


def test_pods_that_have_to_go_leave_unless_the_group_is_deleted():
    state = seen(READY, READY, READY, READY)
    assert group(replicas=2).leaving(4, state.pods) == {2, 3}
    assert deleting(group(replicas=2)).leaving(4, state.pods) == frozenset()
    assert decide.replicas(deleting(group(replicas=2)), state) == 4


def test_a_pod_that_is_still_stopping_stays_out_of_the_set():
    state = seen(READY, READY, ENDING, replicas=2, out=(2,))
    assert group(replicas=2).leaving(2, state.pods) == {2}
    assert decide.replicas(group(replicas=2), state) == 2


ENDINGS = {
    "nothing left": ({}, {}, seen(READY, backlog=Backlog({}), is_quiet=True), Release()),
    "sends go on": ({}, {}, seen(READY, backlog=Backlog({})), Reason.SENDS_GO_ON),
    "a backlog": ({}, {}, seen(READY, backlog=Backlog({"billing": 7})), Reason.BACKLOG),
    "unknown": ({}, {}, seen(READY), Reason.BACKLOG_UNKNOWN),
    "at once": ({"deletion": "Now"}, {}, seen(READY), Release()),
    "never had data": ({}, {}, Seen(), Release()),
    "never had a master": ({}, {}, seen(READY, record=None, may_have_data=False), Release()),
    "record unknown": ({}, {}, seen(READY, record=None), Reason.BACKLOG_UNKNOWN),
    "skipped": ({}, {"cometmq.io/skip-drain": "true"}, seen(READY), Release()),
    "not skipped": ({}, {"cometmq.io/skip-drain": "no"}, seen(READY), Reason.BACKLOG_UNKNOWN),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_endings(case):
    spec, annotations, state, wanted = ENDINGS[case]
    found = decide.ending(deleting(group(**spec), annotations), state)
    assert (found.reason if isinstance(found, Wait) else found) == wanted


def test_a_deletion_that_waits_says_for_whom_and_how_to_go_on():
    backlog = Backlog({"a": 1, "b": 30, "c": 2, "d": 2})
    wait = decide.ending(deleting(group()), seen(READY, READY, backlog=backlog))
    assert isinstance(wait, Wait)
    assert wait.text == (
        "35 messages are not consumed yet, by b (30), c (2), d (2); annotate the group with"
        " cometmq.io/skip-drain=true to delete it nevertheless"
    )


@pytest.mark.parametrize(
    ("target", "wanted"),
    [(None, Tell(0, HandOver(1))), (2, Tell(0, HandOver(2))), (0, Reason.NO_SUCCESSOR)],
)
def test_a_switchover_by_hand(target, wanted):
    found = decide.switch_over(seen(READY, READY, READY), target)
    assert (found.reason if isinstance(found, Wait) else found) == wanted


def test_a_stopping_broker_does_not_become_the_master():
    assert decide.switch_over(seen(READY, ENDING, READY), None) == Tell(0, HandOver(2))
    wait = decide.switch_over(seen(READY, ENDING, READY), 1)
    assert isinstance(wait, Wait)
    assert wait.reason is Reason.NO_SUCCESSOR


def test_a_master_has_to_be_open_in_the_epoch_of_the_record():
    state = seen(READY, READY)
    assert state.has_master
    assert not seen(READY, READY, record=None).has_master
    assert not seen(READY, READY, statuses=state.statuses[1:]).has_master
