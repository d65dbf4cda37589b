# SPDX-License-Identifier: Apache-2.0
"""Turns of the loop that end after their last request, however slow the machine is."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from cometmq.remoting.transport import dispatch
from cometmq.remoting.transport.flow import room, starts, turns

_LIMITS = (
    *((turns, name) for name in ("SLICE_S", "SLOW_S", "_TURN_S", "_LONG_S", "_BUSY_S")),
    *((starts, name) for name in ("_SHORT_S", "_LONG_S")),
    (dispatch, "SLICE_S"),
    (room, "_TURN_S"),
)


@contextmanager
def endless_turns() -> Iterator[None]:
    """Remove the time limits of turns, slow requests and starting handlers.

    With these limits, the requests that a turn or a lane serves depend on the load of the machine.
    """
    patches = [mock.patch.object(module, name, math.inf) for module, name in _LIMITS]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
