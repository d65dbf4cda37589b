# SPDX-License-Identifier: Apache-2.0
"""The model of a cluster, as one snapshot shows it.

A known figure is a number or a collection, which may be 0 or empty; a missing one is `Unknown` with
the reason. A broker that does not answer has the state `Unreachable`. Everything is immutable and
can be written as JSON by msgspec. No struct can be part of a reference cycle, so the garbage
collector ignores them; otherwise it would take half the time of a snapshot.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeGuard, TypeVar

import msgspec

from cometmq.client.admin.figures import BrokerFigures
from cometmq.insight.words import listed
from cometmq.remoting.bodies.overview import GroupHabit
from cometmq.remoting.integers import whole
from cometmq.remoting.message.flags import Perm

T = TypeVar("T")


class Since(msgspec.Struct, frozen=True, gc=False):
    """When a condition began; `is_bound` is set if it may have begun earlier."""

    ms: int
    is_bound: bool = False


class Unknown(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="unknown"):
    """A figure that is missing, and why."""

    reason: str
    is_silence: bool = False
    """Whether the broker has not answered; if false, it does not report the figure."""
    is_new: bool = False
    """Whether the next snapshots have the figure, because it takes several to measure it."""


class Trouble(StrEnum):
    """Why a broker counts as unreachable."""

    DOWN = "down"
    HANGS = "hangs"
    REFUSES = "refuses"
    GARBLED = "garbled"
    """The server at the address answers, but not as a broker does."""
    GONE = "gone"
    """No name server lists the broker, although one did before, or although it is expected."""


class Unreachable(msgspec.Struct, frozen=True, gc=False, tag="unreachable"):
    """A broker that does not answer."""

    trouble: Trouble
    reason: str
    since: Since


class Disk(msgspec.Struct, frozen=True, gc=False, tag="disk"):
    """The disk of a commit log."""

    used_ratio: float
    total_bytes: int | None = None
    free_bytes: int | None = None
    full_in_s: float | None = None
    """Time until the disk is full at the present growth of the log. None if the log does not grow,
    if it would take more than a year, or if there are too few snapshots.
    """


class MemoryPart(msgspec.Struct, frozen=True, gc=False):
    """One use of a broker's memory, and its size in bytes."""

    title: str
    size: int


class Memory(msgspec.Struct, frozen=True, gc=False, tag="memory"):
    """The memory of a broker's process."""

    resident_bytes: int
    parts: Sequence[MemoryPart]
    """The parts, the largest first; their sum is the whole."""
    peak_bytes: int | None = None
    limit_bytes: int | None = None

    @property
    def used_ratio(self) -> float | None:
        """The used share of the limit, 0 to 1; None without a limit."""
        return self.resident_bytes / self.limit_bytes if self.limit_bytes else None


class BrokerState(msgspec.Struct, frozen=True, gc=False, tag="answers"):
    """A broker that answers."""

    figures: BrokerFigures
    disk: Disk | Unknown
    behind_bytes: int | Unknown | None = None
    """The bytes of the master's log that a slave lacks; None for a master."""
    epoch: int | None = None
    """The epoch of a member of a group with failover."""
    runtime: Mapping[str, str] = {}
    """The unparsed answer to GET_BROKER_RUNTIME_INFO."""
    settings: Mapping[str, str] | None = None
    """Its settings; None if it did not return them."""
    native_share: float | None = None
    """The share of requests that took the native path, 0 to 1; None without such a path."""
    memory: Memory | Unknown = Unknown("this broker does not report its memory")

    @property
    def member_id(self) -> int | None:
        """The id of a member in its group; name servers list members by other ids."""
        return whole(self.runtime.get("groupBrokerId", ""))


class Broker(msgspec.Struct, frozen=True, gc=False):
    """One copy of a broker."""

    cluster: str
    name: str
    broker_id: int
    address: str
    state: BrokerState | Unreachable

    @property
    def is_master(self) -> bool:
        """Whether clients can send to this copy."""
        return self.broker_id == 0

    @property
    def role(self) -> str:
        """`master` or `slave`."""
        return "master" if self.is_master else "slave"


