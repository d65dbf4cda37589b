# SPDX-License-Identifier: Apache-2.0
"""The epochs of broker groups with failover, and which registrations they exclude (pure).

A group's epoch is that of the last accepted registration that had one. Registrations with an
earlier epoch, such as those of a deposed master, are refused.

A proof shows that the sender of a registration knows the group's key (`ha.registration_proof`).
Once a group has sent one, registrations without a proof are refused for as long as the group
exists, and the epoch may rise by any amount.

Without a proof anybody may claim any epoch, so a claim must not exclude the real master:

- A claim is refused if the group cannot have reached that epoch. An election takes about a second
  and raises the epoch by one, so a claim may exceed the group's epoch by the number of seconds
  since it was last registered, plus EPOCHS_SPARE.
- A refused broker that keeps registering is accepted after `doubt_ms`, because a deposed master
  stops within its renewDeadlineMills. From then on, for CONTESTED_MS, the group is contested: its
  epochs exclude nobody, and the latest registration counts, as in RocketMQ.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

EPOCHS_SPARE: Final = 64
CONTESTED_MS: Final = 600_000
RETRY_MS_MAX: Final = 5_000
"""A refused broker registers again within a second; after a longer silence, the next refusal counts
as the first.
"""


class Verdict(Enum):
    """Whether a registration is accepted, or why not."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """The group is in a later epoch."""
    IMPLAUSIBLE = "implausible"
    """The group cannot have reached this epoch."""
    UNPROVEN = "unproven"
    """A member of the group has proven that it knows the key; this sender has not."""


class GroupEpoch(msgspec.Struct):
    """The epoch of one group, and the refusals of its registrations."""

    highest: int | None = None
    is_proven: bool = False
    seen_ms: int = 0
    """When a broker last registered in the epoch `highest`."""
    refused_count: int = 0
    """Refusals since the epoch last rose."""
    doubted_since_ms: int = 0
    doubted_last_ms: int | None = None
    """When a registration was last refused; `doubted_since_ms` is the first of the refusals that
    are at most RETRY_MS_MAX apart.
    """
    contested_until_ms: int | None = None


class Epochs:
    """The epochs of the groups in the routes that have sent an epoch or a proof."""

    def __init__(self, doubt_ms: int) -> None:
        """`doubt_ms` is how long an unproven epoch excludes a broker that keeps registering."""
        self._groups: dict[str, GroupEpoch] = {}
        self._doubt_ms = doubt_ms
        self.refused_count = 0
        """Refused registrations of all groups."""

    def of(self, name: str) -> int | None:
        """Return the group's epoch; None if no registration had one."""
        group = self._groups.get(name)
        return None if group is None else group.highest

    def names(self) -> Iterable[str]:
        """Return the groups that have sent an epoch or a proof."""
        return self._groups.keys()

    def is_proven(self, name: str) -> bool:
        """Return whether a member of the group has proven that it knows the group's key."""
        group = self._groups.get(name)
        return group is not None and group.is_proven

    def is_contested(self, name: str, now_ms: int) -> bool:
        """Return whether the group's epochs exclude nobody at present."""
        group = self._groups.get(name)
        until_ms = None if group is None else group.contested_until_ms
        return until_ms is not None and now_ms < until_ms

    def refusals(self, name: str) -> int:
        """Return how many registrations were refused since the group's epoch last rose."""
        group = self._groups.get(name)
        return 0 if group is None else group.refused_count

    def judge(self, name: str, epoch: int | None, *, is_proven: bool, now_ms: int) -> Verdict:
        """Decide whether to accept a registration; count a refusal.

        After `doubt_ms` of refusals, a registration of an unproven group is accepted, and the group
        becomes contested.
        """
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
        """Note an accepted registration: its epoch becomes the group's."""
        if epoch is None and not is_proven:
            return
        group = self._groups.setdefault(name, GroupEpoch())
        if is_proven and not group.is_proven:
            group.is_proven, group.contested_until_ms = True, None
        if epoch is not None:
            if epoch != group.highest:
                group.refused_count = 0
                if self.is_contested(name, now_ms):  # both brokers still register: prolong it
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
            return Verdict.ACCEPTED  # a proof overrides all epochs claimed without one
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
