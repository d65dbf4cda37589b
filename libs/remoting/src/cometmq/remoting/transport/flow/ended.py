# SPDX-License-Identifier: Apache-2.0
"""The object to which the parts of a connection refer once the connection has ended.

A connection and its parts refer to each other, so only a full garbage collection would free an
ended connection; such a collection visits all objects of a program and holds the loop meanwhile.
Without these references, a connection is freed as soon as no other object uses it.

Some objects call a part after the end: a queue in which the connection waited, a thread that writes
its answers, or a handler that answers late. They then find a closed connection.
"""

from collections.abc import Callable
from typing import Any, Final


class _Ended:
    """A closed connection that stands for all of them; see `Connected` and `LaneConnected`."""

    __slots__ = ()
    address = ""
    direct = None
    direct_bytes = 0
    direct_fd = -1
    fd = -1
    has_room = False
    is_encrypted = False
    is_limited = False
    is_open = False
    is_writable = False
    loan = None
    may_build = False
    has_small_room = False
    tls = None

    is_served = property(lambda _: True, lambda _, __: None)
    is_dirty = property(lambda _: True, lambda _, __: None)  # it has no output to be written
    habit = property(lambda _: 0, lambda _, __: None)

    def when_room(self, work: Callable[[], None]) -> None:
        """Do nothing: the connection has ended."""

    def note_long_frame(self) -> None:
        """Do nothing: the connection has ended."""

    def refuse(self, error: Exception) -> None:
        """Do nothing: the connection has ended."""

    def close(self) -> None:
        """Do nothing: the connection has ended."""

    def abort(self) -> None:
        """Do nothing: the connection has ended."""


ENDED: Final[Any] = _Ended()
