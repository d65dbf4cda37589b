# SPDX-License-Identifier: Apache-2.0
"""Comparisons of the lanes with the handlers do not depend on time."""

import math
from collections.abc import Iterator

import pytest

from cometmq.broker.storing import store_reads
from cometmq.remoting.testing.endless_turns import endless_turns


@pytest.fixture(autouse=True, scope="module")
def _endless_turns() -> Iterator[None]:
    """Let no turn end by time: the compared programs would stop at different requests."""
    with pytest.MonkeyPatch.context() as patch, endless_turns():
        patch.setattr(store_reads, "TURN_S_MAX", math.inf)
        yield
