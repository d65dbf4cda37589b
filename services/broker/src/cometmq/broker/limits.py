# SPDX-License-Identifier: Apache-2.0
"""The limits of a broker's tables and queues, which peers fill, as one list (`LIMITS`), and the
check of a request against them (`Room`).

The reference page (docs/reference/limits.md), the metrics and a test that fills every table are
derived from `LIMITS`. The transport bounds connections, requests in flight and unread bytes
(`settings/limits.py`).

Compatibility: RocketMQ has none of these limits. The defaults leave room for every program that its
brokers serve in practice: 10,000 topics and 20,000 groups take a fifth of them.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.limits import Limit, Limits, Scope, address_peer

REFUSED: Final = "The request is refused."
PARTLY: Final = "The group is refused; the other groups of the heartbeat are registered."


def _limit(
    name: str,
    counts: str,
    scope: Scope = Scope.TOTAL,
    above: str = REFUSED,
    code: ResponseCode | None = None,
    *,
    fixed: int = 0,
) -> Limit:
    """Return a limit that is `fixed`, or else the value of its setting: `<name>Max`.

    The code that refuses an entry is SYSTEM_BUSY for a limit in total, which may pass, otherwise
    SYSTEM_ERROR.
    """
    usual = ResponseCode.SYSTEM_BUSY if scope is Scope.TOTAL else ResponseCode.SYSTEM_ERROR
    limit = Limit(name, counts, scope, above, fixed=fixed, answer=code or usual)
    first, *words = name.split("_")
    setting = "".join((first, *map(str.title, words), "Max"))
    return limit if fixed else limit._replace(setting=setting, bound=attrgetter(f"{name}_max"))


TOPICS: Final = _limit(
    "topics", "Topics, with retry and dead-letter topics", code=ResponseCode.TOPIC_NOT_EXIST
)
QUEUES: Final = _limit("queues", "Queues of all topics", code=ResponseCode.TOPIC_NOT_EXIST)
GROUPS: Final = _limit("groups", "Consumer groups", code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
OFFSETS: Final = _limit(
    "offsets", "Committed offsets",
    above="The commit is refused; a pull that carries it is answered.",
)  # fmt: skip
GROUP_OFFSETS: Final = _limit(
    "group_offsets",
    "Committed offsets of one group",
    Scope.GROUP,
    OFFSETS.above,
    ResponseCode.SYSTEM_BUSY,
)
UNKNOWN_OFFSETS: Final = _limit(
    "unknown_offsets", "Committed offsets of groups, topics and queues that do not exist",
    above=OFFSETS.above,
)  # fmt: skip
QUEUE_LOCKS: Final = _limit(
    "queue_locks", "Queues locked by orderly consumers",
    above="Queues above the limit are not locked. If the client locks none, the request is refused;"
    " otherwise the remark names the limit.",
)  # fmt: skip
LOCK_ITEMS: Final = _limit(
    "lock_items", "Queues in one request that locks or unlocks", Scope.REQUEST
)
LOCK_NAMES: Final = _limit(
    "lock_names", "Characters of a name in a request that locks queues", Scope.REQUEST, fixed=255
)
REGISTRATIONS: Final = _limit(
    "registrations", "Groups of connected producers and consumers, counted per connection",
    above=PARTLY,
)  # fmt: skip
CONNECTION_REGISTRATIONS: Final = _limit(
    "connection_registrations", "Groups registered by one connection", Scope.CONNECTION, PARTLY
)
CLIENT_ID_CHARS: Final = _limit(
    "client_id_chars", "Characters of a client id", Scope.REQUEST, fixed=255
)
HEARTBEAT_ITEMS: Final = _limit(  # each takes about 500 bytes
    "heartbeat_items", "Groups and topics of heartbeats that are being registered", fixed=200_000
)
HEARTBEAT_GROUPS: Final = _limit("heartbeat_groups", "Groups in one heartbeat", Scope.REQUEST)
GROUP_SUBSCRIPTIONS: Final = _limit(
    "group_subscriptions", "Topics to which one group subscribes", Scope.GROUP, PARTLY
)
SUBSCRIPTION_BYTES: Final = _limit(
    "subscription_bytes", "Bytes of the subscriptions and client ids in registrations",
    above=PARTLY,
)  # fmt: skip
CONNECTION_SUBSCRIPTION_BYTES: Final = _limit(
    "connection_subscription_bytes", "Bytes of the subscriptions that one connection registers",
    Scope.CONNECTION, PARTLY,
)  # fmt: skip
FILTERS: Final = _limit(
    "filters", "SQL92 filters, with those of groups that left in the last day",
    above="The filter is refused, and the group's pulls with it; the registrations remain.",
)  # fmt: skip
FILTER_CHARS: Final = _limit("filter_chars", "Characters of all SQL92 filters", above=FILTERS.above)
HEARTBEAT_FILTER_CHARS: Final = _limit(  # compiling them takes about 0.1 s
    "heartbeat_filter_chars", "Characters of the SQL92 filters in one heartbeat", Scope.REQUEST,
    fixed=32_768,
)  # fmt: skip
LIST_ITEMS: Final = _limit(
    "list_items", "Topics or groups in one request that creates or changes them", Scope.REQUEST,
    fixed=1_000,
)  # fmt: skip
BATCH_MESSAGES: Final = _limit(
    "batch_messages", "Messages in one batch", Scope.REQUEST, code=ResponseCode.MESSAGE_ILLEGAL
)
BATCH_KEYS: Final = _limit(  # four of each message in the largest batch
    "batch_keys",
    "Keys of all messages in one batch",
    Scope.REQUEST,
    code=ResponseCode.MESSAGE_ILLEGAL,
    fixed=262_144,
)
BATCH_PROPERTY_CHARS: Final = _limit(
    "batch_property_chars",
    "Characters of the properties in one batch, with those of the request for each message",
    Scope.REQUEST, code=ResponseCode.MESSAGE_ILLEGAL, fixed=32 << 20,
)  # fmt: skip
BATCH_BYTES: Final = _limit(
    "batch_bytes", "Bytes of large batches that are being read", fixed=128 << 20
)
QUESTIONS: Final = _limit(  # one for each member of a group
    "questions", "Questions for the offsets of consumers that wait for an answer", fixed=50_000
)
REPLY_BYTES: Final = _limit(
    "reply_bytes", "Bytes of the replies that are being handed over", fixed=128 << 20
)
COPY_BYTES: Final = _limit(
    "copy_bytes", "Bytes of messages that are sent back, or whose transactions end, until their"
    " copies are stored", fixed=128 << 20,
)  # fmt: skip
SAME_QUEUE_MAX: Final = 256
"""Maximum number of held pulls of one queue and one connection; a client has one per group."""
HELD_BYTES_MAX: Final = 256 << 20
"""Memory of all held pulls: room for the default number of them, with usual requests."""
HELD_PULLS: Final = Limit(
    "held_pulls", "Pulls that wait for messages", Scope.TOTAL,
    "The connection with most of them gets early, empty answers to half of them, also above"
    f" {HELD_BYTES_MAX >> 20} MiB, as one with more than {SAME_QUEUE_MAX} of a queue does to the"
    " oldest.",
    "pullThreadPoolQueueCapacity", lambda s: s.pull_thread_pool_queue_capacity,
)  # fmt: skip
RECALLED: Final = _limit("recalled", "Recalled messages whose delay has not passed")
JOURNAL_BYTES: Final = _limit(
    "journal_bytes", "Bytes of the journal of the tables since their last save",
    above="Commits and new entries are refused until the tables are saved; a pull that carries a"
    " commit is answered.",
)  # fmt: skip
STATISTICS: Final = Limit(
    "statistics", "Topics, and groups in topics, with statistics of their own", Scope.TOTAL,
    "Further ones share one set of statistics.", fixed=400_000,
)  # fmt: skip

LIMITS: Final = tuple(it for it in list(globals().values()) if isinstance(it, Limit))
"""All of the above."""


class JournalState(Protocol):
    """The part of the tables' journal that its limit needs."""

    @property
    def fault(self) -> str:
        """Why the journal cannot be written; empty if it can."""

    @property
    def size_bytes(self) -> int:
        """Size of the journal's files."""


