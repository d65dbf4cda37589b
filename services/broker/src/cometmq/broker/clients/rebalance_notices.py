# SPDX-License-Identifier: Apache-2.0
"""Notifies the members of changed consumer groups, so that they rebalance.

When a thousand members of a group join or leave within a second, notifying each member of each
change would take half a million requests. So the first change is notified at once, and changes
within the next 100 ms share one notice at the end of that time. A notice carries no details:
members look up the group themselves.

A client may join hundreds of groups with one heartbeat, and a group may have thousands of members.
So at most STEP_COUNT notices are sent per STEP_MS, for all groups together.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from cometmq.broker.clients.consumers import ConsumerGroup, notify_member
from cometmq.remoting.command import Peer

QUIET_MS: Final = 100
STEP_COUNT: Final = 100
"""Number of notices that are sent at once: 4 ms."""
NOTICE_WEIGHT: Final = 10
"""Members that have left, in the time of a notice; 10,000 of them held the loop for 25 ms."""
STEP_WEIGHT: Final = STEP_COUNT * NOTICE_WEIGHT
STEP_MS: Final = 20
"""Time between two steps: notices take at most a fifth of the loop."""

Later: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Calls a function after a delay in seconds, as `loop.call_later` does."""
Tell: TypeAlias = Callable[[Peer, str], None]


class Notices:
    """Sends the notices; the table of consumers calls an instance when a group has changed."""

    def __init__(self, later: Later | None = None, tell: Tell = notify_member) -> None:
        """`later` defaults to the running loop's `call_later`; tests replace it to control time."""
        self._later: Later = later or asyncio.get_running_loop().call_later
        self._tell = tell
        self._quiet: dict[str, ConsumerGroup | None] = {}  # recently notified -> changed since
        self._due: deque[tuple[ConsumerGroup, Iterator[Peer]]] = deque()  # members to be notified
        self._room = STEP_WEIGHT  # for the members that may still be visited in this step

    def __call__(self, group: ConsumerGroup) -> None:
        """Notify the members now, or shortly afterwards together with other changes."""
        if group.name in self._quiet:
            self._quiet[group.name] = group
            return
        self._quiet[group.name] = None
        self._due.append((group, iter(group.peers())))
        self._send()

    def _send(self) -> None:
        while self._due and self._room > 0:
            group, peers = self._due[0]
            peer = next(peers, None)
            if peer is None:
                self._due.popleft()
                self._begin_quiet(group.name)
            elif peer in group.clients:
                self._take_room(NOTICE_WEIGHT)
                self._tell(peer, group.name)
            else:  # it has left since
                self._take_room(1)

    def _take_room(self, weight: int) -> None:
        if self._room == STEP_WEIGHT:
            self._later(STEP_MS / 1000, self._begin_step)
        self._room -= weight

    def _begin_step(self) -> None:
        self._room = STEP_WEIGHT
        self._send()

    def _begin_quiet(self, name: str) -> None:
        self._later(QUIET_MS / 1000, lambda: self._end_quiet(name))

    def _end_quiet(self, name: str) -> None:
        changed = self._quiet.pop(name)
        if changed is not None:
            self(changed)
