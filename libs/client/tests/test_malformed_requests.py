# SPDX-License-Identifier: Apache-2.0
"""A malformed request of a broker is refused: it is not the fault of the client."""

from random import Random
from typing import Any

import pytest

from cometmq.client.cluster.broker_requests import LocalMembers
from cometmq.client.cluster.instance import CALLBACKS
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.codes import request_name
from cometmq.testing.remoting.malformed import NAME, failures


class Member:
    """A consumer and transactional producer that does what it is asked for."""

    def wake(self) -> None: ...

    async def reset_offsets(self, *_: Any, **__: Any) -> None: ...

    def consumed_offsets(self, _topic: str) -> dict[Any, int]:
        return {}

    def running_info(self, **_: Any) -> ConsumerRunningInfo:
        return ConsumerRunningInfo()

    async def consume_directly(self, *_: Any) -> ConsumeMessageDirectlyResult:
        return ConsumeMessageDirectlyResult()

    def check(self, *_: Any) -> None: ...


@pytest.mark.parametrize("code", CALLBACKS, ids=request_name)
async def test_no_malformed_request_makes_a_handler_fail(code: int) -> None:
    members, member = LocalMembers(), Member()
    names: tuple[Any, Any] = members.consumers, members.transaction_producers
    for known in names:
        known[NAME] = member
    assert not await failures(CALLBACKS, members, code, Random(code))