class Room:
    """Checks one request against the limits. Its peer (account or address) is identified only when
    it adds an entry, because this takes time.
    """

    __slots__ = ("_account", "_account_of", "_call", "_journal", "_peer", "limits")

    def __init__(
        self,
        limits: Limits,
        journal: JournalState | None,
        call: Call[Any],
        account_of: Callable[[Call[Any]], str | None],
    ) -> None:
        """`account_of` returns the access key of a request; None if its address allowed it."""
        self.limits, self._journal, self._call = limits, journal, call
        self._account_of = account_of
        self._account: str | None = None
        self._peer: str | None = None

    @property
    def peer(self) -> str:
        """The account or address that adds entries."""
        if self._peer is None:
            self._account = self._account_of(self._call)
            named = f"the account {self._account}"
            self._peer = address_of(self._call) if self._account is None else named
        return self._peer

    @property
    def account(self) -> str | None:
        """The access key of the account that adds entries; None if no account was needed."""
        self.peer  # noqa: B018  # identifies it
        return self._account

    def requester(self) -> Requester:
        """Return who takes turns with others while the request waits for a long job: its account
        or address, with its connection.
        """
        return Requester(self.peer, self._call.peer)

    def admit(self, limit: Limit, used: int, count: int = 1) -> None:
        """Count entries that the peer is about to add; raise LimitReached if there is no room."""
        self.limits.admit(limit, used, self.peer, count)

    def check(self, limit: Limit, wanted: int, subject: str = "") -> None:
        """Raise LimitReached if `wanted` exceeds a limit of each request or entry."""
        if wanted > self.limits.maximum(limit):
            self.limits.check(limit, wanted, subject, peer=self.peer)

    def check_journal(self) -> None:
        """Raise LimitReached if no more changes of tables may be journaled."""
        if is_full(self.limits, self._journal):
            bound = self.limits.maximum(JOURNAL_BYTES)
            raise self.limits.refusal(JOURNAL_BYTES, f"{bound} are not saved yet", self.peer)


