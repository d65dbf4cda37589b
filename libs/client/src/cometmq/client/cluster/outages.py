# SPDX-License-Identifier: Apache-2.0
"""Tracks unreachable servers: logs one warning per outage, reminders, and one line when it ends.

Otherwise every pull, heartbeat and rebalance would log the same lost connection.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.namesrv import Namesrv
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import NoNamesrv, no_brokers_text
from cometmq.remoting.errors import ConnectFailed, ConnectionLost, TransportError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.visible import command

REMIND_MS: Final = 30_000
"""Interval between warnings about a server that is still unreachable."""

NAMESRV: Final = "namesrv"
"""Key that stands for all name servers; other keys are addresses."""

_BROKER_ADVICE: Final = (
    "the client tries again every second; consuming goes on from the committed offsets, sends fail "
    "or go to other brokers"
)
_NAMESRV_ADVICE: Final = "the client tries again, and keeps the routes that it knows"


class _Outage(msgspec.Struct):
    begin_ms: int
    reported_ms: int
    failed_count: int = 1


class Outages:
    """The unreachable servers of one client instance.

    Heartbeats detect broker outages; route lookups detect name server outages. Other failed
    requests are counted while their server is unreachable, and logged at debug level.
    """

    def __init__(
        self,
        log: Log,
        *,
        groups: Callable[[], Collection[str]],
        is_probed: Callable[[str], bool],
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`groups` returns the groups of this client; `is_probed` returns whether an address gets
        heartbeats.
        """
        self.log = log
        self._groups = groups
        self._is_probed = is_probed
        self._clock_ms = clock_ms
        self._open: dict[str, _Outage] = {}

    def __contains__(self, peer: str) -> bool:
        return peer in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def note(self, peer: str, error: Exception) -> None:
        """Begin an outage, or count one more failure and log a reminder if one is due."""
        now_ms = self._clock_ms()
        outage = self._open.get(peer)
        facts: dict[str, object]
        if outage is None:
            self._open[peer] = _Outage(now_ms, now_ms)
            facts = {"advice": _NAMESRV_ADVICE if peer == NAMESRV else _BROKER_ADVICE}
        else:
            outage.failed_count += 1
            if now_ms - outage.reported_ms < REMIND_MS:
                return
            outage.reported_ms = now_ms
            facts = self._extent(outage)
        if peer == NAMESRV:
            self.log.warning("namesrv.unreachable", groups=self._names(), error=str(error), **facts)
        else:
            self.log.warning(
                "broker.unreachable", peer=peer, groups=self._names(), error=str(error), **facts
            )

    def end(self, peer: str) -> None:
        """End an outage, if there is one, and log that the server can be reached again."""
        outage = self._open.pop(peer, None)
        if outage is None:
            return
        if peer == NAMESRV:
            self.log.info("namesrv.reachable", groups=self._names(), **self._extent(outage))
        else:
            self.log.info(
                "broker.reachable", peer=peer, groups=self._names(), **self._extent(outage)
            )

    def keep_only(self, addresses: Collection[str]) -> None:
        """End the outages of brokers that are no longer in any route."""
        for peer in self._open.keys() - {NAMESRV, *addresses}:
            outage = self._open.pop(peer)
            self.log.info(
                "broker.forgotten", peer=peer, groups=self._names(), **self._extent(outage)
            )

    def failed(self, event: str, error: Exception, /, **facts: object) -> None:
        """Log a failed step as a warning, or at debug level if an outage explains it."""
        if self._is_explained(error):
            self.log.debug(event, **facts, error=describe(error))
        else:
            self.log.warning(event, **facts, error=describe(error))

    def _is_explained(self, error: Exception) -> bool:
        if isinstance(error, NoNamesrv):
            return NAMESRV in self._open
        if not isinstance(error, TransportError):
            return False
        outage = self._open.get(error.address)
        if outage is not None:
            outage.failed_count += 1
            return True
        # The heartbeat that follows a lost connection begins an outage or reconnects silently.
        return isinstance(error, ConnectFailed | ConnectionLost) and self._is_probed(error.address)

    def _names(self) -> str:
        return ",".join(self._groups())

    def _extent(self, outage: _Outage) -> dict[str, object]:
        ms = self._clock_ms() - outage.begin_ms
        return {"down_s": round(ms / 1000, 1), "failed_count": outage.failed_count}


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
