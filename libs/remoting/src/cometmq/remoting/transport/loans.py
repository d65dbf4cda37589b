# SPDX-License-Identifier: Apache-2.0
"""Output that another thread may write to a socket, before the connection writes any other."""

from collections.abc import Callable
from typing import Protocol


class Lender(Protocol):
    """A connection."""

    def end_loan(self) -> None:
        """Write to the socket again."""

    def note_answered(self, count: int) -> None:
        """Note that requests were answered by another thread."""


class Loan:
    """Bytes for one socket, which belongs to the other thread until `withdraw` returns."""

    __slots__ = ("_lender", "_withdraw", "data", "fd", "sent")

    def __init__(self, lender: Lender, fd: int, data: bytes, withdraw: Callable[[], int]) -> None:
        """`withdraw` keeps the thread from writing; it returns how many bytes were written."""
        self._lender = lender
        self._withdraw = withdraw
        self.fd = fd
        self.data = data
        self.sent: int | None = None
        """How many bytes the other thread has written; None until the loan has ended."""

    def withdraw(self) -> int:
        """End the loan; return how many bytes were written."""
        self.sent = self._withdraw()
        return self.sent

    def end(self) -> bool:
        """End the loan if necessary; return whether the thread wrote the bytes.

        If the kernel took only some of them, the connection writes the others.
        """
        if self.sent is None:
            self._lender.end_loan()
        return bool(self.sent)

    def answered(self, count: int) -> None:
        """Note that the bytes have answered requests."""
        self._lender.note_answered(count)
