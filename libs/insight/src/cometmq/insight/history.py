# SPDX-License-Identifier: Apache-2.0
"""Figures of earlier snapshots, which give rates and the times at which conditions began.

Without a history, the rates in a snapshot are unknown, and conditions are only known to have begun
before it.
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from cometmq.insight.asking import BrokerMemory
from cometmq.insight.model import Since, Unknown

RATE_WINDOW_MS: Final = 60_000
SAMPLE_PAUSE_MS: Final = 2_000
DISK_WINDOW_MS: Final = 3_600_000
DISK_PAUSE_MS: Final = 60_000
JUMP_MS: Final = 1_000
"""A larger difference between two clocks means that the wall clock was set."""
RATE_UNKNOWN: Final = Unknown("a rate needs two snapshots", is_new=True)


class Sample(msgspec.Struct, frozen=True):
    """The counters of one snapshot, from which rates are computed."""

    taken_ms: int
    ends: Mapping[str, int]
    """Messages stored since the topic was created, by topic."""
    consumed: Mapping[str, int]
    """The sum of the committed offsets, by group."""


class Growth(msgspec.Struct, frozen=True):
    """The size of a broker's log at a moment."""

    taken_ms: int
    log_bytes: int


class Progress(msgspec.Struct, frozen=True):
    """How the offsets and the lag of a group have changed while it had unread messages."""

    committed: int
    still_since: Since
    """When the committed offsets were first seen at their present values."""
    lag: int
    lag_grows_since: Since | None
    """Since when no snapshot has found fewer unread messages than the one before."""
    lag_at_first: int


class Place(msgspec.Struct, frozen=True):
    """The name and address of a copy of a broker, now or in an earlier snapshot."""

    cluster: str
    name: str
    broker_id: int
    address: str


class History:
    """The data of earlier snapshots that later ones need; one history belongs to one cluster."""

    def __init__(self) -> None:
        self._wall_offset_ms: int | None = None
        """By how much the wall clock is ahead of the other clock."""
        self._forget()

    def _forget(self) -> None:
        self.first_look_ms: int | None = None
        self.last_look_ms = 0
        self.conditions: dict[str, Since] = {}
        """Since when each condition holds, by key."""
        self.places: dict[str, Place] = {}
        """Brokers by address, including those that name servers no longer list."""
        self.progress: dict[str, Progress] = {}
        """The progress of each group with unread messages."""
        self.dead_letters: dict[str, Since] = {}
        """Since when snapshots have found dead letters that were not sent again, by group."""
        self._memories: dict[str, BrokerMemory] = {}
        self._samples: deque[Sample] = deque()
        self._growth: dict[str, deque[Growth]] = {}

    def memory(self, address: str) -> BrokerMemory:
        """Return the state that is kept about a broker between snapshots; it is created on first
        use.
        """
        return self._memories.setdefault(address, BrokerMemory())

    def since(self, key: str, now_ms: int) -> Since:
        """Return when a condition began that holds now; record `now_ms` for a condition that is
        new.
        """
        found = self.conditions.get(key)
        if found is None:
            found = self.conditions[key] = self.now(now_ms)
        return found

    def now(self, now_ms: int) -> Since:
        """Return the beginning of a condition that this snapshot is the first to find."""
        return Since(now_ms, is_bound=self.first_look_ms in {None, now_ms})

    def keep_only(self, keys: Collection[str], prefix: str = "") -> None:
        """Forget the conditions that have ended: those with `prefix` that are not in `keys`."""
        wanted = set(keys)
        for key in [it for it in self.conditions if it.startswith(prefix) and it not in wanted]:
            del self.conditions[key]

    def began(self, now_ms: int, boottime_ms: int) -> None:
        """Record that a snapshot has begun, by the wall clock and by a clock that never jumps.

        If the wall clock was set, all that was recorded before is forgotten.
        """
        ahead_ms, before_ms = now_ms - boottime_ms, self._wall_offset_ms
        if before_ms is not None and abs(ahead_ms - before_ms) > JUMP_MS:
            self._forget()
        self._wall_offset_ms = ahead_ms
        if self.first_look_ms is None:
            self.first_look_ms = now_ms
        self.last_look_ms = now_ms

    def note(self, sample: Sample) -> None:
        """Record the counters of a snapshot, for the rates in later ones."""
        last = self._samples[-1].taken_ms if self._samples else None
        if last is None or sample.taken_ms - last >= SAMPLE_PAUSE_MS:
            self._samples.append(sample)
        while len(self._samples) > 1 and self._samples[1].taken_ms <= (
            sample.taken_ms - RATE_WINDOW_MS
        ):
            self._samples.popleft()

    def earlier(self, now_ms: int) -> Sample | None:
        """Return the oldest sample of the period over which rates are computed, if it is old enough
        for a rate.
        """
        found = self._samples[0] if self._samples else None
        return found if found is not None and now_ms - found.taken_ms >= 1_000 else None

    def note_progress(self, group: str, committed: int, lag: int, now_ms: int) -> None:
        """Record a group's progress; drop the record of a group without unread messages."""
        if not lag:
            self.progress.pop(group, None)
            return
        old, now = self.progress.get(group), self.now(now_ms)
        if old is None:
            self.progress[group] = Progress(committed, now, lag, None, lag)
            return
        grows_since = (old.lag_grows_since or old.still_since) if lag >= old.lag else None
        self.progress[group] = Progress(
            committed,
            old.still_since if committed == old.committed else now,
            lag,
            grows_since if lag >= old.lag else None,
            old.lag_at_first if lag >= old.lag else lag,
        )

    @property
    def pauses(self) -> dict[str, Progress]:
        """The groups with unread messages whose offsets the last snapshot found as before.

        A later history that begins with them in `progress` still tells since when they read
        nothing.
        """
        return {
            group: it
            for group, it in self.progress.items()
            if it.still_since.ms < self.last_look_ms
        }

    def note_dead_letters(self, group: str, left: int, now_ms: int) -> None:
        """Record how many dead letters of a group were not sent again."""
        if not left:
            self.dead_letters.pop(group, None)
        elif group not in self.dead_letters:
            self.dead_letters[group] = Since(now_ms, is_bound=True)

    def note_log(self, address: str, log_bytes: int, now_ms: int) -> None:
        """Record the size of a broker's log."""
        kept = self._growth.setdefault(address, deque())
        if not kept or now_ms - kept[-1].taken_ms >= DISK_PAUSE_MS:
            kept.append(Growth(now_ms, log_bytes))
        while len(kept) > 1 and kept[0].taken_ms < now_ms - DISK_WINDOW_MS:
            kept.popleft()

    def growth_per_s(self, address: str, log_bytes: int, now_ms: int) -> float | None:
        """Return how fast a log grows in bytes per second, less deleted files; None without an
        older size.
        """
        kept = self._growth.get(address)
        if not kept or now_ms - kept[0].taken_ms < DISK_PAUSE_MS:
            return None
        return (log_bytes - kept[0].log_bytes) * 1_000 / (now_ms - kept[0].taken_ms)
