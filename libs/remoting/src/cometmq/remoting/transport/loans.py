# SPDX-License-Identifier: Apache-2.0
"""Answers that another thread may write to sockets, before their connections write anything else.

While a connection is on loan, its `direct_fd` is `ON_LOAN`. Before the connection writes itself, or
closes its socket, it withdraws the loan.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

ON_LOAN: Final = -2

Settled: TypeAlias = tuple[int, int, Sequence[tuple[Any, bytes, int, bool]]]
"""The number of answers that another thread has written, and that no longer count as in flight, the
number of bytes that it has written, and the other answers: their connection, what it must send,
their number, and whether they were written except for these bytes."""


class Loan(Protocol):
    """The newest answers of a connection that another thread may write."""

    def withdraw(self) -> bytes:
        """End the loan, so that only the caller writes to the socket; return the rest of an answer
        that was written in part.
        """