class TopicKind(StrEnum):
    """The purpose of a topic."""

    NORMAL = "normal"
    RETRY = "retry"
    DEAD_LETTERS = "dead letters"
    SYSTEM = "system"


class Topic(msgspec.Struct, frozen=True, gc=False):
    """One topic, summed over its brokers."""

    name: str
    kind: TopicKind
    perm: int
    """The permission that clients have on every broker of the topic."""
    read_queues: int
    write_queues: int
    brokers: Sequence[str]
    messages: int | Unknown
    """Messages that still exist."""
    end: int | Unknown
    """Messages stored since the topic was created."""
    in_per_s: float | Unknown
    last_write_ms: int | Unknown | None
    """When the newest message was stored; None if there is none."""
    groups: Sequence[str] = ()
    """The groups that read it or have an offset in it."""
    is_ordered: bool = False
    perms: Mapping[str, int] = {}
    """The permission that clients have, by broker."""

    @property
    def lacks(self) -> str:
        """Return what clients may not do with the topic, and at which brokers unless at all of
        them: `read or written`, `written at broker-b`; empty if they may do everything.
        """
        places: dict[tuple[str, ...], list[str]] = {}
        for bit, word in ((Perm.READ, "read"), (Perm.WRITE, "written")):
            if at := tuple(name for name, perm in self.perms.items() if not perm & bit):
                places.setdefault(at, []).append(word)
        return ", or ".join(
            " or ".join(words) + ("" if len(at) == len(self.perms) else f" at {listed(at)}")
            for at, words in places.items()
        )


class Member(msgspec.Struct, frozen=True, gc=False):
    """One connected consumer."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: Sequence[str]
    """The brokers to which it is connected."""


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """The filter with which a group reads a topic."""

    topic: str
    expression: str
    expression_type: str


class GroupTopic(msgspec.Struct, frozen=True, gc=False):
    """The progress of a group in one topic, summed over its queues."""

    topic: str
    queues: int
    committed: int
    lag: int | Unknown
    behind_s: float | Unknown
    """The age of the oldest unread message; 0 if there is none."""
    skips: int = 0
    """Messages that the group will skip, because its offset is beyond the end."""
    lost: int = 0
    """Messages that were deleted before the group read them."""
    unread_queues: int = 0
    """Messages in queues that the topic no longer offers to readers."""


class Group(msgspec.Struct, frozen=True, gc=False):
    """One consumer group, over all brokers."""

    name: str
    is_system: bool
    retries: int
    is_enabled: bool
    members: Sequence[Member] | Unknown
    model: str | None
    """CLUSTERING or BROADCASTING; None without members."""
    consume_type: str | None
    subscriptions: Sequence[Subscription]
    topics: Sequence[GroupTopic]
    lag: int | Unknown
    behind_s: float | Unknown
    """The age of the oldest unread message. It does not show when the group last read: that may
    have been a moment ago, or before this message was stored.
    """
    out_per_s: float | Unknown
    dead_letters: int | Unknown
    """All dead letters that still exist, including those that were sent again."""
    retry_backlog: int | Unknown
    """Failed messages in the retry topic that are due for redelivery and not consumed yet."""
    disagreements: Sequence[str] = ()
    """How the members' subscriptions differ."""
    missing_brokers: Sequence[str] = ()
    """The brokers without which the figures are lower bounds."""
    loss_s: float | Unknown | None = Unknown("no broker reports it")
    """Seconds until the oldest unread message may be deleted because of its age; None if nothing is
    unread.
    """
    dead_sent: int = 0
    """How many of the dead letters have been sent again by a replay of the whole topic."""
    dead_since: Since | None = None
    """When the oldest dead letter that was not sent again was stored; None if there is none."""
    has_read_nothing: bool = False
    """Whether all offsets of the group are 0 although messages are unread."""
    still_since: Since | None = None
    """Since when the group has read nothing although messages are unread; None if it reads, or if
    this is not known.
    """

    @property
    def is_broadcasting(self) -> bool:
        """Whether the members keep their own offsets, so that brokers know no progress."""
        return self.model == "BROADCASTING"

    @property
    def skips(self) -> int:
        """Messages that the group will skip."""
        return sum(it.skips for it in self.topics)

    @property
    def lost(self) -> int:
        """Messages that were deleted before the group read them."""
        return sum(it.lost for it in self.topics)

    @property
    def dead_left(self) -> int | Unknown:
        """The dead letters that were not sent again."""
        count = self.dead_letters
        return count if isinstance(count, Unknown) else count - self.dead_sent


