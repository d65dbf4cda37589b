# SPDX-License-Identifier: Apache-2.0
"""The handshake of a follower with its master (pure).

The follower sends HELLO: its identity, its promise, the epoch that it wants to follow, and the
extent of its log. The master answers with WELCOME: its own log's extent, the common point, and a
digest of the bytes before it. The common point is the highest offset up to which both logs have the
same history; there the follower truncates its log, and the master continues.

Both sides compute the point. The side that finds a contradiction sends REFUSED and closes the
connection. Nothing is truncated before all checks have passed.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.ha.epochs import CommonPoint, Entry, History, common_point
from cometmq.ha.record import Copy
from cometmq.remoting.errors import UNREADABLE_JSON, RemoteProtocolError
from cometmq.remoting.types import Buffer
from cometmq.store.log.damage import DamagedRange, clipped, merged

DAMAGE_COUNT_MAX: Final = 16
"""Maximum number of damaged ranges in HELLO; the compared bytes have fewer blocks."""

DIGEST_BYTES_MAX: Final = 64 << 10
"""Maximum number of bytes compared before the common point."""


class Identity(msgspec.Struct, frozen=True):
    cluster: str
    group: str
    copy: Copy


class LogExtent(msgspec.Struct, frozen=True, rename="camel"):
    """The bounds of a log and the epochs in which it was written."""

    first: int
    end: int
    file_size: int
    history: History


class Hello(msgspec.Struct, frozen=True, rename="camel"):
    identity: Identity
    promised: int
    epoch: int
    """The epoch whose master the follower wants to follow."""
    master: int
    log: LogExtent
    tables: int = -1
    """Table changes of this epoch that the follower has; -1 if it needs the complete tables."""
    damage: tuple[DamagedRange, ...] = ()
    """The last damaged ranges of the follower's log; the digest must not contain them."""


class Digest(msgspec.Struct, frozen=True):
    """The digest of the bytes from `start` up to the common point; empty if there are no bytes."""

    start: int
    value: str = ""


class Welcome(msgspec.Struct, frozen=True, rename="camel"):
    identity: Identity
    epoch: int
    log: LogExtent
    start: int
    """Where the follower truncates its log, and where the master continues."""
    digest: Digest
    confirmed: int


class Refused(msgspec.Struct, frozen=True):
    reason: str
    """A value of `Unfit`; a newer version of CometMQ may send further values."""
    text: str
    epoch: int = 0
    """The highest epoch that the sender knows."""


class Offer(msgspec.Struct, frozen=True):
    """What a master offers to its followers: its identity, epoch and log."""

    identity: Identity
    epoch: int
    log: LogExtent


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def decode_handshake(body: memoryview, body_type: type[BodyT]) -> BodyT:
    try:
        found = msgspec.json.decode(body, type=body_type)
    except UNREADABLE_JSON as error:
        raise RemoteProtocolError(f"{body_type.__name__} cannot be read: {error}") from error
    log = getattr(found, "log", None)
    fault = _fault(log) if isinstance(log, LogExtent) else ""
    if fault:
        raise RemoteProtocolError(f"{body_type.__name__} contradicts itself: {fault}")
    return found


def _fault(log: LogExtent) -> str:
    if not 0 <= log.first <= log.end:
        return f"its log begins at {log.first} and ends at {log.end}"
    before = Entry(0, -1)
    for entry in log.history:
        if entry.epoch <= before.epoch or entry.start <= before.start or entry.start > log.end:
            return f"in its history, {tuple(entry)} cannot follow {tuple(before)}"
        before = entry
    return ""


def check_hello(hello: Hello, offer: Offer) -> None:
    mine, theirs = offer.identity, hello.identity
    _check_place(mine, theirs)
    if theirs.copy.ordinal == mine.copy.ordinal:
        raise UnfitLog(
            Unfit.DUPLICATE,
            f"a broker with the id {mine.copy.ordinal} wants to follow the master, whose id it is",
        )
    if hello.promised > offer.epoch:
        raise UnfitLog(
            Unfit.STALE_EPOCH,
            f"broker {theirs.copy.ordinal} has promised epoch {hello.promised}; this master's is"
            f" {offer.epoch}",
        )
    if (hello.epoch, hello.master) != (offer.epoch, mine.copy.ordinal):
        raise UnfitLog(
            Unfit.NOT_MASTER,
            f"broker {theirs.copy.ordinal} wants broker {hello.master} in epoch {hello.epoch};"
            f" this is broker {mine.copy.ordinal}, the master of epoch {offer.epoch}",
        )
    _check_file_size(offer.log, hello.log)


