# SPDX-License-Identifier: Apache-2.0
"""The cached routes of a client, and the addresses of their brokers.

Invariants
    A route remains cached even if a name server no longer has it: the server may have restarted,
    and the brokers will register again soon.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Final

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.namesrv import HUNG, Namesrv
from cometmq.client.cluster.outages import NAMESRV, Outages, TopicReports
from cometmq.client.cluster.renewals import Renewals
from cometmq.client.cluster.routes import (
    MASTER_ID,
    BrokerAddresses,
    Route,
    as_default_route,
    created_part,
    route_of,
    unsendable,
)
from cometmq.client.errors import (
    NoNamesrv,
    NoRoute,
    no_brokers,
    no_queue,
    no_route,
)
from cometmq.client.turns import Wakeup, for_each
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.remoting.transport.client import late_text
from cometmq.remoting.transport.tasks import TaskSet, describe

NEW_TOPIC_MS: Final = 300
CREATED_TOPIC_MS: Final = 3_000
"""How long a lookup waits for a topic that no name server knows: NEW_TOPIC_MS, or CREATED_TOPIC_MS
once a broker has stored a message of the topic. A broker registers a new topic after it has
answered its first message.
"""

NEW_TOPIC_PAUSE_MS: Final = 20  # doubled at each lookup
NEW_TOPIC_PAUSE_MS_MAX: Final = 160

LOOKUPS_MAX: Final = 16
"""How many routes are looked up at the same time."""


class RouteBook:
    """Keeps routes fresh, and reports changes."""

    def __init__(
        self,
        namesrv: Namesrv,
        *,
        wanted: Callable[[], set[str]],
        changed: Callable[[Route], None],
        outages: Outages,
        background: TaskSet,
        log: Log,
    ) -> None:
        """`wanted` returns the topics that consumers need; `outages` tracks the name servers."""
        self._outages = outages
        self._namesrv = namesrv
        self._wanted = wanted
        self._changed = changed
        self._log = log
        self.brokers = BrokerAddresses()
        self._routes: dict[str, Route] = {}
        self._defaults: dict[str, Route] = {}
        """Default routes of topics that no name server knows yet; only senders use them."""
        self._created: dict[str, set[str]] = {}
        """The brokers that have stored a message sent using a default route, by topic."""
        self._fetching: dict[str, asyncio.Lock] = {}
        self._reports = TopicReports(namesrv, wanted, log)
        self._renewals = Renewals(background)
        self._absent_ms: dict[str, int] = {}
        """When a name server last answered that a wanted topic does not exist."""
        self._has_brokers = True
        """Whether the name server knew any broker at the last lookup that found no route."""

    def known(self) -> set[str]:
        """Return the topics with a cached route, and the topics that consumers need."""
        return self._routes.keys() | self._defaults.keys() | self._wanted()

    def missing(self) -> set[str]:
        """Return the topics that consumers need and that have no route."""
        return self._wanted() - self._routes.keys()

    def get(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    def was_absent(self, topic: str, since_ms: int) -> bool:
        """Return whether a name server has answered since then that a wanted topic is missing."""
        return self._absent_ms.get(topic, since_ms - 1) >= since_ms

    def get_for_sending(self, topic: str) -> Route | None:
        """Return the cached route of a topic, or the route with which a send may create it."""
        found = self._routes.get(topic)
        return found if found is not None else self._defaults.get(topic)

    def note_created(self, topic: str, broker_name: str) -> None:
        """Record that a broker has stored a message that was sent using a default route.

        Until a name server knows the topic, this is the only evidence that it exists.
        """
        if topic in self._defaults:
            self._created.setdefault(topic, set()).add(broker_name)

    def is_created(self, topic: str) -> bool:
        return topic in self._routes or topic in self._created

    async def find(self, topic: str) -> Route:
        """Return the route of a topic, fetching it if necessary; raise NoRoute if there is none."""
        found = self._routes.get(topic) or await self.refresh(topic)
        if found is None and await self.fetch(topic) is not None:
            found = await self.refresh(topic)
        if found is None:
            self._has_brokers = await self._namesrv.has_brokers()
            raise self._no_route(topic)
        return found

    async def find_queue(self, queue: MessageQueue) -> None:
        """Fetch the route of a queue's topic, unless the cached route already has the queue.

        Raise NoRoute or InvalidArgument if the queue does not exist: for such a queue, brokers
        return the offset 0 instead of an error.
        """
        route = await self.find(queue.topic)
        if not route.has(queue):
            route = await self.refresh(queue.topic) or route
        if not route.has(queue):
            raise no_queue(queue, route.queue_counts.get(queue.broker_name, 0))

    async def find_for_sending(
        self, topic: str, *, default_topic: str | None, queue_nums: int, wait_ms: int
    ) -> Route:
        """Return a route with queues to send to; wait up to `wait_ms` for a rate-limited lookup.

        An unknown topic gets the route of the default topic, if one is given and brokers may create
        topics from it. Raise NoNamesrv if no name server has answered in time, NoRoute if there is
        no route, and BrokerMissing if no master is left.
        """
        may_create = default_topic is not None

        def sendable() -> Route | None:
            route = self.get_for_sending(topic) if may_create else self._routes.get(topic)
            return route if route is not None and route.publish_queues else None

        async def look_up() -> None:
            if await self.refresh(topic) is not None:
                return
            data = None if default_topic is None else await self._namesrv.route(default_topic)
            self._has_brokers = data is not None or await self._namesrv.has_brokers()
            if data is not None:
                self._take_default(as_default_route(topic, data, queue_nums=queue_nums))

        if sendable() is None:
            await self._share(
                (topic, default_topic),
                look_up,
                is_found=lambda: sendable() is not None,
                wait_ms=wait_ms,
            )
        found = self.get_for_sending(topic) if may_create else self._existing(topic)
        if found is None:
            raise self._no_route(topic)
        if not found.publish_queues:
            raise unsendable(found)
        return found

    def _no_route(self, topic: str) -> NoRoute:
        """Return the error for a missing topic, after a lookup has set `_has_brokers`."""
        if self._has_brokers:
            return no_route(topic)
        return no_brokers(topic, self._namesrv.addresses)

    def _take_default(self, route: Route | None) -> None:
        if route is not None:
            if not route.publish_queues:
                raise unsendable(route)
            self._take(route)

    def _existing(self, topic: str) -> Route | None:
        """Return the route of a topic that exists, whether or not a name server knows it yet."""
        broker_names = self._created.get(topic)
        return (
            created_part(self._defaults[topic], broker_names)
            if broker_names
            else self._routes.get(topic)
        )

    async def _share(
        self,
        key: Hashable,
        look_up: Callable[[], Awaitable[object]],
        *,
        is_found: Callable[[], bool],
        wait_ms: int,
    ) -> bool:
        """Wait for a shared lookup; delays of the event loop do not count towards `wait_ms`.

        Return False if no lookup ended in time, so that the result of an earlier one applies.
        """
        share = functools.partial(self._renewals.share, key, look_up, is_found=is_found)
        late_before_ms, late_ms = self._namesrv.loop_late_ms, 0
        try:
            try:
                return await share(wait_ms=wait_ms)
            except TimeoutError:
                late_ms = self._namesrv.loop_late_ms - late_before_ms
                if not late_ms:
                    raise
                return await share(wait_ms=min(wait_ms, late_ms))
        except TimeoutError as error:
            addresses = ", ".join(sorted(self._namesrv.addresses))
            limit = f"within {wait_ms / 1000:g} s"
            raise NoNamesrv(
                f"no answer of a name server ({addresses}) was read {limit}{late_text(late_ms)}"
                if late_ms
                else f"no name server answers: {addresses}: no answer {limit}{HUNG}"
            ) from error

    async def find_master(self, broker_name: str, topic: str, *, wait_ms: int) -> str:
        """Return the address of the master; if there is none, look up the route of `topic` first.

        A broker that was down may come back before the next regular refresh.
        """
        if not self.brokers.has_master(broker_name):
            await self._share(
                (topic, broker_name, MASTER_ID),
                lambda: self.refresh(topic),
                is_found=lambda: self.brokers.has_master(broker_name),
                wait_ms=wait_ms,
            )
        return self.brokers.master(broker_name)

    async def find_other_master(self, broker_name: str, topic: str, *, wait_ms: int) -> None:
        """Look up the route of `topic`, up to `wait_ms`, until a new master replaces the current
        one.

        In a group with failover, name servers keep a lost master in the route until its successor
        registers. Return early if the next rate-limited lookup would be too late.
        """

        def master() -> str | None:
            return self.brokers.get(broker_name).get(MASTER_ID)

        before = master()
        deadline_ms = monotonic_ms() + wait_ms
        while master() == before and (left_ms := deadline_ms - monotonic_ms()) > 0:
            was_in_time = await self._share(
                (topic, broker_name, before),
                lambda: self.refresh(topic),
                is_found=lambda: master() != before,
                wait_ms=left_ms,
            )
            if not was_in_time:
                return

    async def find_other_route(self, before: Route, *, wait_ms: int) -> None:
        """Look up a route until it differs from `before`, or until a new lookup has completed."""
        topic = before.topic
        await self._share(
            ("other", topic),
            lambda: self.refresh(topic),
            is_found=lambda: self.get_for_sending(topic) != before,
            wait_ms=wait_ms,
        )

    async def fetch(self, topic: str) -> TopicRoute | None:
        """Fetch the route of a topic, without caching it; wait a moment for a new topic.

        If this client knows brokers that have created the topic, wait until the route has them all.
        """
        created = self._created.get(topic, set())
        deadline_ms = monotonic_ms() + (CREATED_TOPIC_MS if created else NEW_TOPIC_MS)
        pause_ms = NEW_TOPIC_PAUSE_MS
        while True:
            found = await self._namesrv.route(topic)
            names = set() if found is None else {queue.broker_name for queue in found.queue_datas}
            is_waiting = found is None or not created <= names
            # No send creates a retry topic.
            if not is_waiting or topic.startswith("%") or monotonic_ms() >= deadline_ms:
                return found
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, NEW_TOPIC_PAUSE_MS_MAX)

    async def refresh(self, topic: str) -> Route | None:
        lock = self._fetching.setdefault(topic, asyncio.Lock())
        try:
            async with lock:
                data = await self._namesrv.route(topic)
        finally:
            if not lock.locked():
                self._fetching.pop(topic, None)
        self._outages.end(NAMESRV)
        if data is None:
            if topic in self._wanted():
                self._absent_ms[topic] = monotonic_ms()
            return self._routes.get(topic)
        route = route_of(topic, data)
        is_news = any(self.brokers.get(name) != ids for name, ids in route.brokers.items())
        if is_news or route != self._routes.get(topic):
            self._take(route)
        return route

    async def refresh_all(self, topics: Collection[str]) -> None:
        """Fetch several routes; missing ones are not an error."""
        outage: list[NoNamesrv] = []

        async def look_up(topic: str) -> None:
            if outage:  # this lookup would fail too, after one more timeout per server
                return
            try:
                await self._reports.looked_up(topic, await self.refresh(topic))
            except NoNamesrv as error:
                outage.append(error)
            except CometError as error:
                self._log.warning("route.unknown", topic=topic, error=describe(error))

        await for_each(sorted(topics), look_up, running_max=LOOKUPS_MAX)
        if outage:
            self._outages.note(NAMESRV, outage[0])

    async def meet_brokers(self, topics: Collection[str]) -> None:
        """Connect to the brokers of topics, or to the brokers that may create a missing topic.

        The brokers thus know the group and its subscription before the first message is stored.
        """
        await self.refresh_all(topics)
        if not self._routes.keys() >= set(topics):
            await self.refresh_all([AUTO_CREATE_TOPIC])

    def _take(self, route: Route) -> None:
        topic = route.topic
        was_known = topic in self._routes or topic in self._defaults
        self._routes.pop(topic, None)
        self._defaults.pop(topic, None)
        newest = self._defaults if route.is_default else self._routes
        if not route.is_default:
            self._created.pop(topic, None)
        newest[topic] = route  # at the end: its addresses are the newest
        if was_known:
            self.brokers.clear()
            for known in (*self._defaults.values(), *self._routes.values()):
                self.brokers.update(known.brokers)
        self.brokers.update(route.brokers)
        self._log.info("route.changed", topic=route.topic, brokers=sorted(route.brokers))
        self._changed(route)


SETTLE_MS: Final = 1_000
"""How long refresh requests are collected before a refresh, so that a burst causes only one."""

MISSING_MS: Final = 500
MISSING_SOON_COUNT: Final = 120
MISSING_LATER_MS: Final = 5_000
"""Interval between route lookups for a subscribed topic that does not exist."""


class Refreshes:
    """Refreshes routes at intervals, and soon after they have proved wrong."""

    def __init__(self, routes: RouteBook, background: TaskSet) -> None:
        self._routes = routes
        self._background = background
        self._due = Wakeup()
        self._missing_due = Wakeup()
        self._outdated: set[str] = set()

    def start(self, *, interval_ms: int) -> None:
        keep = self._background.keep
        keep(lambda: self._keep_fresh(interval_ms), name="client-routes")
        keep(self._find_missing, name="client-missing-routes")

    def look_soon(self) -> None:
        """Refresh the routes within SETTLE_MS, because a broker does not answer."""
        self._due.set()

    def outdated(self, topic: str) -> None:
        """Refresh the route of a topic now, because a broker's answer contradicts it.

        The route is looked up again after SETTLE_MS, because name servers may learn of a change
        later than clients; further calls until then have no effect.
        """
        if topic not in self._outdated:
            self._outdated.add(topic)
            self._background.spawn(self._renew(topic), name="client-outdated-route")

    async def _renew(self, topic: str) -> None:
        try:
            await self._routes.refresh_all([topic])
            await asyncio.sleep(SETTLE_MS / 1000)
        finally:
            self._outdated.discard(topic)
        await self._routes.refresh_all([topic])

    def find_missing_soon(self) -> None:
        """Fetch the routes of newly subscribed topics soon."""
        self._missing_due.set()

    async def _keep_fresh(self, interval_ms: int) -> None:
        while True:
            if await self._due.wait(interval_ms):
                await asyncio.sleep(SETTLE_MS / 1000)  # collect several failures into one refresh
            await self._routes.refresh_all(self._routes.known())

    async def _find_missing(self) -> None:
        """Look up missing topics, at a decreasing rate."""
        round_count = 0
        while True:
            interval_ms = MISSING_MS if round_count < MISSING_SOON_COUNT else MISSING_LATER_MS
            if await self._missing_due.wait(interval_ms):
                round_count = 0
            missing = self._routes.missing()
            round_count = round_count + 1 if missing else 0
            await self._routes.refresh_all(missing)