class Producer(msgspec.Struct, frozen=True, gc=False):
    """One connected producer."""

    group: str
    client_id: str
    address: str
    language: str
    version: int
    brokers: Sequence[str]


class HalfMessages(msgspec.Struct, frozen=True, gc=False):
    """The transactions of one broker that may be open."""

    broker: str
    waiting_max: int
    """Number of half messages that were not examined yet; an upper bound of the open
    transactions.
    """


class DelayLevel(msgspec.Struct, frozen=True, gc=False):
    """The messages that wait in one delay level of a broker."""

    broker: str
    level: int
    waiting: int
    delay_text: str = ""
    """The level's delay, such as `10s`; empty if it is not known."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Requests that a broker refused for the same reason."""

    broker: str
    code: int
    """The request's code."""
    response: int
    remark: str
    peer: str
    """The address of the client that sent the newest of them."""
    subject: str
    """The topic or group in the requests; may be empty."""
    count: int
    first_ms: int
    last_ms: int


class Certificate(msgspec.Struct, frozen=True, gc=False):
    """A certificate that a program uses or trusts."""

    where: str
    """The program that has the certificate: `broker NAME:ID`, `name server ADDRESS`, `this program`
    or another name.
    """
    what: str
    """The setting that names the file; empty for a certificate that a server has shown on
    connecting.
    """
    expires_ms: int


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A cluster at one moment."""

    namesrv: str
    taken_ms: int
    took_ms: int
    brokers: Sequence[Broker]
    topics: Sequence[Topic] | Unknown
    groups: Sequence[Group] | Unknown
    producers: Sequence[Producer] | Unknown
    half_messages: Sequence[HalfMessages] | Unknown
    delayed: Sequence[DelayLevel] | Unknown
    refusals: Sequence[Refusal] | Unknown
    notes: Sequence[str] = ()
    """The figures that brokers refused to return, one line each."""
    incomplete: Mapping[str, str] = {}
    """Brokers that answered only some requests, with what is missing in all sums because of
    that.
    """
    certificates: Sequence[Certificate] = ()
    """The known certificates of the brokers, the name servers and this program."""
    unrouted: Sequence[str] | Unknown = ()
    """The topics that brokers have and name servers do not know, so that clients cannot
    find them.
    """
    habits: Sequence[tuple[str, GroupHabit]] = ()
    """What brokers have seen of the clients' libraries, each with the broker's name."""

    @property
    def missing_brokers(self) -> list[str]:
        """The broker names without an answering master; all sums lack their figures."""
        names = {it.name for it in self.brokers}
        led = {it.name for it in self.brokers if it.is_master and answers(it)}
        return sorted(names - led)

    def broker(self, name: str, broker_id: int = 0) -> Broker | None:
        """Return one copy of a broker."""
        found = (it for it in self.brokers if (it.name, it.broker_id) == (name, broker_id))
        return next(found, None)

    def topic(self, name: str) -> Topic | None:
        """Return one topic."""
        return next((it for it in known(self.topics) if it.name == name), None)

    def group(self, name: str) -> Group | None:
        """Return one group."""
        return next((it for it in known(self.groups) if it.name == name), None)


def known(rows: Sequence[T] | Unknown) -> Sequence[T]:
    """Return the rows, or none if they are unknown; for code that shows the reason elsewhere."""
    return () if isinstance(rows, Unknown) else rows


def is_silence(answer: object) -> TypeGuard[Unknown]:
    """Return whether something is unknown because a broker has not answered."""
    return isinstance(answer, Unknown) and answer.is_silence


def answers(broker: Broker) -> bool:
    """Return whether a broker answers."""
    return isinstance(broker.state, BrokerState)
