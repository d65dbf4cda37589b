# SPDX-License-Identifier: Apache-2.0
"""Planned changes to a broker group: switchovers, removals, changes to the number of copies, and
hand-overs from a master whose disk is full (pure).
"""

from collections.abc import Collection
from typing import Final

from cometmq.ha.actions import Actions, Blocked, Group, Statuses, Tell, Wait, status_of
from cometmq.ha.orders import Drop, HandOver, Resize
from cometmq.ha.record import Record
from cometmq.ha.role import Role

SWITCHOVER_LAG_BYTES_MAX: Final = 1 << 20


def next_change(
    group: Group, record: Record, statuses: Statuses, removing: Collection[int]
) -> Actions:
    """Return the next step of the planned changes, one after another; empty if none is left."""
    return (
        retire(group, record, statuses, removing)
        or resize(group, record)
        or relieve(group, record, statuses, removing)
    )


def switch_over(
    record: Record, statuses: Statuses, target: int | None = None, *, leaves: bool = False
) -> Tell[HandOver] | Wait:
    """Return the order to hand over to `target`, or to the member with the smallest lag."""
    holder = status_of(statuses, record.holder.ordinal)
    if holder is None or (holder.role, holder.epoch) != (Role.MASTER, record.epoch):
        named = f"broker {record.holder.ordinal}, the master of epoch {record.epoch},"
        state = "is silent" if holder is None else f"is {holder.role} in epoch {holder.epoch}"
        return Wait(Blocked.NO_MASTER, f"{named} {state}")
    fit = [
        one
        for one in statuses
        if one.copy in record.in_sync
        and one.copy != record.holder
        and (one.role, one.epoch) == (Role.SLAVE, record.epoch)
        and one.lag_bytes < SWITCHOVER_LAG_BYTES_MAX
        and target in (None, one.copy.ordinal)
    ]
    if not fit:
        name = "no member" if target is None else f"broker {target} is not one that"
        text = f"{name} is in sync, follows epoch {record.epoch} and lags by less than 1 MiB"
        return Wait(Blocked.TARGET_UNFIT, text)
    best = min(fit, key=lambda one: (one.lag_bytes, one.copy.ordinal))
    return Tell(record.holder.ordinal, HandOver(best.copy.ordinal, leaves))


def retire(group: Group, record: Record, statuses: Statuses, removing: Collection[int]) -> Actions:
    """Return the next step in removing members from the group; empty once they have left.

    The master changes the set itself, so that its counts remain correct (R8), and hands over first
    if it leaves. Below `min_in_sync`, the group first gets an additional copy.
    """
    leaving = [copy for copy in record.in_sync if copy.ordinal in removing]
    if not leaving:
        return ()
    is_full = len(record.in_sync) == record.copies
    if record.holder in leaving:
        if is_full and len(leaving) == record.copies:  # no successor could join
            return (Tell(record.holder.ordinal, Resize(record.copies + 1)),)
        stay = tuple(one for one in statuses if one.copy.ordinal not in removing)
        holder = tuple(one for one in statuses if one.copy == record.holder)
        return (switch_over(record, (*stay, *holder), leaves=True),)
    if len(record.in_sync) <= group.min_in_sync:
        if is_full:
            return (Tell(record.holder.ordinal, Resize(record.copies + 1)),)
        text = f"{len(record.in_sync)} copies are in sync and {group.min_in_sync} are needed"
        return (Wait(Blocked.TOO_FEW_IN_SYNC, text),)
    return (Tell(record.holder.ordinal, Drop(leaving[0].ordinal)),)


def resize(group: Group, record: Record) -> Actions:
    """Return the step towards the configured number of copies; empty if it is recorded already."""
    if group.copies == record.copies:
        return ()
    return (Tell(record.holder.ordinal, Resize(group.copies)),)


def relieve(
    group: Group, record: Record, statuses: Statuses, removing: Collection[int]
) -> tuple[Tell[HandOver], ...]:
    """Return the order to hand over from a master whose disk is full; empty if that does not help.

    The other copies must suffice, and the next master's disk must have room.
    """
    holder = status_of(statuses, record.holder.ordinal)
    if holder is None or not holder.is_full:
        return ()
    others = [one for one in statuses if one.copy in record.in_sync and not one.is_full]
    if len(others) < group.min_in_sync:
        return ()
    fit = tuple(one for one in others if one.has_room and one.copy.ordinal not in removing)
    action = switch_over(record, (*fit, holder), leaves=True)
    return (action,) if isinstance(action, Tell) else ()