def check_welcome(welcome: Welcome, hello: Hello) -> CommonPoint:
    """Return where to truncate the follower's log, before `check_digest`; or raise UnfitLog."""
    _check_place(hello.identity, welcome.identity)
    if welcome.epoch != hello.epoch or welcome.epoch < hello.promised:
        raise UnfitLog(
            Unfit.STALE_EPOCH,
            f"the master offers epoch {welcome.epoch}; epoch {hello.epoch} is wanted and"
            f" {hello.promised} is promised",
        )
    if welcome.identity.copy.ordinal != hello.master:
        raise UnfitLog(
            Unfit.NOT_MASTER,
            f"broker {welcome.identity.copy.ordinal} answers instead of broker {hello.master}",
        )
    _check_file_size(welcome.log, hello.log)
    point = meeting_point(hello.log, welcome.log)
    if point.offset != welcome.start:
        raise UnfitLog(
            Unfit.DIVERGED,
            f"the master continues at {welcome.start}, but the logs have {point.offset} in common",
        )
    start = welcome.digest.start
    if not digest_start(point.offset, welcome.log, hello.log) <= start <= point.offset:
        raise UnfitLog(Unfit.PROTOCOL, f"the master compares from {start} to {point.offset}")
    return point


def meeting_point(follower: LogExtent, master: LogExtent) -> CommonPoint:
    """Return the common point, for an empty log the master's first offset; or raise UnfitLog."""
    if not follower.end:
        return CommonPoint(master.first, ())
    point = common_point(follower.history, follower.end, master.history, master.end)
    if point.offset < master.first:
        raise UnfitLog(
            Unfit.EXPIRED,
            f"the logs agree up to {point.offset}, but the master's begins at {master.first}",
        )
    if point.offset < follower.first:
        raise UnfitLog(
            Unfit.DIVERGED,
            f"the logs agree up to {point.offset}, but the follower's begins at {follower.first}",
        )
    return point


def digest_start(point: int, *logs: LogExtent) -> int:
    """Return where the compared bytes begin: in both logs, one file, DIGEST_BYTES_MAX at most."""
    if point <= 0:
        return 0
    file_start = (point - 1) // logs[0].file_size * logs[0].file_size
    return min(point, max(point - DIGEST_BYTES_MAX, file_start, *(log.first for log in logs)))


def intact_start(start: int, point: int, *damaged: Iterable[DamagedRange]) -> int:
    """Return where the compared bytes begin if damaged ranges are left out: `start` or higher."""
    found = clipped(merged(it for ranges in damaged for it in ranges), start, point)
    return found[-1].end if found else start


def digest(data: Buffer) -> str:
    """Return the digest of bytes of the log; an empty text if there are no bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest() if data else ""


def check_digest(welcome: Welcome, hello: Hello, data: Buffer) -> None:
    """Raise UnfitLog if the follower's bytes before the common point differ from the master's.

    The last bytes have no checksum yet, so either copy may be right; neither is changed.
    """
    if digest(data) != welcome.digest.value:
        raise UnfitLog(
            Unfit.DIFFERENT,
            f"by their epochs, the logs agree up to {welcome.start}, but the bytes from"
            f" {welcome.digest.start} on differ; the follower's log ends at {hello.log.end}",
        )


def _check_place(mine: Identity, theirs: Identity) -> None:
    for name, ours, other in (
        ("cluster", mine.cluster, theirs.cluster),
        ("group", mine.group, theirs.group),
    ):
        if ours != other:
            raise UnfitLog(
                Unfit.FOREIGN,
                f"broker {theirs.copy.ordinal} belongs to {name} {other!r}, this one to {ours!r}",
            )


def _check_file_size(master: LogExtent, follower: LogExtent) -> None:
    if master.file_size != follower.file_size:
        raise UnfitLog(
            Unfit.FILE_SIZE,
            f"the master has mappedFileSizeCommitLog={master.file_size}, the follower"
            f" {follower.file_size}",
        )
