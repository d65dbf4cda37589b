# SPDX-License-Identifier: Apache-2.0
"""The columns of a request's row in `RequestCode`: headers, bodies, rights, and how servers treat
the request.

A row names no function. A service serves a request with the function of its handler modules that
has the name of the code in lower case, or the name in `handler` if several codes share a function
(`handlers_of`).
"""

from enum import Enum
from typing import Any, Final

import msgspec

from cometmq.remoting.bodies.codec import BodyCodec
from cometmq.remoting.types import Direction


class NoHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request or reply without ext fields of its own."""


NO_HEADER: Final = NoHeader


class Service(Enum):
    """A program that answers requests."""

    BROKER = "broker"
    NAMESRV = "name server"
    CLIENT = "client"


class Kind(Enum):
    """The condition under which a member of a broker group serves a request.

    Rules (R6, R7) and decision 8 are those of docs/concepts/replication.md.
    """

    ALWAYS = "always"
    """Served by every member: the request changes no replicated table and reveals no end of a
    queue.
    """
    PUT = "put"
    """The store decides whether the request is accepted and when it is answered."""
    CHANGE = "change"
    """The request changes tables, and is answered when the copies have the change (R7).

    Like a message, it is refused while fewer copies than `minInSync` are in sync.
    """
    UNLOGGED = "unlogged"
    """Answered only by a master that is certain not to have been replaced (decision 8)."""
    COMMIT = "commit"
    """As `UNLOGGED`, and answered when the copies have the change, unless the request is oneway.
    The request is accepted even with too few copies in sync: acknowledged messages can still be
    consumed then, and losing a commit with the last copy only causes redelivery.
    """
    READ = "read"
    """The answer shows the ends of queues, which must never decrease (R6)."""


class Need(Enum):
    """What an account needs for a request: a right (SUB or PUB) on a name, or only a signature."""

    SIGNATURE = "signature"
    """Any account: the request changes nothing."""
    NOTHING = "nothing"
    """No account: every client may have the answer."""
    ADMIN = "admin"
    CONSUME = "consume"
    """SUB on the topics and groups in the header fields that `Access.fields` lists."""
    SEND = "send"
    """PUB on the header's topic; SUB if it is a group's retry topic."""
    REPLY = "reply"
    """As `SEND`; with the rights of RocketMQ 4.9, no right is needed for a reply topic."""
    HEARTBEAT = "heartbeat"
    """SUB on the groups and topics in the body, and PUB on some topic for a producer group."""
    LOCKS = "locks"
    """SUB on the group and the topics in the body."""
    STORED = "stored"
    """The header has only the position of a message, so the handler checks the right to its
    topic.
    """


class Access(msgspec.Struct, frozen=True):
    """The right that a request needs; `fields` are the header fields that `CONSUME` examines, in
    order.

    With `is_of_5`, the right is needed only with RocketMQ 5's rights; with those of 4.9, a
    signature suffices.
    """

    need: Need
    fields: tuple[str, ...] = ()
    is_of_5: bool = False


SIGNED: Final = Access(Need.SIGNATURE)
PUBLIC: Final = Access(Need.NOTHING)
ADMIN: Final = Access(Need.ADMIN)
ADMIN_OF_5: Final = Access(Need.ADMIN, is_of_5=True)
SEND: Final = Access(Need.SEND)
REPLY: Final = Access(Need.REPLY)
HEARTBEAT: Final = Access(Need.HEARTBEAT)
LOCKS: Final = Access(Need.LOCKS, is_of_5=True)
STORED: Final = Access(Need.STORED, is_of_5=True)


def consume(*fields: str, is_of_5: bool = False) -> Access:
    """Return the access that demands SUB on the topic or group in each of these header fields."""
    return Access(Need.CONSUME, fields, is_of_5)


class Command(msgspec.Struct, frozen=True):
    """One row of `RequestCode`: everything that servers, clients, documents and tests derive from
    it.
    """

    code: int
    access: Access = PUBLIC
    kind: Kind = Kind.ALWAYS
    header_type: type[msgspec.Struct] = NO_HEADER
    reply_type: type[msgspec.Struct] = NO_HEADER
    services: tuple[Service, ...] = ()
    """The programs that answer. If broker and client do, tools send the request to the broker,
    which forwards it to the client.
    """
    body: BodyCodec[Any] | None = None
    reply_body: BodyCodec[Any] | None = None
    oneway: bool = False
    """Senders usually do not wait; a server still answers if the request's flag asks for it."""
    handler: str = ""
    has_second_port: bool = True
    """Whether the port for urgent requests (`listenPort` - 2) serves it, too."""
    notes_detour: bool = False
    """Whether the handler itself notes why no native lane has served a request. For all other
    requests, `broker.handlers` notes that they have no native form.
    """
    is_small: bool = False
    """Whether the answer is no larger than the request, although it has a body."""
    may_miss: bool = False
    """Whether tools send it with names that may not exist, so that a refusal is no fault."""

    @property
    def direction(self) -> Direction:
        """The direction in which the request usually travels."""
        to_client = Service.CLIENT in self.services
        return Direction.TO_CLIENT if to_client else Direction.TO_SERVER


def to_broker(
    code: int,
    access: Access,
    kind: Kind,
    header_type: type[msgspec.Struct] = NO_HEADER,
    reply_type: type[msgspec.Struct] = NO_HEADER,
    **more: Any,
) -> Command:
    """Return the row of a request that brokers answer; right and kind have no default."""
    more.setdefault("services", (Service.BROKER,))
    return Command(code, access, kind, header_type, reply_type, **more)


def to_namesrv(
    code: int,
    access: Access,
    header_type: type[msgspec.Struct] = NO_HEADER,
    reply_type: type[msgspec.Struct] = NO_HEADER,
    **more: Any,
) -> Command:
    """Return the row of a request that name servers answer."""
    services = (Service.NAMESRV,)
    return Command(code, access, Kind.ALWAYS, header_type, reply_type, services, **more)


def to_client(code: int, header_type: type[msgspec.Struct] = NO_HEADER, **more: Any) -> Command:
    """Return the row of a request from a broker that clients answer."""
    return Command(code, header_type=header_type, services=(Service.CLIENT,), **more)
