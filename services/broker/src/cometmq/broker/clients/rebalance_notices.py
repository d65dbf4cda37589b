# SPDX-License-Identifier: Apache-2.0
"""Tells the members of changed groups, but not each of every change of a storm.

When a thousand members of a group join or leave within a second, telling all of them of each
change would be half a million requests. The first change is told at once; those of the next
100 ms are told together at its end. Members learn no more from a notice than that they must look.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from cometmq.broker.clients.consumers import ConsumerGroup, tell_members

QUIET_MS: Final = 100

Later: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds: `loop.call_later`."""


class Notices:
    """What a table of consumers calls when a group has changed."""

    def __init__(
        self,
        later: Later | None = None,
        tell: Callable[[ConsumerGroup], None] = tell_members,
    ) -> None:
        """`later` is that of the running loop unless a test moves the time."""
        self._later: Later = later or asyncio.get_running_loop().call_later
        self._tell = tell
        self._quiet: dict[str, ConsumerGroup | None] = {}  # told lately -> changed since

    def __call__(self, group: ConsumerGroup) -> None:
        """Tell the members now, or together with other changes soon."""
        if group.name in self._quiet:
            self._quiet[group.name] = group
            return
        self._quiet[group.name] = None
        self._tell(group)
        self._later(QUIET_MS / 1000, lambda: self._end_quiet(group.name))

    def _end_quiet(self, name: str) -> None:
        changed = self._quiet.pop(name)
        if changed is not None:
            self(changed)