def add_entry(room: Room, limit: Limit, used: int) -> None:
    """Admit an entry of a table that is journaled; raise LimitReached if there is no room."""
    room.check_journal()
    room.admit(limit, used)


def add_topic(room: Room, topic_count: int, queue_count: int, more_queues: int) -> None:
    """Admit a topic with its queues; raise LimitReached if there is no room."""
    room.check_journal()
    room.admit(QUEUES, queue_count, more_queues)
    room.admit(TOPICS, topic_count)


def check_total(room: Room, limit: Limit, used: int, more: int = 1) -> None:
    """Raise LimitReached if a journaled table is full, whoever filled it. For requests of
    administrators, whose entries do not count against a peer's share.
    """
    room.check_journal()
    bound = room.limits.maximum(limit)
    if used + more > bound:
        raise room.limits.refusal(limit, f"there are {used} of at most {bound}", room.peer)


def is_full(limits: Limits, journal: JournalState | None) -> bool:
    """Return whether the journal is so large that changes must wait until the tables are saved.

    A journal that cannot be written does not count as full: it does not grow.
    """
    if journal is None or journal.fault:
        return False
    return journal.size_bytes >= limits.maximum(JOURNAL_BYTES)


def address_of(call: Call[Any]) -> str:
    """Return the text for the peer of a call without an account, made of its address."""
    return address_peer(call.peer.address)
