# SPDX-License-Identifier: Apache-2.0
"""Tracks unreachable servers: logs one warning per outage, reminders, and one line when it ends.

Otherwise every pull, heartbeat and rebalance would log the same lost connection.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.namesrv import Namesrv
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import NoNamesrv, no_brokers_text
from cometmq.client.log import Reminders
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
        self._open = Reminders(REMIND_MS, clock_ms=clock_ms)
        self._failed_counts: Counter[str] = Counter()

    def __contains__(self, peer: str) -> bool:
        return peer in self._open

    def __bool__(self) -> bool:
        return bool(self._failed_counts)

    def note(self, peer: str, error: Exception) -> None:
        """Begin an outage, or count one more failure and log a reminder if one is due."""
        self._failed_counts[peer] += 1
        if not self._open.is_due(peer):
            return
        facts: dict[str, object] = {
            "advice": _NAMESRV_ADVICE if peer == NAMESRV else _BROKER_ADVICE
        }
        if self._failed_counts[peer] > 1:
            facts = self._extent(peer)
        if peer == NAMESRV:
            self.log.warning("namesrv.unreachable", groups=self._names(), error=str(error), **facts)
        else:
            self.log.warning(
                "broker.unreachable", peer=peer, groups=self._names(), error=str(error), **facts
            )

    def end(self, peer: str) -> None:
        """End an outage, if there is one, and log that the server can be reached again."""
        if peer not in self._open:
            return
        facts = {"groups": self._names(), **self._extent(peer)}
        if peer == NAMESRV:
            self.log.info("namesrv.reachable", **facts)
        else:
            self.log.info("broker.reachable", peer=peer, **facts)
        self._forget(peer)

    def keep_only(self, addresses: Collection[str]) -> None:
        """End the outages of brokers that are no longer in any route."""
        for peer in {*self._open} - {NAMESRV, *addresses}:
            facts = {"groups": self._names(), **self._extent(peer)}
            self.log.info("broker.forgotten", peer=peer, **facts)
            self._forget(peer)

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
        if error.address in self._open:
            self._failed_counts[error.address] += 1
            return True
        # The heartbeat that follows a lost connection begins an outage or reconnects silently.
        return isinstance(error, ConnectFailed | ConnectionLost) and self._is_probed(error.address)

    def _names(self) -> str:
        return ",".join(self._groups())

    def _extent(self, peer: str) -> dict[str, object]:
        down_s = round(self._open.lasted_ms(peer) / 1000, 1)
        return {"down_s": down_s, "failed_count": self._failed_counts[peer]}

    def _forget(self, peer: str) -> None:
        self._open.end(peer)
        del self._failed_counts[peer]


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
        self._unknown, self._unreadable = Reminders(REPORT_AGAIN_MS), Reminders(REPORT_AGAIN_MS)

    async def looked_up(self, topic: str, route: Route | None) -> None:
        """Report a topic that is missing or unreadable, but no retry topic: they come later."""
        if topic.startswith("%") or topic not in self._wanted():
            return
        if route is None:
            if self._unknown.is_due(topic, after_ms=UNKNOWN_GRACE_MS):
                await self._report_unknown(topic)
            return
        self._unknown.end(topic)
        if route.subscribe_queues:
            self._unreadable.end(topic)
        elif self._unreadable.is_due(topic):
            self._report_unreadable(route)

    async def _report_unknown(self, topic: str) -> None:
        advice = (
            f"create it: {command('topic create', topic)} (or send to it, where brokers have "
            "autoCreateTopicEnable)"
        )
        if not await self._namesrv.has_brokers():
            advice = no_brokers_text(self._namesrv.addresses)
        self._log.warning(
            "topic.unknown", topic=topic, advice=f"{advice}; the consumer waits for it"
        )

    def _report_unreadable(self, route: Route) -> None:
        topic = route.topic
        self._log.warning(
            "topic.unreadable",
            topic=topic,
            brokers=sorted(route.queue_counts),
            advice="these brokers let no consumer read it; to grant read permission: cometmq topic "
            f"alter {topic} --perm rw (or set their brokerPermission to 6); the consumer waits for "
            "it",
        )
