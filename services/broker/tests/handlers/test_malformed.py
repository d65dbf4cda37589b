# SPDX-License-Identifier: Apache-2.0
"""A malformed request is refused: it is the fault of the peer, not of the broker."""

from random import Random

import pytest

from cometmq.broker.handlers import HANDLERS
from cometmq.remoting.codes import request_name
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.remoting.malformed import NAME, malformed


@pytest.mark.parametrize("code", HANDLERS, ids=request_name)
async def test_no_malformed_request_makes_a_handler_fail(code: int) -> None:
    log = RecordingLog()
    scripted = ScriptedBroker(log=log, brokerIP1="10.1.2.3", enablePropertyFilter="true")
    scripted.broker.tables.topics.create(NAME, queue_nums=4)
    for request in malformed(code, Random(code)):
        connected = scripted.connect()
        connected.peer.data_received(request)
        await scripted.settle()
        connected.peer.connection_lost(None)
    assert not log.errors
    assert not scripted.hub.stats.handler_failures
