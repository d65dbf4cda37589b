# SPDX-License-Identifier: Apache-2.0
"""Create the record of a new group, or of a group whose record was deleted (pure)."""

from typing import Final

from cometmq.ha.actions import Actions, Blocked, Create, Group, Status, Statuses, Tell, Wait
from cometmq.ha.orders import Fence
from cometmq.ha.record import Copy, Record
from cometmq.ha.role import Role
from cometmq.ha.state import Standing

ACCEPTANCE: Final = "a person has to accept that"
"""The caller adds the command, which depends on the platform."""
ACCEPTABLE: Final = frozenset({Blocked.SUSPECT_COPY, Blocked.NO_PROVEN_COPY, Blocked.COPY_LEFT_OUT})
"""Reasons to wait that `accept_loss` removes."""

EPOCHS_LEFT_OUT: Final = 1_000
"""Added to the epoch of a record with an accepted loss: no broker left out has begun so many."""


def restore_epoch(statuses: Statuses) -> int:
    """Return the epoch for fence orders while the record is missing; the caller remembers it."""
    return max([0, *(one.promised for one in statuses)]) + 1


def restore(
    group: Group, statuses: Statuses, fence_epoch: int, uid: str, *, accept_loss: bool = False
) -> Actions:
    """Return how to create the record of a new group, or to restore a deleted record (R10).

    All members are fenced before their offsets are compared; otherwise a master could acknowledge
    more messages afterwards. A store that has lost something since it was in the set is not chosen,
    but it may have been the only member: so it, and a missing store of the last known set, need an
    explicit `accept_loss`. Until then no member is fenced, because a master may still acknowledge
    without a record. With it, the most complete store is chosen.
    """
    usable = {one.copy.ordinal: one for one in statuses if one.role.has_store}
    missing = [ordinal for ordinal in group.ordinals if ordinal not in usable]
    if missing:
        text = f"there is no record, and brokers {missing} do not answer; all must answer"
        return (Wait(Blocked.MEMBERS_MISSING, text),)
    members = tuple(usable[ordinal] for ordinal in group.ordinals)
    if (absent := left_out(members)) and not accept_loss:
        return (Wait(Blocked.COPY_LEFT_OUT, _left_out_text(absent, group)),)
    unfenced = [one for one in members if not is_fenced(one, fence_epoch)]
    if unfenced:
        return tuple(Tell(one.copy.ordinal, Fence(fence_epoch)) for one in unfenced)
    eligible = tuple(one for one in members if one.standing is Standing.PROVEN)
    if all(one.last_log_epoch == 0 for one in members):  # a new group: no master ever opened
        eligible = members
    suspects = [one.copy.ordinal for one in members if one.standing is Standing.SUSPECT]
    if suspects and not accept_loss:
        text = (
            f"there is no record, and the stores of brokers {suspects} may have lost messages that"
            f" no other has: {ACCEPTANCE}"
        )
        return (Wait(Blocked.SUSPECT_COPY, text),)
    if not eligible and not accept_loss:
        text = f"there is no record, and no store was ever in sync: {ACCEPTANCE}"
        return (Wait(Blocked.NO_PROVEN_COPY, text),)
    if accept_loss:
        eligible = tuple(one for one in members if one.standing is not Standing.NEW) or eligible
    best = max(eligible or members, key=completeness)
    record = Record(
        uid=uid,
        group=group.name,
        epoch=max(one.promised for one in members) + (EPOCHS_LEFT_OUT if accept_loss else 1),
        holder=best.copy,
        in_sync=(best.copy,),
        copies=group.copies,
    )
    return (Create(record),)


def completeness(status: Status) -> tuple[int, ...]:
    """Return a sort key for stores by the data they hold; ties go to the lower ordinal."""
    tables = (status.tables_epoch, status.tables)
    return (status.last_log_epoch, status.max_offset, *tables, -status.copy.ordinal)


def is_fenced(status: Status, fence_epoch: int) -> bool:
    """Return whether a member has obeyed this fence order or a later one."""
    return status.role is Role.FENCED and status.promised >= fence_epoch


def left_out(members: Statuses) -> tuple[Copy, ...]:
    """Return the copies that some member last saw in sync but that are not present now.

    Each may be the only store with the newest messages, also a replaced one whose successor began
    empty.
    """
    known = {copy for one in members for copy in one.last_in_sync}
    new = {one.copy.ordinal for one in members if one.standing is Standing.NEW}
    asked = {one.copy.ordinal for one in members}
    here = {one.copy for one in members}
    return tuple(
        copy for copy in sorted(known - here) if copy.ordinal in new or copy.ordinal not in asked
    )


def _left_out_text(absent: tuple[Copy, ...], group: Group) -> str:
    missing = sorted({copy.ordinal for copy in absent} - set(group.ordinals))
    replaced = sorted({copy.ordinal for copy in absent} & set(group.ordinals))
    facts = []
    if missing:
        facts.append(
            f"brokers {missing}, which were in sync when the others last read the record, are not"
            " among the brokers asked: add them to controlMembers (--members)"
        )
    if replaced:
        facts.append(
            f"brokers {replaced} were in sync with other stores than they have now: start them"
            " with those stores"
        )
    return (
        f"there is no record, and {'; '.join(facts)}; if those stores are lost, so may be"
        f" acknowledged messages: {ACCEPTANCE}"
    )
