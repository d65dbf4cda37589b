# SPDX-License-Identifier: Apache-2.0
"""Decides how to create the record of a group that has none, once no member can still be master
(rule R10 of docs/concepts/replication.md).

A restoration fences the members in a new epoch, so that a former master stops. If messages may be
lost, a person has to accept that first.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from cometmq.elector.asked_member import AskedMembers
from cometmq.elector.plan import Plan
from cometmq.ha import missing_record
from cometmq.ha.actions import Actions, Blocked, Statuses, Wait
from cometmq.ha.record import Copy
from cometmq.remoting.log import Log

ACCEPTANCE_MS: Final = 60_000
"""How long an acceptance is valid; later, the group may differ from what the person has seen."""


class Acceptance(msgspec.Struct):
    """A person's consent to create the record once, although messages may be lost."""

    epoch: int
    """The latest epoch that the person knows; a record with a later epoch ends the acceptance."""
    copies: frozenset[Copy]
    """The stores from which the person accepts to continue; with others, more may be lost."""
    until_ms: int
    is_used: bool = False


class Restoration:
    def __init__(
        self,
        plan: Plan,
        *,
        now_ms: Callable[[], int],
        new_uid: Callable[[], str],
        wake: asyncio.Event,
        log: Log,
    ) -> None:
        self._plan = plan
        self._now_ms = now_ms
        self._new_uid = new_uid
        self._wake = wake
        self._log = log
        self._acceptance: Acceptance | None = None
        self._fence_epoch: int | None = None

    def accept_loss(self, epoch: int, copies: Collection[Copy]) -> None:
        """Allow one creation of the record that may lose messages, within `ACCEPTANCE_MS`.

        `epoch` is at least the last record's and every known promise. It has no effect unless the
        answering members have exactly the stores `copies`.
        """
        until_ms = self._now_ms() + ACCEPTANCE_MS
        self._acceptance = Acceptance(epoch, frozenset(copies), until_ms)
        self._log.warning("loss.accepted", group=self._plan.group.name, epoch=epoch)
        self._wake.set()

    @property
    def is_accepting_loss(self) -> bool:
        """Whether there is an acceptance that has not expired."""
        accepted = self._acceptance
        return accepted is not None and self._now_ms() < accepted.until_ms

    def record_exists(self, epoch: int) -> None:
        """End the restoration, because a record was read; its epoch is `epoch`."""
        self._fence_epoch = None
        if self._acceptance is not None and epoch > self._acceptance.epoch:
            self._acceptance = None  # an earlier epoch was read before the record was deleted

    def created(self) -> None:
        if self._acceptance is not None:
            self._acceptance.is_used = True

    def choose_epoch_again(self) -> None:
        """Choose a later epoch for fence orders: a member refused the present one as stale."""
        self._fence_epoch = None

    def decide(self, members: AskedMembers) -> Actions:
        """Decide what to do in a round that found no record."""
        readers = [
            ordinal
            for ordinal, member in members.by_ordinal.items()
            if member.report is not None and member.report.record_uid
        ]
        if readers:
            text = (
                f"brokers {readers} read a record where this elector finds none: give all of them"
                " the same groupRecord; if the record was deleted, wait until they notice it"
            )
            return (Wait(Blocked.RECORD_ELSEWHERE, text),)
        statuses = members.statuses
        if self._fence_epoch is None:
            self._fence_epoch = missing_record.restore_epoch(statuses)
        accepted = self._accepted(statuses)
        if accepted is not None:
            # The stores that knew the epoch of the deleted record may all be lost.
            self._fence_epoch = max(self._fence_epoch, accepted.epoch + 1)
        return missing_record.restore(
            self._plan.whole,
            statuses,
            self._fence_epoch,
            self._new_uid(),
            accept_loss=accepted is not None,
        )

    def _accepted(self, statuses: Statuses) -> Acceptance | None:
        accepted = self._acceptance
        if accepted is None or accepted.is_used or not self.is_accepting_loss:
            return None
        return accepted if accepted.copies == {one.copy for one in statuses} else None
