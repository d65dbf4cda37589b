# SPDX-License-Identifier: Apache-2.0
"""Comparisons of the lanes with the handlers do not depend on time."""

import math
from collections.abc import Iterator

import pytest

from cometmq.broker.storing import store_reads
from cometmq.remoting.transport import dispatch
from cometmq.remoting.transport.flow import room, starts, turns


@pytest.fixture(autouse=True, scope="module")
def _endless_turns() -> Iterator[None]:
    """Let no turn end by time, and no handler start later because turns are long: the compared
    programs would stop at different requests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "SLICE_S", math.inf)
        patch.setattr(store_reads, "TURN_S_MAX", math.inf)
        patch.setattr(room, "_TURN_S", math.inf)
        patch.setattr(starts, "_SHORT_S", math.inf)
        patch.setattr(starts, "_LONG_S", math.inf)
        for name in ("SLICE_S", "SLOW_S", "_TURN_S", "_LONG_S"):
            patch.setattr(turns, name, math.inf)
        yield
