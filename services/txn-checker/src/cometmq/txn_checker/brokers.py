# SPDX-License-Identifier: Apache-2.0
"""The brokers that a txn-checker follows: one follower for each master the name servers report."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.client.turns import Wakeup
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.clock import Clock
from cometmq.runtime.saves import Saver
from cometmq.store.layout import is_topic
from cometmq.txn_checker.broker_link import BrokerLink
from cometmq.txn_checker.follower import Follower
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.masters import Masters, Route
from cometmq.txn_checker.settings import TxnCheckerSettings

LOCK_FILE: Final = "lock"
"""The file that locks the folder. It is beside the brokers' folders, so a broker with this name is
not followed.
"""
FAULTS_SHOWN: Final = 3
BROKERS_MAX: Final = 1_000
"""Maximum number of followed brokers. Any process may register as a broker, and each one takes
files and tasks.
"""
LOOKUP_SOON_MS: Final = 1_000
"""Interval between lookups of the masters while a broker is not being followed."""
LOOKUP_PAUSE_MS: Final = 200
"""Shortest pause between two lookups, however many brokers fail."""


class Brokers:
    def __init__(
        self,
        masters: Masters,
        settings: TxnCheckerSettings,
        *,
        open_ledger: Callable[[str], Awaitable[Ledger]],
        tasks: TaskSet,
        saver: Saver,
        clock: Clock,
        log: Log,
    ) -> None:
        """`open_ledger` recovers the ledger of the broker with the given name; followers run as
        `tasks`.
        """
        self._masters = masters
        self._settings = settings
        self._open_ledger = open_ledger
        self._tasks = tasks
        self._saver = saver
        self._clock = clock
        self._log = log
        self.followers: dict[str, Follower] = {}
        self.routes: dict[str, Route] = {}
        self._refused: set[str] = set()
        self._registered: set[str] = set()  # names in the last answer of a name server
        self._masterless: set[str] = set()  # brokers with only slaves in that answer
        self._lookup_due = Wakeup()
        self._asked = asyncio.Event()
        self._fault: str | None = "no name server has been asked yet"

    def fault(self) -> str | None:
        """Return why the transactions of some brokers are not being checked; None if all are."""
        if self._fault is not None:
            return self._fault
        if not self._registered and not self._masterless:
            return f"{self._settings.namesrv_addr}: no broker is registered there"
        faults = [
            f"{name}: no master of it is registered"
            for name in sorted(self._masterless & self.followers.keys())
        ]
        faults += [
            f"{name} ({self.routes[name].address}): {self.followers[name].fault}"
            for name in sorted(self._registered & self.followers.keys())
            if self.followers[name].fault is not None
        ]
        if len(faults) > FAULTS_SHOWN:
            faults[FAULTS_SHOWN:] = [f"and {len(faults) - FAULTS_SHOWN} more brokers"]
        if not self._saver.is_healthy:
            faults.append("a state table cannot be synced to the disk")
        return "; ".join(faults) or None

    async def tried(self) -> None:
        """Wait until a name server has been asked and every broker it named has been tried."""
        await self._asked.wait()
        for follower in list(self.followers.values()):
            await follower.tried.wait()

    async def close(self) -> None:
        """Commit the progress to all brokers."""
        for follower in self.followers.values():
            await follower.close()

    async def until_lookup(self, interval_s: float) -> None:
        """Wait until the next lookup of the masters is due: after `interval_s`, or after
        LOOKUP_SOON_MS while a broker is not being followed.
        """
        await asyncio.sleep(min(interval_s, LOOKUP_PAUSE_MS / 1_000))
        interval_ms = round(interval_s * 1_000)
        if self.fault() is not None:
            interval_ms = min(interval_ms, LOOKUP_SOON_MS)
        await self._lookup_due.wait(interval_ms)

    async def look_up(self) -> None:
        """Follow every master registered with the name servers, at its current address."""
        try:
            masters = await self._masters.masters()
        except CometError as error:
            fault = f"{self._settings.namesrv_addr}: {error}"
            if fault != self._fault:  # lookups are a second apart: log each fault once
                self._log.warning("brokers.unknown", error=describe(error))
            self._fault = fault
            self._asked.set()
            return
        self._fault = None
        known, self._registered = self._registered, set(masters)
        self._masterless = self._masters.take_masterless()
        for name, follower in self.followers.items():
            follower.is_registered = name in masters
        for name, master in masters.items():
            if name in self.followers:
                self._take_route(name, master.address, is_back=name not in known)
            elif is_topic(name) and name != LOCK_FILE and len(self.followers) < BROKERS_MAX:
                self._follow(name, master.address)
            elif name not in self._refused and len(self._refused) < BROKERS_MAX:
                self._refused.add(name)
                self._log.warning("broker.refused", broker=name, brokers=len(self.followers))
        self._asked.set()

    def _take_route(self, name: str, address: str, *, is_back: bool) -> None:
        """Use this address for the broker; if it has moved or returned, connect to it at once."""
        follower, route = self.followers[name], self.routes[name]
        is_moved = address != route.address
        route.address = address
        if is_moved or (is_back and not follower.stats.is_following):
            follower.route_changed()

    def _follow(self, name: str, address: str) -> None:
        route = self.routes[name] = Route(self._masters, name, address)
        follower = self.followers[name] = Follower(
            name,
            BrokerLink(route, self._settings),
            self._settings,
            open_ledger=lambda: self._open_ledger(name),
            lost=self._lookup_due.set,
            saver=self._saver,
            clock=self._clock,
            log=self._log,
        )
        self._tasks.spawn(follower.run(), name=f"txn-checker-{name}", is_endless=True)
