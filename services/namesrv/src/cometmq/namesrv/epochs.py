# SPDX-License-Identifier: Apache-2.0
"""The epochs of groups with failover, and which claims of an epoch are believed (pure).

An epoch excludes the registrations of earlier epochs, such as those of a deposed master. With a
proof that the sender knows the group's key it does so for as long as the group exists, and
registrations without a proof are refused.

Without a proof anybody may claim any epoch, so a claim must not exclude the real master:

- An epoch far beyond the group's is not believed. An election takes about a second and raises the
  epoch by one, so it may rise by one for each second since a registration in the group's epoch, and
  by EPOCHS_SPARE.
- A broker that is refused and keeps registering is accepted after `doubt_ms`: a deposed master
  stops within its renewDeadlineMills. From then on, for CONTESTED_MS, the group's epochs decide
  nothing, and the latest registration counts, as in RocketMQ.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

EPOCHS_SPARE: Final = 64
CONTESTED_MS: Final = 600_000
RETRY_MS_MAX: Final = 5_000
"""A refused broker registers again within a second; a longer silence ends its claim."""


class Verdict(Enum):
    """Whether a registration is accepted, or why not."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """The group is in a later epoch."""
    IMPLAUSIBLE = "implausible"
    """The group cannot have reached this epoch."""
    UNPROVEN = "unproven"
    """The group's members prove that they know its key, and this sender does not."""


class GroupEpoch(msgspec.Struct):
    """What is known of a group's epoch."""

    highest: int | None = None
    is_proven: bool = False
    seen_ms: int = 0
    """When a broker last registered in this epoch."""
    refused_count: int = 0
    """Refusals since the epoch last rose."""
    doubted_since_ms: int = 0
    doubted_last_ms: int | None = None
    """The first and the last of successive refusals; None if there are none."""
    contested_until_ms: int | None = None


class Epochs:
    """The epochs of all groups that are in the routes."""

    def __init__(self, doubt_ms: int) -> None:
        """`doubt_ms` is how long an epoch without proof excludes a broker that keeps trying."""
        self._groups: dict[str, GroupEpoch] = {}
        self._doubt_ms = doubt_ms
        self.refused_count = 0
        """Refused registrations of all groups."""

    def of(self, name: str) -> int | None:
        """Return the group's epoch; None if it has none."""
        group = self._groups.get(name)
        return None if group is None else group.highest

    def names(self) -> Iterable[str]:
        """Return the groups of which an epoch or a proof is known."""
        return self._groups.keys()

    def is_proven(self, name: str) -> bool:
        """Return whether a member of the group has proven that it knows the group's key."""
        group = self._groups.get(name)
        return group is not None and group.is_proven

    def is_contested(self, name: str, now_ms: int) -> bool:
        """Return whether the group's epochs decide nothing at present."""
        group = self._groups.get(name)
        until_ms = None if group is None else group.contested_until_ms
        return until_ms is not None and now_ms < until_ms

    def refusals(self, name: str) -> int:
        """Return how many registrations were refused since the group's epoch last rose."""
        group = self._groups.get(name)
        return 0 if group is None else group.refused_count

    def judge(self, name: str, epoch: int | None, *, is_proven: bool, now_ms: int) -> Verdict:
        """Decide about a registration, and count a refusal; change nothing else."""
        group = self._groups.get(name)
        if group is None:
            return Verdict.ACCEPTED
        verdict = self._judged(group, epoch, is_proven=is_proven, now_ms=now_ms)
        if verdict is Verdict.ACCEPTED:
            return verdict
        if not group.is_proven and self._outlasts(group, now_ms):
            group.contested_until_ms = now_ms + CONTESTED_MS
            return Verdict.ACCEPTED
        group.refused_count += 1
        self.refused_count += 1
        return verdict

    def note(self, name: str, epoch: int | None, *, is_proven: bool, now_ms: int) -> None:
        """Note an accepted registration."""
        if epoch is None and not is_proven:
            return
        group = self._groups.setdefault(name, GroupEpoch())
        if is_proven and not group.is_proven:
            group.is_proven, group.contested_until_ms = True, None
        if epoch is not None:
            if epoch != group.highest:
                group.refused_count = 0
                if self.is_contested(name, now_ms):  # two claims go on: neither may win again
                    group.contested_until_ms = now_ms + CONTESTED_MS
            group.highest, group.seen_ms = epoch, now_ms

    def forget(self, name: str) -> None:
        """Forget a group that has left the routes."""
        self._groups.pop(name, None)

    def _judged(
        self, group: GroupEpoch, epoch: int | None, *, is_proven: bool, now_ms: int
    ) -> Verdict:
        if group.is_proven and not is_proven:
            return Verdict.UNPROVEN
        if is_proven and not group.is_proven:
            return Verdict.ACCEPTED  # whatever has been claimed without a proof
        until_ms = group.contested_until_ms
        if epoch is None or group.highest is None or (until_ms is not None and now_ms < until_ms):
            return Verdict.ACCEPTED
        if epoch < group.highest:
            return Verdict.STALE
        reachable = group.highest + EPOCHS_SPARE + max(0, now_ms - group.seen_ms) // 1000
        is_far = epoch > reachable and not is_proven
        return Verdict.IMPLAUSIBLE if is_far else Verdict.ACCEPTED

    def _outlasts(self, group: GroupEpoch, now_ms: int) -> bool:
        """Note a refusal; return whether refused brokers have kept registering for `doubt_ms`."""
        last_ms, group.doubted_last_ms = group.doubted_last_ms, now_ms
        if last_ms is None or now_ms - last_ms > RETRY_MS_MAX:
            group.doubted_since_ms = now_ms
        return now_ms - group.doubted_since_ms >= self._doubt_ms
