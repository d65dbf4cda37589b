# SPDX-License-Identifier: Apache-2.0
"""Decide when the changed content of a watched file may be used."""

from typing import Generic, TypeVar

ContentT = TypeVar("ContentT")


class Settled(Generic[ContentT]):
    """The content of files that is in use, and what the last look found instead.

    Changed content may be used once two looks in a row find it: the first may have read a file that
    was half-written, or one of two files that are replaced one after the other.
    """

    __slots__ = ("_found", "used")

    def __init__(self, used: ContentT) -> None:
        self.used = used
        self._found = used

    def take(self, found: ContentT) -> bool:
        """Note what a look has found; return whether that has now replaced `used`."""
        has_settled = found == self._found
        self._found = found
        if found == self.used or not has_settled:
            return False
        self.used = found
        return True
