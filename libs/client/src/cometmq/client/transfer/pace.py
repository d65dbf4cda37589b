# SPDX-License-Identifier: Apache-2.0
"""Slows down the pulls of a queue whose broker answers at once, again and again, with nothing."""

from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.remoting.bodies.queues import MessageQueue

PAUSE_MS: Final = 100  # doubled at each further answer
PAUSE_MS_MAX: Final = 1_000
"""The longest pause. Brokers normally hold a pull that finds nothing, and then there is no pause.
Without pauses, a broker that answers at once received 6,500 pulls/s per queue. Java waits 10 s
after PULL_OFFSET_MOVED, and not at all after other answers.
"""


class _Idle(msgspec.Struct):
    answer_count: int = 0
    at_ms: int = 0
    """When the last pull was sent."""


class Pace:
    """Measures, for each queue, how long to wait before its next pull."""

    def __init__(self, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._idle: dict[MessageQueue, _Idle] = {}

    def pause_ms(self, queue: MessageQueue) -> int:
        """Return how long to wait before the next pull of a queue.

        The time for which the broker held the last pull is subtracted, so only quick answers cause
        a pause. The first empty answer causes none, because a slave answers so to send a consumer
        back to the master.
        """
        idle = self._idle.get(queue)
        if idle is None or idle.answer_count < 2:
            return 0
        pause_ms = min(PAUSE_MS << min(idle.answer_count - 2, 10), PAUSE_MS_MAX)
        return max(0, idle.at_ms + pause_ms - self._clock_ms())

    def note(self, queue: MessageQueue, offset: int, pulled: Pulled, *, sent_ms: int) -> None:
        """Count an answer to a pull from `offset`, unless it has messages or a higher next offset.

        An answer with PULL_OFFSET_MOVED counts in any case, because a broker may move the offset
        back and forth.
        """
        has_moved = pulled.status is not PullStatus.OFFSET_ILLEGAL and pulled.next_offset > offset
        if has_moved or pulled.messages or pulled.unreadable:
            self._idle.pop(queue, None)
            return
        idle = self._idle.setdefault(queue, _Idle())
        idle.answer_count += 1
        idle.at_ms = sent_ms

    def forget(self, queue: MessageQueue) -> None:
        """Drop the count of a queue that is no longer read."""
        self._idle.pop(queue, None)
