# SPDX-License-Identifier: Apache-2.0
"""The operator starts the elector of a group with settings that no file or variable gives, and
stops it.
"""

from cometmq.elector.elector import Elector
from cometmq.ha.record import Copy, Record
from cometmq.operator.api_types.broker_group import Spec
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.operator.broker_groups.user_orders import AcceptLoss
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.testing.ha.memory import MemoryPlace

GROUP = BrokerGroup(
    namespace="mq", name="orders", uid="u", generation=1, spec=Spec(name_servers=["127.0.0.1:1"])
)


async def test_an_elector_starts_for_a_group():
    port = MemoryPlace().port()
    elector = GroupElector(port, clock=SystemClock(), log=NO_LOG)
    await elector.look_after(GROUP, range(2), frozenset(), {})
    try:
        assert elector.elector is not None
        assert elector.elector.members.by_ordinal.keys() == {0, 1}
        assert elector.election.asked == (0, 1)
    finally:
        await elector.close()
    assert len(elector.election.asked) == 0
    assert port.is_closed


async def test_without_the_record_no_master_is_named(monkeypatch):
    """Another broker may have been elected since the record was read."""

    async def idle(_elector):
        """Leave the figures to the test."""

    monkeypatch.setattr(Elector, "round", idle)
    elector = GroupElector(MemoryPlace().port(), clock=SystemClock(), log=NO_LOG)
    assert elector.open_master is None
    await elector.look_after(GROUP, range(2), frozenset(), {})
    try:
        stats, holder = elector.stats, Copy(0, "a")
        assert stats is not None
        record = Record(
            uid="u", group="orders", epoch=4, holder=holder, in_sync=(holder,), copies=2
        )
        stats.record, stats.has_master, stats.is_record_reachable = record, True, True
        assert elector.open_master == record
        stats.is_record_reachable = False
        assert elector.open_master is None
    finally:
        await elector.close()


async def test_an_accepted_loss_ends_with_the_elector():
    """The next elector may have other brokers, or run in another operator."""
    order = AcceptLoss(epoch=4, record=None, copies=frozenset({Copy(0, "a"), Copy(1, "b")}))
    elector = GroupElector(MemoryPlace().port(), clock=SystemClock(), log=NO_LOG)
    elector.accept_loss(order)
    assert not elector.election.is_accepting_loss
    await elector.look_after(GROUP, range(2), frozenset(), {})
    try:
        elector.accept_loss(order)
        assert elector.election.is_accepting_loss
        await elector.look_after(GROUP, range(2), frozenset(), {})
        assert elector.election.is_accepting_loss  # the same elector
        await elector.look_after(GROUP, range(3), frozenset(), {})
        assert not elector.election.is_accepting_loss
    finally:
        await elector.close()
