# SPDX-License-Identifier: Apache-2.0
"""A master's knowledge of its copies: acknowledgements, confirm offset, in-sync set (pure).

A broker calls `lead` when it becomes master. It calls `appended` and `tables_changed` after its own
writes and `acked` for each report from a slave, and answers clients up to `confirmed` while
`may_acknowledge` permits. At intervals, and whenever `wants_write` returns true, it writes the
record: it calls `proposal`, then `written` *before* sending the request, then `answered`. After a
conflict, or if no answer arrives, it reads the record, checks `is_deposed` and calls `found`. Only
one write is outstanding at a time.

The record may hold a set other than the one last read: each unanswered write may have been applied,
may be applied later, or may never be applied. `possible` contains all of these sets. The confirm
offset waits for the members of every set; `min_in_sync` counts only copies that are members of all
sets (R1, R8).

Every rule is a function or a row of `JOIN_CONDITIONS`, so that the exhaustive check can disable it.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from cometmq.ha.port import Answer, Outcome
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.remoting.errors import CometError

Copies = tuple[Copy, ...]


class AckRefused(CometError):
    """A slave reported bytes that its master does not have; its connection is closed."""


class Ack(msgspec.Struct, frozen=True):
    """A slave's report about one copy: its epoch, and its log's and tables' extent."""

    copy: Copy
    epoch: int
    offset: int
    """End of its log. If this is at or above the epoch's start, the epoch's entry is saved."""
    tables: int = -1
    """Table changes in this epoch that it has saved; -1 until it has the tables themselves."""


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """A master's view of its group, from its opening until it stops being master."""

    me: Copy
    epoch: int
    start: int
    """The end of the log when this epoch began."""
    base: Versioned
    """The latest version that the master has read or written; its writes are based on this version.
    """
    possible: tuple[Copies, ...]
    """The sets that the record may hold, beginning with the set of `base`."""
    end: int
    confirmed: int
    """Every member of the set has the log up to this offset, which never decreases."""
    tables: int = 0
    confirmed_tables: int = 0
    acks: tuple[Ack, ...] = ()
    must_read: bool = False
    """The last write met a conflict or went unanswered: read the record before writing again."""


def lead(me: Copy, found: Versioned, *, start: int, confirmed: int = 0) -> Leadership:
    """Return the initial view of a master, without acknowledgements from earlier epochs.

    `start` is the end of its log, and `confirmed` the confirm offset that it learned as a slave.
    """
    record = found.record
    leadership = Leadership(
        me=me,
        epoch=record.epoch,
        start=start,
        base=found,
        possible=(record.in_sync,),
        end=start,
        confirmed=min(confirmed, start),
    )
    return _advanced(leadership)


def appended(leadership: Leadership, end: int) -> Leadership:
    """Record that the master's log now ends at `end`."""
    return _advanced(msgspec.structs.replace(leadership, end=end))


def tables_changed(leadership: Leadership, tables: int) -> Leadership:
    """Record that the master has saved `tables` table changes in this epoch."""
    return _advanced(msgspec.structs.replace(leadership, tables=tables))


def acked(leadership: Leadership, ack: Ack) -> Leadership:
    """Apply a slave's report of this epoch; raise AckRefused for more than the master has."""
    if not is_current(leadership, ack):
        return leadership
    if ack.offset > leadership.end or ack.tables > leadership.tables:
        raise AckRefused(
            f"broker {ack.copy.ordinal} reports offset {ack.offset} and {ack.tables} table"
            f" changes, but this master has {leadership.end} and {leadership.tables}:"
            " its connection is closed"
        )
    known = _ack_of(leadership, ack.copy)
    if known:
        offset, tables = max(ack.offset, known.offset), max(ack.tables, known.tables)
        ack = msgspec.structs.replace(ack, offset=offset, tables=tables)
    required = maximal_set(leadership)
    others = [
        other
        for other in leadership.acks
        if other.copy.ordinal != ack.copy.ordinal
        or (other.copy != ack.copy and other.copy in required)
    ]
    acks = tuple(sorted([*others, ack], key=lambda one: one.copy))
    return _advanced(msgspec.structs.replace(leadership, acks=acks))


def is_current(leadership: Leadership, ack: Ack) -> bool:
    """Return whether an acknowledgement counts: it must belong to this epoch (decision 2)."""
    return ack.epoch == leadership.epoch


def maximal_set(leadership: Leadership) -> Copies:
    """Return all copies that may be in the recorded set; the confirm offset waits for each (R1)."""
    if len(leadership.possible) == 1:
        return leadership.possible[0]
    return tuple(sorted({copy for members in leadership.possible for copy in members}))


def certain_set(leadership: Leadership) -> Copies:
    """Return the copies that are certainly in the recorded set (R8)."""
    first, *others = leadership.possible
    return tuple(copy for copy in first if all(copy in members for members in others))


def may_acknowledge(leadership: Leadership, min_in_sync: int) -> bool:
    """Return whether enough copies are in sync to accept and acknowledge messages."""
    return len(certain_set(leadership)) >= min_in_sync


def may_read(leadership: Leadership, dispatched: int) -> bool:
    """Return whether answers that depend on dispatch are allowed (R6).

    Below the start of the epoch, the previous master may have shown more to consumers.
    """
    return min(leadership.confirmed, dispatched) >= leadership.start


# ---- joining and leaving ---------------------------------------------------------------------


def has_confirmed_log(leadership: Leadership, ack: Ack) -> bool:
    """Return whether a copy has everything up to the confirm offset, as it must to join."""
    return ack.offset >= leadership.confirmed


