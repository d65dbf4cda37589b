# SPDX-License-Identifier: Apache-2.0
"""A malformed request is refused: it is the fault of the peer, not of the name server."""

from random import Random

import pytest

from cometmq.namesrv.handlers import HANDLERS
from cometmq.remoting.codes import request_name
from cometmq.testing.remoting.malformed import failures


@pytest.mark.parametrize("code", HANDLERS, ids=request_name)
async def test_no_malformed_request_makes_a_handler_fail(code, namesrv):
    assert not await failures(HANDLERS, namesrv, code, Random(code))
