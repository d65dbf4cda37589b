# SPDX-License-Identifier: Apache-2.0
"""Held pulls by queue (pure): long polling without a thread or timer per pull.

A pull that finds nothing stays here until a message arrives that its filter accepts, or its
time is over. Both put it into `ready`; the driver then runs those again, once, without
holding them a second time.

Compatibility: an arrival with another tag leaves the pull held, and `sweep` (every 5 s) wakes
it when its queue has grown at all, so that a filtered consumer's offset moves on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from cometmq.broker.filters.tags import TagFilter
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage

SWEEP_INTERVAL_MS: Final = 5_000
EXPIRE_INTERVAL_MS: Final = 1_000


class HeldPull(msgspec.Struct, eq=False):
    """One unanswered pull."""

    call: Call[PullMessage]
    deadline_ms: int  # monotonic
    accept: TagFilter | None

    @property
    def queue_offset(self) -> int:
        """The offset from which the pull wants messages."""
        return self.call.header.queue_offset


MaxOffset = Callable[[str, int], int]


class HoldTable:
    """The held pulls of all queues."""

    def __init__(self) -> None:
        """Start empty."""
        self.count = 0
        self.ready: list[HeldPull] = []
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}

    def hold(self, held: HeldPull, *, count_max: int) -> bool:
        """Keep a pull unanswered; False if so many are held already."""
        if self.count >= count_max:
            return False
        header = held.call.header
        self._queues.setdefault((header.topic, header.queue_id), []).append(held)
        self.count += 1
        return True

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, tag_code: int | None, *_: Any
    ) -> None:
        """Wake the pulls of a queue that want a message that has just been dispatched."""
        waiting = self._queues.get((topic, queue_id))
        if waiting is not None:
            self._wake(
                (topic, queue_id),
                lambda held: (
                    held.queue_offset < max_offset
                    and (tag_code is None or held.accept is None or held.accept(tag_code))
                ),
            )

    def sweep(self, now_ms: int, max_offset: MaxOffset) -> None:
        """Wake what a missed or unwanted arrival left behind, and what is due."""
        for key in list(self._queues):
            self._wake(key, partial(_is_stale, max_offset(*key), now_ms))

    def expire(self, now_ms: int) -> None:
        """Wake the pulls whose time is over."""
        for key in list(self._queues):
            self._wake(key, lambda held: held.deadline_ms <= now_ms)

    def drop(self, peer: object) -> None:
        """Forget the pulls of a closed connection."""
        for key in list(self._queues):
            self._remove(key, lambda held: held.call.peer is peer)

    def wake_all(self) -> None:
        """Wake everything: the broker stops."""
        for key in list(self._queues):
            self._wake(key, lambda _: True)

    def take_ready(self) -> list[HeldPull]:
        """Return the woken pulls, each once."""
        ready, self.ready = self.ready, []
        return ready

    @property
    def queue_count(self) -> int:
        """Return how many queues have a held pull."""
        return len(self._queues)

    def _wake(self, key: tuple[str, int], is_woken: Callable[[HeldPull], bool]) -> None:
        self.ready += self._remove(key, is_woken)

    def _remove(
        self, key: tuple[str, int], is_removed: Callable[[HeldPull], bool]
    ) -> list[HeldPull]:
        removed: list[HeldPull] = []
        kept: list[HeldPull] = []
        for held in self._queues[key]:
            (removed if is_removed(held) else kept).append(held)
        self.count -= len(removed)
        if kept:
            self._queues[key] = kept
        else:
            del self._queues[key]
        return removed


def _is_stale(max_offset: int, now_ms: int, held: HeldPull) -> bool:
    return held.queue_offset < max_offset or held.deadline_ms <= now_ms
