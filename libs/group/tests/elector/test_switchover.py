# SPDX-License-Identifier: Apache-2.0
"""Switchovers by an administrator, with members in memory that answer late or not at all."""

from typing import Any

import pytest

from cometmq.control.controlled import MemberUnreachable
from cometmq.elector import switchover
from cometmq.elector.open_group import GroupFailed, OpenGroup
from cometmq.elector.plan import plan_of
from cometmq.elector.settings import ElectorSettings
from cometmq.elector.switchover import carry_out, plan_switchover
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import HandOver, Promote
from cometmq.ha.role import Role

from .conftest import GROUP, FakeLink, started


class LossyLink(FakeLink):
    """Loses the answer to an order to hand over, which `obey` carries out, wholly or not at all."""

    obey = None

    async def order(self, order):
        if self.obey is not None:
            await self.obey(order.successor)
        raise MemberUnreachable("no answer in time")


@pytest.fixture
async def group(trio):
    """Build what an administrator sees of a group whose master is broker 0."""
    await started(trio)
    settings = ElectorSettings(
        broker_name=GROUP, control_members="0=127.0.0.1:1;1=127.0.0.1:2;2=127.0.0.1:3"
    )
    links: Any = {n: LossyLink(member) for n, member in enumerate(trio.members)}
    return OpenGroup(plan_of(settings), trio.place.port(), links, "memory")


def becoming_master(trio, ordinal):
    """Return a handover to this broker, whatever the order names."""

    async def obey(_successor):
        await trio.members[0].obey(HandOver(ordinal))
        await trio.members[ordinal].obey(Promote(trio.record.epoch))

    return obey


async def test_a_switchover_whose_answer_is_lost_has_taken_place(trio, group):
    group.clients[0].obey = becoming_master(trio, 1)
    plan = await plan_switchover(group, 1)
    after, _ = await carry_out(group, plan)
    assert (after.holder, after.epoch) == (trio.copy(1), plan.record.epoch + 1)


async def test_a_switchover_that_never_arrives_fails_and_says_that_the_answer_is_missing(
    group, monkeypatch
):
    monkeypatch.setattr(switchover, "TIMEOUT_MS", 50)
    plan = await plan_switchover(group, 1)
    with pytest.raises(GroupFailed, match=r"not answered \(no answer in time\), and the next"):
        await carry_out(group, plan)


async def test_a_refused_switchover_fails_at_once(trio, group):
    trio.members[0].refusal = OrderRefused(OrderRefusal.NOT_IN_SYNC, "it lags")
    group.clients[0] = FakeLink(trio.members[0])
    plan = await plan_switchover(group, 1)
    with pytest.raises(GroupFailed, match="broker 0 did not hand over: it lags"):
        await carry_out(group, plan)


@pytest.mark.parametrize("elected", [0, 2])
async def test_the_election_of_another_broker_is_no_switchover(trio, group, elected):
    async def obey(successor):
        await becoming_master(trio, successor)(successor)
        found, epoch = trio.found, trio.record.epoch + 1
        trio.place.replace(found, found.record.elected(trio.copy(elected), epoch))
        trio.members[successor].becomes(role=Role.SLAVE)
        await trio.members[elected].obey(Promote(epoch))

    group.clients[0].obey = obey
    plan = await plan_switchover(group, 1)
    with pytest.raises(GroupFailed, match=f"broker {elected} was elected in epoch .* of broker 1"):
        await carry_out(group, plan)


async def test_a_silent_master_is_named_with_what_its_connection_says(trio, group):
    trio.members[0].is_silent = True
    text = rf"broker 0, the master of epoch {trio.record.epoch}, is silent \(.+\); see cometmq ha"
    with pytest.raises(GroupFailed, match=text):
        await plan_switchover(group, 1)


async def test_a_member_that_answers_again_has_no_fault(trio, group):
    trio.members[1].is_silent = True
    await group.ask()
    assert list(group.faults) == [1]
    trio.members[1].is_silent = False
    assert (await group.report_of(1)).status.copy == trio.copy(1)
    assert not group.faults


async def test_a_member_that_falls_silent_has_no_answer(trio, group):
    await group.ask()
    trio.members[0].is_silent = True
    with pytest.raises(GroupFailed, match="0 does not answer"):
        await group.report_of(0)
    assert not group.has_master(trio.record)
