# SPDX-License-Identifier: Apache-2.0
"""The object to which the parts of a connection refer once the connection has ended.

A connection and its parts refer to each other. If that remained so, each ended connection would
wait for a full garbage collection, which visits everything that a program keeps and holds its loop
meanwhile. Without the references, a connection is freed as soon as no other object uses it.

Late calls to a part find a closed connection: those of a queue in which the connection waited, of a
thread that had its output on loan, or of a handler that answers late.
"""

from collections.abc import Callable
from typing import Any, Final


class _Ended:
    """A closed connection, whichever it was; see `Connected` and `LaneConnected`."""

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
    tls = None

    is_served = property(lambda _: True, lambda _, __: None)
    is_dirty = property(lambda _: True, lambda _, __: None)  # it has no output to be written
    habit = property(lambda _: 0, lambda _, __: None)

    def when_room(self, work: Callable[[], None]) -> None:
        """Do nothing: the connection has ended."""

    def note_long_frame(self) -> None:
        """Do nothing: there is no frame."""

    def refuse(self, error: Exception) -> None:
        """Do nothing, because the connection has ended."""

    def close(self) -> None:
        """Do nothing, because the connection has ended."""

    def abort(self) -> None:
        """Do nothing, because the connection has ended."""


ENDED: Final[Any] = _Ended()
