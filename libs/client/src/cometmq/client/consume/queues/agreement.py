# SPDX-License-Identifier: Apache-2.0
"""Checks that a group's members share subscriptions and message model, as RocketMQ requires.

A broker keeps one subscription per group and topic, and all members share the queues of a topic
even if only some of them subscribe to it, or if some of them broadcast. Members that disagree miss
messages without any error.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Final

from cometmq.client.admin.broker_consumers import BrokerConsumers
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.log import Reminders
from cometmq.client.turns import Wakeup
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import RETRY_PREFIX
from cometmq.remoting.transport.tasks import describe

SETTLE_MS: Final = 3_000
"""Age from which a subscription is assumed to have reached the brokers in a heartbeat; also the
shortest time between two comparisons."""

MARGINS: Final = (10, 30, 100)
"""After a change, we compare before each of three heartbeats, earlier by the interval divided by
these numbers, because the heartbeats of another member may always come shortly before ours."""

CALM_ROUNDS: Final = 10
"""Heartbeats between two comparisons later on."""

REPEAT_MS: Final = 3_600_000
"""Time after which a warning about the same difference is repeated."""

_NAMED_MAX: Final = 3
_SUBSCRIPTION_ADVICE: Final = (
    "members miss messages: give all members of the group the same subscriptions, or groups of "
    "their own"
)
_MIXED_ADVICE: Final = (
    "messages are missed: brokers assign queues of the clustering members to the broadcasting ones,"
    " which do not consume them for the group; give all members the same message_model, or the "
    "broadcasting ones a group of their own"
)


class Agreement:
    """Compares how we consume with how the group consumes, according to a broker.

    A broker reports the message model and the topics of the latest heartbeat from any member, and
    the filter of the member that subscribed last. So we compare when the group changes, and shortly
    before our heartbeats, when the latest heartbeat came from another member.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        self._instance = parts.instance
        self._group = parts.group
        self._subscriptions = parts.subscriptions
        self._message_model = parts.options.message_model
        self._changed = Wakeup()
        self._round = 0
        self._compared_ms: int | None = None
        self._due = Reminders(REPEAT_MS)

    def changed(self) -> None:
        """Compare soon, because members or subscriptions may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Compare after changes, and shortly before some of our heartbeats."""
        while True:
            await self._settle()
            await self._compare()
            self._compared_ms = monotonic_ms()
            if await self._changed.wait(self._pause_ms()):
                self._round = 0
            else:
                self._round += 1

    async def _settle(self) -> None:
        """Wait until our heartbeat has arrived, and since the last comparison."""
        newest_ms = max((one.sub_version for one in self._subscriptions.values()), default=0)
        left_ms = newest_ms + SETTLE_MS - wall_ms()
        if self._compared_ms is not None:
            left_ms = max(left_ms, self._compared_ms + SETTLE_MS - monotonic_ms())
        if left_ms > 0:
            await asyncio.sleep(min(left_ms, SETTLE_MS) / 1000)

    def _pause_ms(self) -> int:
        """Return the time until the next comparison, which is shortly before a heartbeat."""
        interval_ms = self._instance.options.heartbeat_interval_ms
        is_calm = self._round >= len(MARGINS)
        margin_ms = interval_ms // MARGINS[self._round % len(MARGINS)]
        left_ms = self._instance.heartbeats.sent_ms + interval_ms - margin_ms - monotonic_ms()
        if left_ms < interval_ms // 10:  # we have just compared
            left_ms = max(left_ms, 0) + interval_ms
        return left_ms + interval_ms * (CALM_ROUNDS - 1) * is_calm

    async def _compare(self) -> None:
        instance = self._instance
        try:
            theirs = await self._ask()
        except CometError as error:  # some brokers may refuse it; consuming does not depend on it
            instance.log.debug("agreement.unchecked", group=self._group, error=describe(error))
            return
        if theirs is None:
            return
        ids = {one.client_id for one in theirs.connection_set} - {instance.client_id}
        if not ids:
            return
        others = _named(sorted(ids))
        if theirs.message_model != self._message_model:
            self._warn_of_model(theirs.message_model, others)
        for topic, ours, other in self._differences(theirs):
            self._warn_of_subscription(topic, ours, other, others)

    async def _ask(self) -> ConsumerConnections | None:
        """Ask one of the brokers of our topics; return None if none is known."""
        instance = self._instance
        routes = filter(None, map(instance.routes.get, self._subscriptions))
        names = sorted({name for route in routes for name in route.brokers})
        if not names:
            return None
        broker = BrokerConsumers.of(instance, random.choice(names))  # noqa: S311  # spreads load
        return await broker.consumer_connections(self._group)

    def _differences(self, theirs: ConsumerConnections) -> list[tuple[str, str, str]]:
        """Return each topic whose subscriptions differ, with ours and the broker's as text."""
        table = theirs.subscription_table
        return [
            (self._instance.namespace.unwrap(topic), ours, other)
            for topic in sorted(self._subscriptions.keys() | table.keys())
            if not topic.startswith(RETRY_PREFIX)
            and (ours := _words(self._subscriptions.get(topic)))
            != (other := _words(table.get(topic)))
        ]

    def _warn_of_model(self, theirs: str, others: str) -> None:
        if not self._due.is_due(theirs):
            return
        self._instance.log.warning(
            "group.mixed",
            group=self._group,
            client_id=self._instance.client_id,
            message_model=self._message_model.value,
            other_client_id=others,
            other_message_model=theirs,
            advice=_MIXED_ADVICE,
        )

    def _warn_of_subscription(self, topic: str, ours: str, theirs: str, others: str) -> None:
        if not self._due.is_due((topic, ours, theirs)):
            return
        self._instance.log.warning(
            "subscription.mismatched",
            group=self._group,
            topic=topic,
            client_id=self._instance.client_id,
            wants=ours,
            other_client_id=others,
            other_wants=theirs,
            advice=_SUBSCRIPTION_ADVICE,
        )


def _words(wanted: SubscriptionData | None) -> str:
    """Return a subscription as text; equal filters give equal text."""
    if wanted is None:
        return "nothing"
    tags = " || ".join(sorted(wanted.tags_set)) or wanted.sub_string
    return tags if wanted.expression_type == "TAG" else f"{wanted.expression_type} {tags}"


def _named(ids: Iterable[str]) -> str:
    """Return the first client ids for a log line, because a group may have a thousand members."""
    first, rest = (known := list(ids))[:_NAMED_MAX], known[_NAMED_MAX:]
    return ",".join(first) + (f" and {len(rest)} more" if rest else "")
