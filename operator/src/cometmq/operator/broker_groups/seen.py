# SPDX-License-Identifier: Apache-2.0
"""The state of a group, as decisions see it (pure)."""

from collections.abc import Mapping

import msgspec

from cometmq.ha.actions import Statuses, leads
from cometmq.ha.record import Record


class PodSeen(msgspec.Struct, frozen=True):
    is_ready: bool
    is_current: bool
    """Whether the pod was created from the latest template."""
    is_terminating: bool = False
    trouble: str = ""
    """Why Kubernetes cannot run the pod, as it says; empty while nothing is wrong."""

    @property
    def is_fit(self) -> bool:
        """Whether the pod is ready, up to date and not being deleted."""
        return self.is_ready and self.is_current and not self.is_terminating


class Backlog(msgspec.Struct, frozen=True):
    """Unconsumed messages of each consumer group; groups without any are not listed."""

    by_group: Mapping[str, int]
    end: int = -1
    """The end of the master's log after the count; -1 if unknown."""

    @property
    def total(self) -> int:
        return sum(self.by_group.values())

    @property
    def worst_first(self) -> list[tuple[str, int]]:
        """The consumer groups and their unconsumed messages, largest backlog first."""
        return sorted(self.by_group.items(), key=lambda one: (-one[1], one[0]))


class Election(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a group that its elector knew at one instant."""

    record: Record | None = None
    is_record_known: bool = False
    """Whether the elector has read the record since it started, and the last read succeeded."""
    has_looked: bool = False
    """Whether the elector has asked for the record and the statuses since it started."""
    asked: tuple[int, ...] = ()
    """The brokers whose statuses the elector wants to know."""
    statuses: Statuses = ()
    reported_keys: Mapping[int, tuple[str, ...]] = {}
    """The fingerprints of the keys that each answering broker has read."""
    is_accepting_loss: bool = False
    """Whether the elector may still create the record with an accepted loss."""
    fault: tuple[str, str] | None = "NotStarted", "the elector of the group has not started yet"
    """Why no master can be elected: reason and text."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a group, as last seen."""

    replicas: int | None = None
    """The number in the StatefulSet; None if the StatefulSet does not exist yet."""
    is_settled: bool = True
    """Whether Kubernetes has processed the StatefulSet's latest template, so that
    `is_current` is right.
    """
    pods: Mapping[int, PodSeen] = {}
    record: Record | None = None
    may_have_data: bool = True
    """False only if the record and the brokers' statuses were looked up, the record is missing, and
    there has never been a master.
    """
    statuses: Statuses = ()
    asked: tuple[int, ...] = ()
    """The brokers that the elector asks for their status."""
    election_fault: tuple[str, str] | None = None
    """Why no master can be elected: reason and text."""
    backlog: Backlog | None = None
    """None if unknown, or not queried because the group is not being deleted."""
    is_quiet: bool = False
    """Whether no message has been stored for a while, so that producers know that
    the group is read-only.
    """

    @property
    def has_stores(self) -> bool:
        """Whether a deletion may lose data. An operator that has just started does not know the
        record yet, so a missing record proves nothing.
        """
        return self.replicas is not None and self.may_have_data

    @property
    def has_master(self) -> bool:
        """Whether the master named in the record is open."""
        record = self.record
        return record is not None and any(leads(one, record) for one in self.statuses)
