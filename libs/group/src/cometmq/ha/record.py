# SPDX-License-Identifier: Apache-2.0
"""A broker group's consensus record: its master, its epoch, and the copies in sync (pure).

One record orders all elections and all changes of the in-sync set. It changes only by
compare-and-swap and is stored in a Kubernetes Lease, an etcd key, a file or memory;
`cometmq.ha.port` states what such a backend must guarantee.

The master builds records with `renewed`; elections and hand-overs use `elected`. The rules that
decide which records may be written are in `cometmq.ha.in_sync`, `election` and `missing_record`.
"""

from collections.abc import Iterable
from typing import Self

import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON, CometError


class RecordDamaged(CometError):
    """A backend does not contain a valid consensus record; the message names the fault."""


class Copy(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One store of the group: its broker's ordinal, and the incarnation of its data (R2).

    The random incarnation is replaced whenever the store may have lost something acknowledged.
    """

    ordinal: int
    incarnation: str


class Record(msgspec.Struct, frozen=True, rename="camel", omit_defaults=False):
    """The state of a broker group on which all its members agree."""

    uid: str
    """Random, set at creation, so that no write to a deleted record changes its successor (R10)."""
    group: str
    """The broker name, so that the record of one group cannot serve another."""
    epoch: int
    """Incremented by each election and hand-over; each epoch has one holder."""
    holder: Copy
    in_sync: tuple[Copy, ...]
    """Sorted, with the holder. Each has every acknowledged message, and may become master."""
    copies: int = 2
    """Number of stores that the group should have: the largest size of the set."""
    deposed: Copy | None = None
    """The previous holder, which the winner removes (R9); None if it handed over or elected itself.
    """
    serial: int = 0
    """Incremented by every write, so that every write changes the content and thus the version."""

    def elected(self, winner: Copy, epoch: int, *, deposes: bool = True) -> Self:
        """Return the record that makes `winner` the holder of `epoch`; the set is unchanged (R9).

        A hand-over passes `deposes=False`. Raise ValueError if `epoch` is not a later one.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not above {self.epoch}, the epoch of the record")
        deposed = self.holder if deposes and winner != self.holder else None
        return msgspec.structs.replace(
            self, holder=winner, epoch=epoch, deposed=deposed, serial=self.serial + 1
        )

    def renewed(self, in_sync: Iterable[Copy] | None = None, copies: int | None = None) -> Self:
        """Return the record that the holder writes next; the set outlasts a smaller `copies`."""
        members = self.in_sync if in_sync is None else tuple(sorted(in_sync))
        if copies is None:
            copies = self.copies
        return msgspec.structs.replace(
            self, in_sync=members, copies=max(copies, len(members)), serial=self.serial + 1
        )

    def member(self, ordinal: int) -> Copy | None:
        """Return a broker's recorded copy; None if it is not in the set."""
        return next((copy for copy in self.in_sync if copy.ordinal == ordinal), None)


class Versioned(msgspec.Struct, frozen=True):
    """A record as read, with the version that a compare-and-swap checks for equality."""

    record: Record
    version: str


def may_replace(current: Versioned | None, base: Versioned, record: Record) -> bool:
    """Return whether a compare-and-swap based on `base` may change `current`.

    The uid counts: a late write to a deleted record must not change its successor (R10).
    """
    return (
        current is not None
        and current.version == base.version
        and current.record.uid == base.record.uid == record.uid
    )


def encode_record(record: Record) -> bytes:
    """Return the record as one line of JSON."""
    return msgspec.json.encode(record)


def decode_record(data: bytes, *, place: str) -> Record:
    """Parse the record in `data`; if it is invalid, raise RecordDamaged, which names `place`."""
    try:
        record = msgspec.json.decode(data, type=Record)
    except UNREADABLE_JSON as error:
        raise RecordDamaged(f"the record in {place} cannot be read: {error}") from error
    fault = _fault(record)
    if fault:
        raise RecordDamaged(f"the record in {place} contradicts itself: {fault}")
    return record


def _fault(record: Record) -> str:
    ordinals = [copy.ordinal for copy in record.in_sync]
    if record.epoch < 1:
        return f"epoch {record.epoch} is below 1"
    if record.holder not in record.in_sync:
        return f"its holder, ordinal {record.holder.ordinal}, is not in the in-sync set {ordinals}"
    if list(record.in_sync) != sorted(record.in_sync) or len(set(ordinals)) != len(ordinals):
        return f"the in-sync set {ordinals} is not sorted by ordinal without repetition"
    if len(ordinals) > record.copies:
        return f"{len(ordinals)} members are in sync, but the group has {record.copies} copies"
    return ""
