# SPDX-License-Identifier: Apache-2.0
"""Which changes in a group are reported as Events, and which of them as warnings."""

from typing import Any, cast

import msgspec
import pytest

from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.broker_groups.decide import Nothing, Reason, Restart, Wait
from cometmq.operator.broker_groups.events import PATIENCE_MS, Reporter
from cometmq.operator.broker_groups.seen import Seen
from cometmq.operator.broker_groups.status import Findings, status_of
from cometmq.testing.operator.states import READY, STALE, group, seen
from cometmq.testing.runtime.clock import FakeClock

NOW = "2026-01-01T00:00:00Z"
LAGS = Wait(Reason.STATEFUL_SET_LAGS, "the StatefulSet's controller has yet to act")
PATIENCE = PATIENCE_MS[Reason.STATEFUL_SET_LAGS]
GROUP = group()


class Operator:
    """Makes passes over one group; the group's status survives restarts of the operator."""

    def __init__(self):
        self.events = []
        self.clock = FakeClock()
        self.status = GroupStatus()
        self.restart()

    def restart(self):
        self.reporter = Reporter(self.clock.monotonic_ms, self.report)

    def report(self, reason, text, *, is_warning=False):
        self.events.append(("Warning" if is_warning else "Normal", reason, text))

    async def look(self, state, step=None):
        """Run one pass; return the Events that it wrote."""
        found = Findings(seen=state, step=step or Nothing())
        self.reporter.note(GROUP, found, self.status)
        self.status = status_of(GROUP, found, self.status, NOW)
        events, self.events = self.events, []
        return events


@pytest.fixture
def operator():
    return Operator()


def of_epoch(epoch, master=0):
    state = seen(READY, READY, master=master)
    record: Any = msgspec.structs.replace(cast("Any", state.record), epoch=epoch)
    statuses = tuple(
        msgspec.structs.replace(one, epoch=epoch, promised=epoch) for one in state.statuses
    )
    return msgspec.structs.replace(state, record=record, statuses=statuses)


def elected(epoch, master=0):
    """Return a state whose record names a master that is not open yet."""
    return msgspec.structs.replace(of_epoch(epoch, master), statuses=())


def changed(pod, epoch):
    return [("Normal", "MasterChanged", f"{pod} is the master of epoch {epoch}")]


async def test_every_master_is_reported_from_the_first_on(operator):
    assert await operator.look(Seen()) == []
    assert await operator.look(elected(2)) == []
    assert await operator.look(of_epoch(2)) == changed("orders-0", 2)
    assert await operator.look(of_epoch(2)) == []
    assert await operator.look(elected(3, master=1)) == []
    assert await operator.look(of_epoch(3, master=1)) == changed("orders-1", 3)


async def test_a_master_that_is_open_in_the_first_pass_is_reported(operator):
    assert await operator.look(of_epoch(2)) == changed("orders-0", 2)


async def test_a_restarted_operator_reports_only_masters_that_the_status_lacks(operator):
    await operator.look(of_epoch(2))
    operator.restart()
    assert await operator.look(of_epoch(2)) == []
    operator.restart()
    assert await operator.look(of_epoch(3, master=1)) == changed("orders-1", 3)


async def test_a_master_that_is_unreachable_for_a_while_is_reported_once(operator):
    await operator.look(of_epoch(2))
    assert await operator.look(elected(2)) == []
    assert await operator.look(of_epoch(2)) == []


async def test_a_change_begins_without_a_warning(operator):
    state = seen(READY, STALE)
    await operator.look(state)
    assert await operator.look(state, LAGS) == []
    operator.clock.advance(PATIENCE - 1)
    assert await operator.look(state, LAGS) == []
    restarts = [("Normal", "RollingUpdate", "orders-1 restarts")]
    assert await operator.look(state, Restart(1)) == restarts
    done = [("Normal", "ChangeDone", "no change is under way any more")]
    assert await operator.look(state) == done


async def test_a_controller_that_lags_for_long_is_a_warning(operator):
    state = seen(READY, STALE)
    await operator.look(state)
    warnings = []
    for _ in range(10):
        warnings += await operator.look(state, LAGS)
        operator.clock.advance(PATIENCE // 5)
    assert warnings == [("Warning", "StatefulSetLags", LAGS.text)]


async def test_the_patience_begins_anew_with_each_change(operator):
    state = seen(READY, STALE)
    await operator.look(state)
    for _ in range(3):
        assert await operator.look(state, LAGS) == []
        assert await operator.look(state) == []
        operator.clock.advance(PATIENCE)


async def test_a_rolling_update_has_no_warning(operator):
    """The reasons alternate while a pod restarts, and each step starts a new wait."""
    state = seen(READY, STALE)
    await operator.look(state)
    for pod in (1, 0):
        restarts = [("Normal", "RollingUpdate", f"orders-{pod} restarts")]
        assert await operator.look(state, Restart(pod)) == restarts
        for reason in (Reason.POD_MISSING, Reason.ROLL_BLOCKED, Reason.TOO_FEW_IN_SYNC):
            assert await operator.look(state, Wait(reason, "not yet")) == []
            operator.clock.advance(PATIENCE_MS[Reason.ROLL_BLOCKED] // 4)


async def test_a_wait_that_alternates_between_reasons_becomes_a_warning(operator):
    """A pod in a crash loop alternates between missing and not ready."""
    state = seen(READY, STALE)
    await operator.look(state)
    reasons, warnings = (Reason.POD_MISSING, Reason.ROLL_BLOCKED), []
    for turn in range(12):
        warnings += await operator.look(state, Wait(reasons[turn % 2], "orders-1"))
        operator.clock.advance(PATIENCE_MS[Reason.ROLL_BLOCKED] // 6)
    assert ("Warning", "RollBlocked", "orders-1") in warnings


async def test_waits_for_people_are_reported_at_once(operator):
    state = seen(READY, STALE)
    await operator.look(state)
    waits = Wait(Reason.BACKLOG, "7 messages are not consumed yet")
    assert await operator.look(state, waits) == [("Warning", "Backlog", waits.text)]
