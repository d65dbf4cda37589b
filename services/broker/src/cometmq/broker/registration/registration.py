# SPDX-License-Identifier: Apache-2.0
"""Registration with all name servers: at startup, after each change, and periodically.

The list of name servers may change at run time. Each name server has a task and a `Link`, so that
an unreachable one does not delay the others. The link has the version of the topic table that the
name server has acknowledged, so that only later changes are sent. After a lost connection the whole
table is sent, because the name server may have restarted or may have dropped the broker.

Before its first registration with a name server, the broker checks whether another running broker
uses its name and id. If so, it does not register, unless takeOverName is set. Later it asks every
second whether the registration is still in the routes, and if not, registers again (`listing.py`).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from cometmq.broker.registration.identity import Link
from cometmq.broker.registration.listing import WATCH_MS
from cometmq.broker.registration.namesrv_addresses import NamesrvAddresses
from cometmq.broker.registration.registrant import Registrant
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.log import NO_LOG, Log

PERIOD_MIN_MS: Final = 10_000
PERIOD_MAX_MS: Final = 60_000
RETRY_FIRST_MS: Final = 500
RETRY_MAX_MS: Final = 2_000
"""Maximum time until a broker registers with a name server that has become reachable again."""
RETRY_REFUSED_MS: Final = 750
"""Pause after a refusal because of the epoch. If a stranger's claim of an epoch has excluded the
real master, the master is thus registered within a second after the claim ends.
"""


class Registration:
    """Keeps the registration with every name server current, in the background task `run`."""

    def __init__(
        self,
        registrant: Registrant,
        addresses: NamesrvAddresses,
        *,
        settings: Callable[[], BrokerSettings],
        log: Log = NO_LOG,
    ) -> None:
        """`settings` returns the current settings, which may change at run time."""
        self.registrant = registrant
        self.links: dict[str, Link] = {}
        self._is_listed: bool | None = None  # by any name server; None before the first attempt
        self._addresses = addresses
        self._settings = settings
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_leaving = False
        self._resolve_now = asyncio.Event()
        self._first_round = asyncio.Event()

    @property
    def period_ms(self) -> int:
        """The interval between registrations: the setting, limited to RocketMQ's bounds."""
        asked = self._settings().register_name_server_period
        return max(PERIOD_MIN_MS, min(asked, PERIOD_MAX_MS))

    @property
    def up_count(self) -> int:
        """The number of name servers that accepted the last registration."""
        return sum(link.is_up for link in self.links.values())

    @property
    def name_fault(self) -> str | None:
        """Why this broker does not register although a name server answers: another running broker
        has its name and id. None if there is none.
        """
        for link in self.links.values():
            if link.holder is not None:
                me = self.registrant.identity
                other = "brokerId" if me.broker_id else "brokerName"
                return (
                    f"a running broker at {link.holder} is registered with brokerName"
                    f"={me.broker_name} and brokerId={me.broker_id} at the name server"
                    f" {link.address}: give this broker another {other}, or stop the other one"
                    " (takeOverName=true takes its place)"
                )
        return None

    @property
    def route_fault(self) -> str | None:
        """Why no name server lists this broker, so clients cannot find it; None if one does."""
        return None if self.up_count else _faults(self.links)

    @property
    def route_gap(self) -> str | None:
        """Which name servers do not list this broker, and why; None if all or none list it."""
        return _faults(self.links) if self.up_count else None

    async def run(self) -> None:
        """Resolve the name servers periodically, and keep a task for each."""
        async with asyncio.TaskGroup() as group:
            while True:
                addresses = await self._addresses.resolve()
                self._follow(addresses, group)
                self._note_first_round()
                self._resolve_now.clear()
                await _wait(self._resolve_now, self.period_ms)

    async def wait_for_first_round(self, timeout_ms: int) -> None:
        """Wait until each name server has been tried once, or until the timeout.

        After that, clients get a route from every reachable name server.
        """
        await _wait(self._first_round, timeout_ms)

    def notify(self) -> None:
        """Make all links register soon; call this after each change of topics."""
        for link in self.links.values():
            link.wake.set()

    async def announce(self) -> int:
        """Wait until each reachable name server has the current topics; return the number that do.

        Name servers that were already unreachable are tried as well, but not waited for.
        """
        loop = asyncio.get_running_loop()
        waiters: list[asyncio.Future[bool]] = []
        known_count = 0
        for link in self.links.values():
            if self.registrant.is_current(link):
                known_count += 1
                continue
            link.wake.set()
            if link.is_up:
                waiter = loop.create_future()
                link.waiters.append(waiter)
                waiters.append(waiter)
        return known_count + sum([await waiter for waiter in waiters])

    def use_role(self, broker_id: int, epoch: int) -> None:
        """Register under a new id (`Registrant.use_role`); name servers then drop the old id."""
        self.registrant.use_role(broker_id, epoch)
        for link in self.links.values():
            link.is_role_new = True
            self.registrant.end_stuck(link)
        self.register_again()

    def register_again(self) -> None:
        """Register all topics again with every name server."""
        for link in self.links.values():
            link.acknowledged = None
            link.wake.set()

    def use_addresses(self, text: str) -> None:
        self._addresses.replace(text)
        self._resolve_now.set()

    def connection_lost(self, address: str) -> None:
        """Register again in full: a name server drops a broker when its connection closes."""
        link = self.links.get(address)
        if link is not None and link.is_up and not self._is_leaving:
            link.acknowledged = None
            link.wake.set()

    async def unregister(self) -> None:
        """Unregister from all name servers, and do not register again."""
        self._is_leaving = True
        for address, task in self._tasks.items():
            task.cancel()
            _release(self.links[address])
        async with asyncio.TaskGroup() as group:
            for link in self.links.values():
                group.create_task(self.registrant.leave(link, self.registrant.identity))

    async def attempt(self, link: Link) -> bool:
        """Register with one name server, unless another running broker has this broker's name and
        id there; return whether that succeeded.
        """
        may_register = await self.registrant.listing.may_register(link)
        is_done = may_register and await self.registrant.register(link)
        self._note_listed()
        return is_done

    def _follow(self, addresses: list[str], group: asyncio.TaskGroup) -> None:
        """Start tasks for new name servers, and cancel the tasks of removed ones."""
        if self._is_leaving:
            return
        for address in self.links.keys() - set(addresses):
            self._tasks.pop(address).cancel()
            _release(self.links.pop(address))
        for address in addresses:
            if address not in self.links:
                link = self.links[address] = Link(address)
                self._tasks[address] = group.create_task(self._keep(link))

    async def _keep(self, link: Link) -> None:
        """Keep the registration with one name server current, until cancelled."""
        while True:
            link.wake.clear()
            waiting, link.waiters = link.waiters, []
            is_done = False
            try:
                is_done = await self.attempt(link)
            finally:
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(is_done)
            link.is_tried = True
            self._note_first_round()
            await self._pause(link)

    def _note_first_round(self) -> None:
        if all(link.is_tried for link in self.links.values()):
            self._first_round.set()

    def _pause_ms(self, link: Link) -> int:
        """Return the pause before the next registration; while attempts fail, it is short."""
        if link.is_up:
            return self.period_ms
        if link.is_refused:
            return RETRY_REFUSED_MS
        return min(RETRY_MAX_MS, RETRY_FIRST_MS << min(link.failed_count - 1, 6))

    async def _pause(self, link: Link) -> None:
        """Wait until the next registration is due or requested, or until the last one is lost."""
        left_ms = self._pause_ms(link)
        while left_ms > 0 and not link.wake.is_set():
            watch_ms = max(WATCH_MS, link.watch_ms)
            await _wait(link.wake, min(left_ms, watch_ms))
            left_ms -= watch_ms
            if (
                link.is_up
                and not link.wake.is_set()
                and await self.registrant.listing.is_lost(link)
            ):
                link.acknowledged = None
                link.watch_ms = min(2 * watch_ms, self.period_ms)
                return

    def _note_listed(self) -> None:
        """Log when no name server lists this broker any more, and when one does again."""
        is_listed = bool(self.up_count)
        if not is_listed and not all(link.fault for link in self.links.values()):
            return  # some were not tried yet
        if not is_listed and self._is_listed is not False and self.route_fault:
            self._log.warning("broker.unlisted", reason=self.route_fault)
        elif is_listed and self._is_listed is False:
            self._log.info("broker.listed", namesrvs=self.up_count)
        self._is_listed = is_listed or not self.links


def _faults(links: Mapping[str, Link]) -> str | None:
    """Return which name servers do not list this broker, and why."""
    faults = [f"{link.address}: {link.fault}" for link in links.values() if link.fault]
    return f"not registered with {'; '.join(faults)}" if faults else None


def _release(link: Link) -> None:
    """Wake the callers that wait for a link's registration, because there will be none."""
    for waiter in link.waiters:
        if not waiter.done():
            waiter.set_result(False)
    link.waiters.clear()


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Wait until the event is set, or until the timeout."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return
