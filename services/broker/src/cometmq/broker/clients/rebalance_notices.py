# SPDX-License-Identifier: Apache-2.0
"""Notifies the members of changed groups; the changes of a burst share a few notices.

When a thousand members of a group join or leave within a second, notifying each member of each
change would take half a million requests. The first change is therefore sent at once, and changes
within the next 100 ms share one notice at the end of that time. A notice carries no details:
members look up the group themselves.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from cometmq.broker.clients.consumers import ConsumerGroup, notify_members

QUIET_MS: Final = 100

Later: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Calls a function after a delay in seconds, as `loop.call_later` does."""


class Notices:
    """Sends the notices; the consumer table calls it when a group has changed."""

    def __init__(
        self,
        later: Later | None = None,
        tell: Callable[[ConsumerGroup], None] = notify_members,
    ) -> None:
        """`later` defaults to the running loop's `call_later`; tests replace it to control time."""
        self._later: Later = later or asyncio.get_running_loop().call_later
        self._tell = tell
        self._quiet: dict[str, ConsumerGroup | None] = {}  # recently notified -> changed since

    def __call__(self, group: ConsumerGroup) -> None:
        """Notify the members now, or shortly afterwards together with other changes."""
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
