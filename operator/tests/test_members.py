# SPDX-License-Identifier: Apache-2.0
"""The operator starts the elector of a group with settings that no file or variable gives, and
stops it.
"""

from cometmq.ha.places.memory import MemoryPlace
from cometmq.ha.record import Copy
from cometmq.operator.api_types.broker_group import Spec
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.members import Members
from cometmq.operator.broker_groups.orders import AcceptLoss
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock

GROUP = BrokerGroup(
    namespace="mq", name="orders", uid="u", generation=1, spec=Spec(name_servers=["127.0.0.1:1"])
)


async def test_an_elector_starts_for_a_group():
    port = MemoryPlace().port()
    members = Members(port, clock=SystemClock(), log=NO_LOG)
    await members.look_after(GROUP, range(2), frozenset(), {})
    try:
        assert members.elector is not None
        assert members.elector.members.keys() == {0, 1}
        assert members.asked == (0, 1)
    finally:
        await members.close()
    assert len(members.asked) == 0
    assert port.is_closed


async def test_an_accepted_loss_ends_with_the_elector():
    """The next elector may have other brokers, or run in another operator."""
    order = AcceptLoss(epoch=4, record=None, copies=frozenset({Copy(0, "a"), Copy(1, "b")}))
    members = Members(MemoryPlace().port(), clock=SystemClock(), log=NO_LOG)
    members.accept_loss(order)
    assert not members.is_accepting_loss
    await members.look_after(GROUP, range(2), frozenset(), {})
    try:
        members.accept_loss(order)
        assert members.is_accepting_loss
        await members.look_after(GROUP, range(2), frozenset(), {})
        assert members.is_accepting_loss  # the same elector
        await members.look_after(GROUP, range(3), frozenset(), {})
        assert not members.is_accepting_loss
    finally:
        await members.close()
