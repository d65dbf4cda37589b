# SPDX-License-Identifier: Apache-2.0
"""Checks whether there is room for the SQL filters in heartbeats, and compiles them."""

from collections.abc import Callable, Collection
from functools import partial

from cometmq.broker.filters.compiling import Compiler, Who
from cometmq.broker.filters.sql import EXPRESSION_TYPE
from cometmq.broker.limits import FILTER_CHARS, FILTERS, Room
from cometmq.broker.names import TOPIC_CHARS_MAX
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.log import Log
from cometmq.runtime.limits import LimitReached


def chars_of(subscription: SubscriptionData) -> int:
    """Return how many characters a filter counts."""
    return len(subscription.topic) + len(subscription.sub_string)


class ArrivingFilters:
    """Admits and compiles filters. Each counts against the limit of the peer that added it."""

    def __init__(
        self, compiler: Compiler, ready: Callable[[str, SubscriptionData], None], log: Log
    ) -> None:
        """`ready` is called with the group and the subscription of each compiled filter."""
        self.compiler = compiler
        self._ready = ready
        self._log = log
        self._waiting: dict[str, dict[str, SubscriptionData]] = {}
        """The subscriptions that wait for the compiler, by group and topic."""
        self._count = self._chars = 0  # of these
        self._owners: dict[tuple[str, str], tuple[str, int]] = {}
        """The peer that added each filter, and the filter's characters."""
        self.released: Callable[[str, int], None] = lambda _peer, _chars: None
        """Called with the peer and the characters of each filter that is removed."""

    def admit(
        self, group: str, subscription: SubscriptionData, room: Room, *, count: int, chars: int
    ) -> None:
        """Raise LimitReached if there is no room for a filter, or for its characters.

        `count` and `chars` are the number and the characters of the filters already compiled.
        """
        key = group, subscription.topic
        count += self._count
        chars += self._chars
        room.check_journal()
        limits, known = room.limits, self._owners.get(key)
        owner, owned = known or (room.peer, 0)
        more = chars_of(subscription) - owned
        if more > 0:
            limits.admit(FILTER_CHARS, chars, owner, more)
        if known is None:
            try:
                limits.admit(FILTERS, count, owner)
            except LimitReached:
                limits.release(FILTER_CHARS, owner, more)
                raise
        if more < 0:
            limits.release(FILTER_CHARS, owner, -more)
        self._owners[key] = owner, owned + more

    def start(self, group: str, subscription: SubscriptionData, who: Who) -> None:
        """Compile a filter that a requester has sent."""
        if subscription.expression_type != EXPRESSION_TYPE:
            self._ready(group, subscription)  # which refuses it
            return
        key = group, subscription.topic
        self._take(*key)
        self._waiting.setdefault(group, {})[subscription.topic] = subscription
        self._count += 1
        self._chars += chars_of(subscription)
        try:
            self.compiler.when_ready(
                subscription.sub_string, partial(self._compiled, group, subscription), who
            )
        except SystemBusy:
            self._take(*key)
            self.disown(*key)
            self.refuse(group, subscription)

    def _compiled(self, group: str, subscription: SubscriptionData) -> None:
        if self._waiting.get(group, {}).get(subscription.topic) is not subscription:
            return  # the group has left or changed its subscription meanwhile
        self._take(group, subscription.topic)
        self._ready(group, subscription)

    def _take(self, group: str, topic: str) -> None:
        topics = self._waiting.get(group, {})
        subscription = topics.pop(topic, None)
        if subscription is not None:
            self._count -= 1
            self._chars -= chars_of(subscription)
            if not topics:
                del self._waiting[group]

    def cancel(self, group: str, wanted: Collection[str] = ()) -> None:
        """Do not compile the group's waiting filters, except those for the topics in `wanted`."""
        for topic in [one for one in self._waiting.get(group, ()) if one not in wanted]:
            self._take(group, topic)
            self.disown(group, topic)

    def disown(self, group: str, topic: str) -> None:
        owner = self._owners.pop((group, topic), None)
        if owner is not None:
            self.released(*owner)

    def refuse(self, group: str, subscription: SubscriptionData) -> None:
        topic = subscription.topic[:TOPIC_CHARS_MAX]
        self._log.warning("filter.refused", group=group, topic=topic)
