# SPDX-License-Identifier: Apache-2.0
"""Decides when the routes of a client are looked up again."""

import asyncio
from typing import Final

from cometmq.client.cluster.route_book import RouteBook
from cometmq.client.wakeup import Wakeup
from cometmq.remoting.transport.tasks import TaskSet

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
        """Start the refresh loops."""
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
