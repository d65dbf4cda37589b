# SPDX-License-Identifier: Apache-2.0
"""Tells what is new about a condition that every round meets again, so that it is logged once."""

from collections.abc import Collection


class News:
    """The names of the parts that fail now."""

    def __init__(self) -> None:
        self._failing: frozenset[str] = frozenset()

    def update(
        self, failing: Collection[str], *, unexamined: Collection[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return which parts have begun to fail since the last call, and which no longer do.

        A part in `unexamined` does not count as recovered.
        """
        now = self._failing.intersection(unexamined).union(failing)
        began, ended = sorted(now - self._failing), sorted(self._failing - now)
        self._failing = now
        return began, ended
