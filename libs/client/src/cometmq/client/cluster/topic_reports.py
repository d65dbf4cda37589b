# SPDX-License-Identifier: Apache-2.0
"""Warnings about subscribed topics from which a consumer receives nothing."""

from collections.abc import Callable, Collection
from typing import Final

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.namesrv import Namesrv
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import no_brokers_text
from cometmq.remoting.log import Log
from cometmq.remoting.visible import command

UNKNOWN_GRACE_MS: Final = 3_000
"""How long a subscribed topic may be missing without a warning: many programs start a consumer just
before the producer whose first message creates the topic.
"""

REPORT_AGAIN_MS: Final = 60_000
"""Interval between warnings about a topic."""


class TopicReports:
    """Warns about each topic that does not exist or cannot be read, and reminds at intervals."""

    def __init__(self, namesrv: Namesrv, wanted: Callable[[], Collection[str]], log: Log) -> None:
        """`wanted` returns the topics that consumers need."""
        self._namesrv = namesrv
        self._wanted = wanted
        self._log = log
        self._unknown_due_ms: dict[str, int] = {}
        """When the next warning about a missing topic is due."""
        self._unreadable_due_ms: dict[str, int] = {}
        """When the next warning about a topic without a readable queue is due."""

    async def looked_up(self, topic: str, route: Route | None) -> None:
        """Report a topic that is missing or cannot be read.

        A retry topic is not reported: brokers create it later.
        """
        if topic.startswith("%") or topic not in self._wanted():
            return
        if route is None:
            await self._unknown(topic)
            return
        self._unknown_due_ms.pop(topic, None)
        if route.subscribe_queues:
            self._unreadable_due_ms.pop(topic, None)
        else:
            self._unreadable(route)

    async def _unknown(self, topic: str) -> None:
        now_ms = monotonic_ms()
        due_ms = self._unknown_due_ms.get(topic)
        if due_ms is not None and now_ms < due_ms:
            return
        self._unknown_due_ms[topic] = now_ms + REPORT_AGAIN_MS
        if not await self._namesrv.has_brokers():
            advice = no_brokers_text(self._namesrv.addresses)
        elif due_ms is None:
            self._unknown_due_ms[topic] = now_ms + UNKNOWN_GRACE_MS
            return
        else:
            advice = (
                f"create it: {command('topic create', topic)} (or send to it, where brokers have "
                "autoCreateTopicEnable)"
            )
        self._log.warning(
            "topic.unknown", topic=topic, advice=f"{advice}; the consumer waits for it"
        )

    def _unreadable(self, route: Route) -> None:
        topic, now_ms = route.topic, monotonic_ms()
        if now_ms < self._unreadable_due_ms.get(topic, now_ms):
            return
        self._unreadable_due_ms[topic] = now_ms + REPORT_AGAIN_MS
        self._log.warning(
            "topic.unreadable",
            topic=topic,
            brokers=sorted(route.queue_counts),
            advice="these brokers let no consumer read it; to grant read permission: cometmq topic "
            f"alter {topic} --perm rw (or set their brokerPermission to 6); the consumer waits for "
            "it",
        )
