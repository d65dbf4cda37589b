# SPDX-License-Identifier: Apache-2.0
"""How a member of a broker group reacts to orders and observations (pure).

The broker's driver passes one event at a time to `react` and adopts the new state at once. It then
performs the actions in order. Each action is complete (on disk, where specified) before the next
one begins and before the next event is passed. `SavePromise` precedes everything that depends on
it. The simulator and the exhaustive check follow the same order with their own disks.

The driver itself performs the reads of the record, which are linearizable. It passes an answer to
`react` only if the member's state has not changed since the read began; otherwise it reads again. A
member does not rely on facts in an elector's orders: it takes the master and its set from the read
(R4).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from cometmq.ha.orders import Fence, Follow, HandOver, Order, Promote
from cometmq.ha.port import Answer
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.ha.role import Role
from cometmq.remoting.errors import CometError


class OrderRefusal(StrEnum):
    """Why an order was refused; the names are sent to the elector."""

    STALE_EPOCH = "STALE_EPOCH"
    NOT_IN_SYNC = "NOT_IN_SYNC"
    NOT_MASTER = "NOT_MASTER"
    RECOVERING = "RECOVERING"
    STORE_FAILED = "STORE_FAILED"


class OrderRefused(CometError):
    """An order does not fit the member's state; nothing has changed."""

    def __init__(self, reason: OrderRefusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member's state. `promised` equals the value on disk once the actions are done."""

    me: Copy
    promised: int
    role: Role = Role.RECOVERING
    epoch: int = 0
    """The epoch in which the member is master or follows a master; 0 otherwise."""
    master: int | None = None
    """The ordinal of the master that the member follows."""
    successor: int | None = None
    """The ordinal of the member to which this master hands over."""
    found: Versioned | None = None
    """The version of the record that made the member master."""
    is_held: bool = False
    """Whether an order fenced the member, which therefore may not elect itself."""


# ---- events, beside orders: the member's own observations ------------------------------------


class Recovered(msgspec.Struct, frozen=True):
    """Recovery at startup or from a full disk is complete; history and state are saved (R2, R5)."""


class RecordRead(msgspec.Struct, frozen=True):
    """The member has read the record; `found` is None if there is none."""

    found: Versioned | None


class EpochSeen(msgspec.Struct, frozen=True):
    """A replica, a name server, a watch or a call mentioned this epoch."""

    epoch: int


class Opened(msgspec.Struct, frozen=True):
    """The epoch's entry is saved, and everything before its start is dispatched."""

    epoch: int


class LeaseLapsed(msgspec.Struct, frozen=True):
    """The master may no longer acknowledge (`cometmq.ha.fencing.is_lapsed`)."""


class Abandoned(msgspec.Struct, frozen=True):
    """The hand-over was abandoned before its write was sent."""


class HandedOver(msgspec.Struct, frozen=True):
    """The answer to the write that makes `target` the master of `epoch`."""

    answer: Answer
    target: int
    epoch: int


class StoreFailed(msgspec.Struct, frozen=True):
    """An append or an fsync failed permanently."""


Observation = (
    Recovered | RecordRead | EpochSeen | Opened | LeaseLapsed | Abandoned | HandedOver | StoreFailed
)
Event = Order | Observation


# ---- actions ---------------------------------------------------------------------------------


class ReadRecord(msgspec.Struct, frozen=True):
    """Start a read of the record; the answer arrives as `RecordRead`."""


class SavePromise(msgspec.Struct, frozen=True):
    """Save the promise and wait for its fsync (`cometmq.ha.state.promised`)."""

    epoch: int


class StopFollowing(msgspec.Struct, frozen=True):
    """Close the connection to the master; drop bytes that still arrive from it."""


class StartFollowing(msgspec.Struct, frozen=True):
    """Connect to a master, truncate to the common point, and copy its log."""

    master: int
    epoch: int


class BeginEpoch(msgspec.Struct, frozen=True):
    """Begin the epoch at the end of the log, save it, dispatch the log; `Opened` follows."""

    epoch: int


class Lead(msgspec.Struct, frozen=True):
    """Call `cometmq.ha.in_sync.lead`, register with the name servers, and open to clients."""

    found: Versioned


class CloseToClients(msgspec.Struct, frozen=True):
    """End the leadership: drop pending answers, refuse requests, close all connections."""


class Serving(msgspec.Struct, frozen=True):
    """An action that only changes which requests are served: the exhaustive check skips it."""


class HoldRequests(Serving, frozen=True):
    """Hold back new requests instead of appending them; hand over once the target has caught up."""

    target: int


class ServeHeld(Serving, frozen=True):
    """Append the requests that were held back; none of them has been forwarded."""


class ForwardHeld(msgspec.Struct, frozen=True):
    """End the leadership; forward the held requests, and later ones, to the new master."""

    target: int


class Claim(msgspec.Struct, frozen=True):
    """Replace `base` with `record`: the restarted holder elects itself again (decision 1), and
    reads.
    """

    base: Versioned
    record: Record


Duty = (
    StopFollowing
    | StartFollowing
    | BeginEpoch
    | Lead
    | CloseToClients
    | HoldRequests
    | ServeHeld
    | ForwardHeld
)
"""The actions that the broker performs; the driver performs all others."""
Action = ReadRecord | SavePromise | Claim | Duty
Reaction = tuple[Member, tuple[Action, ...]]


def react(member: Member, event: Event) -> Reaction:
    """Return the state after an event, and the actions that the driver has to perform.

    A meaningless observation changes nothing; an order that does not fit raises OrderRefused.
    """
    rule = TRANSITIONS.get((member.role, type(event)))
    if rule is not None:
        return rule(member, event)
    if isinstance(event, Order):
        raise _refusal_of_role(member, event)
    return member, ()


def accepts(member: Member, epoch: int) -> bool:
    """Return whether a handshake or data from this epoch's master may be accepted (R3)."""
    return epoch >= member.promised


def may_open(member: Member, record: Record) -> bool:
    """Return whether the record makes this member master without another election.

    A promised epoch is not reused: the process may have opened it before it restarted (R4).
    """
    return is_named(member, record) and record.epoch > member.promised


def is_named(member: Member, record: Record) -> bool:
    """Return whether the record names exactly this copy, with this incarnation (R2)."""
    return record.holder == member.me and member.me in record.in_sync


def promise_of_follower(member: Member, epoch: int) -> int:
    """Return the promise that a follower saves before it truncates: its master's epoch (R3)."""
    return max(member.promised, epoch)


# ---- rules -----------------------------------------------------------------------------------


def _recovered(member: Member, event: Recovered) -> Reaction:
    return _changed(member, Role.SLAVE), (ReadRecord(),)


def _record_while_no_master(member: Member, event: RecordRead) -> Reaction:
    """Open, claim leadership in a new epoch, or follow the holder."""
    found = event.found
    if found is None:
        return member, ()
    record = found.record
    if may_open(member, record):
        epoch = record.epoch
        after = _changed(member, Role.PROMOTING, epoch=epoch, promised=epoch, found=found)
        return after, (StopFollowing(), SavePromise(epoch), BeginEpoch(epoch))
    if is_named(member, record) and not member.is_held:
        epoch = max(member.promised, record.epoch) + 1
        return member, (Claim(found, record.elected(member.me, epoch)),)
    if record.holder.ordinal == member.me.ordinal or not accepts(member, record.epoch):
        return member, ()  # the holder is an earlier incarnation, or a promise is newer
    return _follow(member, Follow(record.epoch, record.holder.ordinal))


def _record_while_promoting(member: Member, event: RecordRead) -> Reaction:
    """Abandon the promotion if the record has moved on to a later epoch."""
    if event.found is None or event.found.record.epoch <= member.epoch:
        return member, ()
    return _changed(member, Role.FENCED), (ReadRecord(),)


def _record_while_master(member: Member, event: RecordRead) -> Reaction:
    """Stop if the record names a different master or epoch; a missing record changes nothing."""
    if event.found is None or member.found is None:
        return member, ()
    mine, read = member.found.record, event.found.record
    if (read.uid, read.epoch, read.holder) == (mine.uid, mine.epoch, mine.holder):
        return member, ()
    return _step_down(member)


def _record_while_handing_over(member: Member, event: RecordRead) -> Reaction:
    """Follow the successor if the record names it before the write is answered."""
    if event.found is not None and member.found is not None:
        mine, read = member.found.record, event.found.record
        is_later = read.uid == mine.uid and read.epoch > mine.epoch
        if is_later and read.holder.ordinal == member.successor:
            return _follow_successor(member, Follow(read.epoch, member.successor))
    return _record_while_master(member, event)


def _follow(member: Member, event: Follow) -> Reaction:
    if not accepts(member, event.epoch):
        raise _stale(member, event.epoch)
    if event.master == member.me.ordinal:
        text = f"broker {event.master} cannot follow itself: epoch {event.epoch}"
        raise OrderRefused(OrderRefusal.NOT_IN_SYNC, text)
    if (member.role, member.epoch, member.master) == (Role.SLAVE, event.epoch, event.master):
        return member, ()
    promised = promise_of_follower(member, event.epoch)
    after = _changed(member, Role.SLAVE, epoch=event.epoch, master=event.master, promised=promised)
    start = StartFollowing(event.master, event.epoch)
    return after, (StopFollowing(), *_save(member, after), start)


def _follow_as_master(member: Member, event: Follow) -> Reaction:
    if event.epoch <= member.epoch:
        raise _stale(member, event.epoch)
    after, actions = _follow(member, event)
    return after, (CloseToClients(), *actions)


def _follow_while_handing_over(member: Member, event: Follow) -> Reaction:
    if event.master == member.successor and event.epoch > member.epoch:
        return _follow_successor(member, event)
    return _follow_as_master(member, event)


def _follow_successor(member: Member, event: Follow) -> Reaction:
    """Follow the successor without failing any request: the held requests are forwarded to it."""
    after, actions = _follow(member, event)
    return after, (ForwardHeld(event.master), *actions)


def _promote(member: Member, event: Promote) -> Reaction:
    if event.epoch <= member.promised:
        raise _stale(member, event.epoch)
    return member, (ReadRecord(),)


def _promote_as_master(member: Member, event: Promote) -> Reaction:
    if event.epoch < member.epoch:
        raise _stale(member, event.epoch)
    return member, (ReadRecord(),) if event.epoch > member.epoch else ()


def _fence(member: Member, event: Fence) -> Reaction:
    """Obey the order; the member may not elect itself afterwards."""
    if event.epoch < member.promised:
        raise _stale(member, event.epoch)
    after = _changed(member, Role.FENCED, promised=event.epoch, is_held=True)
    return after, (StopFollowing(), *_save(member, after))


def _fence_as_master(member: Member, event: Fence) -> Reaction:
    after, actions = _fence(member, event)
    return after, (CloseToClients(), *actions)


def _epoch_seen(member: Member, event: EpochSeen) -> Reaction:
    """Read the record: only the record decides whether an epoch exists."""
    return member, (ReadRecord(),) if event.epoch > max(member.epoch, member.promised) else ()


def _opened(member: Member, event: Opened) -> Reaction:
    if event.epoch != member.epoch or member.found is None:
        return member, ()
    after = msgspec.structs.replace(member, role=Role.MASTER)
    return after, (Lead(member.found),)


def _hand_over(member: Member, event: HandOver) -> Reaction:
    if event.successor == member.me.ordinal:
        raise OrderRefused(
            OrderRefusal.NOT_IN_SYNC, f"broker {event.successor} is the master already"
        )
    after = msgspec.structs.replace(member, role=Role.HANDING_OVER, successor=event.successor)
    return after, (HoldRequests(event.successor),)


def _abandoned(member: Member, event: Abandoned) -> Reaction:
    return msgspec.structs.replace(member, role=Role.MASTER, successor=None), (ServeHeld(),)


def _handed_over(member: Member, event: HandedOver) -> Reaction:
    """Follow the target, or remain master, which is safe after an unanswered write (decision 6)."""
    if event.answer is not Answer.APPLIED:
        after = msgspec.structs.replace(member, role=Role.MASTER, successor=None)
        return after, (ServeHeld(), ReadRecord())
    return _follow_successor(member, Follow(event.epoch, event.target))


def _failed(member: Member, event: StoreFailed) -> Reaction:
    return _changed(member, Role.FAILED), (CloseToClients(), StopFollowing())


def _step_down(member: Member, event: LeaseLapsed | None = None) -> Reaction:
    """End the leadership without an order; the record may let the member elect itself again."""
    return _changed(member, Role.FENCED), (CloseToClients(), ReadRecord())


def _changed(member: Member, role: Role, **changes: object) -> Member:
    """Return the member in another role; fields outside `changes` are reset."""
    fresh = Member(me=member.me, promised=member.promised, role=role)
    return msgspec.structs.replace(fresh, **changes)


def _save(member: Member, after: Member) -> tuple[SavePromise, ...]:
    return (SavePromise(after.promised),) if after.promised > member.promised else ()


def _stale(member: Member, epoch: int) -> OrderRefused:
    text = (
        f"broker {member.me.ordinal} has promised epoch {member.promised} and is {member.role} in"
        f" epoch {member.epoch}: an order for epoch {epoch} is too old"
    )
    return OrderRefused(OrderRefusal.STALE_EPOCH, text)


def _refusal_of_role(member: Member, order: Order) -> OrderRefused:
    reasons = {Role.RECOVERING: OrderRefusal.RECOVERING, Role.FAILED: OrderRefusal.STORE_FAILED}
    reason = reasons.get(member.role, OrderRefusal.NOT_MASTER)
    text = f"a broker that is {member.role} cannot obey {type(order).__name__}"
    return OrderRefused(reason, text)


TRANSITIONS: Final[Mapping[tuple[Role, type], Callable[..., Reaction]]] = {
    (Role.RECOVERING, Recovered): _recovered,
    (Role.RECOVERING, StoreFailed): _failed,
    (Role.SLAVE, RecordRead): _record_while_no_master,
    (Role.SLAVE, Promote): _promote,
    (Role.SLAVE, Follow): _follow,
    (Role.SLAVE, Fence): _fence,
    (Role.SLAVE, EpochSeen): _epoch_seen,
    (Role.SLAVE, StoreFailed): _failed,
    (Role.PROMOTING, Opened): _opened,
    (Role.PROMOTING, RecordRead): _record_while_promoting,
    (Role.PROMOTING, Promote): _promote_as_master,
    (Role.PROMOTING, Follow): _follow_as_master,
    (Role.PROMOTING, Fence): _fence,
    (Role.PROMOTING, EpochSeen): _epoch_seen,
    (Role.PROMOTING, StoreFailed): _failed,
    (Role.MASTER, RecordRead): _record_while_master,
    (Role.MASTER, Promote): _promote_as_master,
    (Role.MASTER, Follow): _follow_as_master,
    (Role.MASTER, Fence): _fence_as_master,
    (Role.MASTER, HandOver): _hand_over,
    (Role.MASTER, EpochSeen): _epoch_seen,
    (Role.MASTER, LeaseLapsed): _step_down,
    (Role.MASTER, StoreFailed): _failed,
    (Role.HANDING_OVER, RecordRead): _record_while_handing_over,
    (Role.HANDING_OVER, Promote): _promote_as_master,
    (Role.HANDING_OVER, Follow): _follow_while_handing_over,
    (Role.HANDING_OVER, Fence): _fence_as_master,
    (Role.HANDING_OVER, EpochSeen): _epoch_seen,
    (Role.HANDING_OVER, LeaseLapsed): _step_down,
    (Role.HANDING_OVER, Abandoned): _abandoned,
    (Role.HANDING_OVER, HandedOver): _handed_over,
    (Role.HANDING_OVER, StoreFailed): _failed,
    (Role.FENCED, RecordRead): _record_while_no_master,
    (Role.FENCED, Promote): _promote,
    (Role.FENCED, Follow): _follow,
    (Role.FENCED, Fence): _fence,
    (Role.FENCED, EpochSeen): _epoch_seen,
    (Role.FENCED, StoreFailed): _failed,
    (Role.FAILED, Recovered): _recovered,
}
"""Role and event -> rule. Events without a row change nothing; orders without a row are refused."""
CHANGE_THE_ROLE: Final = frozenset(event for _, event in TRANSITIONS if issubclass(event, Order))
"""The orders that are events; `Order.obeyed_in` is for all others."""