def has_reached_start(leadership: Leadership, ack: Ack) -> bool:
    """Return whether a copy has reached the epoch's start: a new confirm offset is volatile."""
    return ack.offset >= leadership.start


def has_answered_tables(leadership: Leadership, ack: Ack) -> bool:
    """Return whether a copy has every answered table change, as it must to join (R7)."""
    return ack.tables >= leadership.confirmed_tables


JOIN_CONDITIONS: Final[tuple[Callable[[Leadership, Ack], bool], ...]] = (
    has_confirmed_log,
    has_reached_start,
    has_answered_tables,
)


def is_deposed_holder(leadership: Leadership, copy: Copy) -> bool:
    """Return whether a copy is the deposed holder and not yet a follower; if so, it leaves (R9)."""
    return copy == leadership.base.record.deposed and _ack_of(leadership, copy) is None


def wanted_set(leadership: Leadership, unfit: Collection[Copy]) -> Copies:
    """Return the set that the record should hold, without `unfit` copies."""
    record = leadership.base.record
    wanted = [
        copy
        for copy in record.in_sync
        if copy == leadership.me or not (copy in unfit or is_deposed_holder(leadership, copy))
    ]
    for ack in leadership.acks:
        if ack.copy in (*record.in_sync, *unfit) or ack.copy.ordinal == leadership.me.ordinal:
            continue
        others = [copy for copy in wanted if copy.ordinal != ack.copy.ordinal]
        if len(others) < record.copies and all(rule(leadership, ack) for rule in JOIN_CONDITIONS):
            wanted = [*others, ack.copy]
    return tuple(sorted(wanted))


def wants_write(leadership: Leadership, unfit: Collection[Copy] = ()) -> bool:
    """Return whether the set should change or an earlier write is still unsettled."""
    wanted = wanted_set(leadership, unfit)
    return leadership.possible != (wanted,)


# ---- writing the record ----------------------------------------------------------------------


def proposal(
    leadership: Leadership, unfit: Collection[Copy] = (), *, copies: int | None = None
) -> Record | None:
    """Return the record to write next, a renewal at least; None if a read must come first."""
    if leadership.must_read:
        return None
    return leadership.base.record.renewed(wanted_set(leadership, unfit), copies)


def hand_over(leadership: Leadership, target: Copy, *, leaves: bool = False) -> Record | None:
    """Return the record that makes `target` the master; None until the target has caught up.

    The master has stopped appending, and the set is unchanged. With `leaves`, the target may remove
    the old master at once.
    """
    ack = _ack_of(leadership, target)
    everything = (leadership.end, leadership.tables)
    has_caught_up = (
        ack is not None
        and target in certain_set(leadership)
        and (ack.offset, ack.tables) == everything
        and (leadership.confirmed, leadership.confirmed_tables) == everything
    )
    if leadership.must_read or not has_caught_up:
        return None
    return leadership.base.record.elected(target, leadership.epoch + 1, deposes=leaves)


def written(leadership: Leadership, record: Record) -> Leadership:
    """Record that `record` is about to be written: its set is possible from now on."""
    possible = leadership.possible
    if record.in_sync in possible:
        return leadership
    return msgspec.structs.replace(leadership, possible=(*possible, record.in_sync))


def answered(leadership: Leadership, outcome: Outcome) -> Leadership:
    """Apply the answer to a write by this master; hand-overs are handled elsewhere."""
    if outcome.answer is Answer.APPLIED and outcome.written:
        return _adopted(leadership, outcome.written)
    return msgspec.structs.replace(leadership, must_read=True)


def is_deposed(leadership: Leadership, found: Versioned) -> bool:
    """Return whether the record shows that this master is no longer the master."""
    record = found.record
    return (record.uid, record.epoch, record.holder) != (
        leadership.base.record.uid,
        leadership.epoch,
        leadership.me,
    )


def found(leadership: Leadership, read: Versioned | None) -> Leadership:
    """Apply a read of the record that does not depose this master.

    A new version settles all outstanding writes (R1), and its set is adopted. Without a record, the
    set is left unchanged, and nothing is written (decision 7).
    """
    if read is None:
        return msgspec.structs.replace(leadership, must_read=True)
    if settles(leadership, read):
        return _adopted(leadership, read)
    return msgspec.structs.replace(leadership, must_read=False)


def settles(leadership: Leadership, read: Versioned) -> bool:
    """Return whether a read settles a write: its version must differ from the base's (R1)."""
    return read.version != leadership.base.version


def _adopted(leadership: Leadership, base: Versioned) -> Leadership:
    return _advanced(
        msgspec.structs.replace(
            leadership,
            base=base,
            possible=(base.record.in_sync,),
            must_read=False,
        )
    )


# ---- confirm offset --------------------------------------------------------------------------


def _advanced(leadership: Leadership) -> Leadership:
    offset, tables = _of_all(leadership)
    offset = max(leadership.confirmed, offset)
    tables = max(leadership.confirmed_tables, tables)
    if (offset, tables) == (leadership.confirmed, leadership.confirmed_tables):
        return leadership
    return msgspec.structs.replace(leadership, confirmed=offset, confirmed_tables=tables)


def _of_all(leadership: Leadership) -> tuple[int, int]:
    """Return the offset and table changes that every member of the maximal set has."""
    offset, tables = leadership.end, leadership.tables
    for copy in maximal_set(leadership):
        if copy != leadership.me:
            ack = _ack_of(leadership, copy)
            if ack is None:
                return 0, 0
            offset, tables = min(offset, ack.offset), min(tables, ack.tables)
    return offset, tables


def _ack_of(leadership: Leadership, copy: Copy) -> Ack | None:
    return next((ack for ack in leadership.acks if ack.copy == copy), None)
