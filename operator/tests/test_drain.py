# SPDX-License-Identifier: Apache-2.0
"""A group that is being deleted becomes read-only."""

from unittest.mock import Mock

import pytest

from cometmq.control.client import MemberClient
from cometmq.operator.api_types.broker_group import Spec
from cometmq.operator.broker_groups.drain import Drain
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.testing.ha.memory import MemoryPlace

GROUP = BrokerGroup(
    namespace="mq", name="orders", uid="u", generation=1, spec=Spec(name_servers=["127.0.0.1:1"])
)


async def test_every_broker_is_asked_to_refuse_sends_although_one_does_not_answer(monkeypatch):
    """The master may be the last one, and producers go on there."""
    asked = []

    async def update_config(self, settings):
        assert settings == {"brokerPermission": "4"}
        asked.append(self.target.ordinal)
        if self.target.ordinal != 1:
            raise RequestTimeout("no answer")

    monkeypatch.setattr(MemberClient, "update_config", update_config)
    elector = GroupElector(MemoryPlace().port(), clock=SystemClock(), log=NO_LOG)
    with pytest.raises(RequestTimeout):
        await Drain(Mock(), elector).refuse_sends(GROUP, range(3))
    assert asked == [0, 1, 2]
