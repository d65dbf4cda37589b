# SPDX-License-Identifier: Apache-2.0
"""Turns of the loop that end after their last request, however slow the machine is."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

from cometmq.remoting.transport import dispatch
from cometmq.remoting.transport.flow import room, turns

_LIMITS = (
    *((turns, name) for name in ("SLICE_S", "SLOW_S", "_TURN_S", "_LONG_S", "_BUSY_S")),
    *((turns, name) for name in ("_SHORT_TURN_S", "_LONG_TURN_S")),
    (dispatch, "SLICE_S"),
    (room, "_TURN_S"),
)
_PAUSES: Final = (0, 0)
"""In each turn, the room looks for connections that can take answers again."""


@contextmanager
def endless_turns() -> Iterator[None]:
    """Remove the time limits of turns, slow requests and starting handlers, and the pauses of
    answers without room.

    With these, the requests that a turn or a lane serves depend on the load of the machine.
    """
    with ExitStack() as stack:
        for module, name in _LIMITS:
            stack.enter_context(mock.patch.object(module, name, math.inf))
        stack.enter_context(mock.patch.object(room, "_PAUSES_S", _PAUSES))
        yield
