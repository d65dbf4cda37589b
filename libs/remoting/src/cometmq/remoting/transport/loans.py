# SPDX-License-Identifier: Apache-2.0
"""Answers that another thread may write to sockets, before their connections write anything else.

While a connection is on loan, its `direct_fd` is `ON_LOAN`. Before the connection writes itself, or
closes its socket, it withdraws the loan.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

ON_LOAN: Final = -2

Settled: TypeAlias = tuple[int, int, Sequence[tuple[Any, bytes, int, bool]]]
"""The result of a loan:

- the number of answers that another thread has written, which no longer count as in flight
- the number of bytes that it has written
- the other answers: their connection, the bytes that it must send, their number, and whether they
  were written except for these bytes"""


class Loan(Protocol):
    """The newest answers on loan of a connection."""

    def withdraw(self) -> bytes:
        """End the loan, so that only the caller writes to the socket; return the rest of an answer
        that was written in part.
        """
