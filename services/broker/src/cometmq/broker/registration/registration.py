# SPDX-License-Identifier: Apache-2.0
"""Registration with all name servers: at startup, after each change, and periodically.

Each name server has its own link, so that an unreachable one does not delay the others. A link
remembers which version of the topic table its name server has acknowledged, and sends only later
changes. After a lost connection it sends the whole table, because the name server may have
restarted or may have dropped the broker together with the connection.

Before its first registration with a name server, the broker checks whether another running broker
uses its name and id. If so, it does not register, unless takeOverName is set. Later it asks every
second whether the registration is still in the routes, and if not, registers again (`listing.py`).

Compatibility: REGISTER_BROKER (103) plain or compressed, UNREGISTER_BROKER (104), and
QUERY_DATA_VERSION (322) if forceRegister is off. As in RocketMQ, a broker without read or write
permission registers all its topics with its own permission.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cometmq.broker.registration.bodies import PART_BYTES_MIN, Bodies, part_version
from cometmq.broker.registration.identity import Connections, Identity
from cometmq.broker.registration.link import Link
from cometmq.broker.registration.listing import WATCH_MS, Listing, asked_if_changed
from cometmq.broker.registration.namesrv_addresses import NamesrvAddresses
from cometmq.broker.role import MASTER_ID
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.topics import Topics
from cometmq.ha.group_key import Keys
from cometmq.ha.registration_proof import RegistrationFacts, registration_proof
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.namesrv import RegisterBroker, UnregisterBroker
from cometmq.remoting.errors import CometError, CommandError, ConnectionLost, RequestTimeout
from cometmq.remoting.log import NO_LOG, Log

PERIOD_MIN_MS: Final = 10_000
PERIOD_MAX_MS: Final = 60_000
RETRY_FIRST_MS: Final = 500
RETRY_MAX_MS: Final = 2_000
"""Maximum time until a broker registers with a name server that has become reachable again."""
STUCK_MS: Final = 500
"""A new role does not wait longer than this for an earlier registration. After a network failure,
the packets of its connection are retransmitted ever more rarely; a new connection is faster.
"""
RETRY_REFUSED_MS: Final = 750
"""Time until a broker that was refused for its epoch registers again; a master that was refused
because of a stranger's claim is thus back within a second after the claim ends.
"""
REFUSED_COUNT_MAX: Final = 5
"""Number of successive refusals of an earlier epoch, over 3 s, that cause a warning."""
UNREGISTER_TIMEOUT_MS: Final = 3_000


class Registration:
    """Keeps the registration with every name server current, in the background task `run`."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        identity: Identity,
        topics: Topics,
        client: Connections,
        addresses: NamesrvAddresses,
        *,
        settings: Callable[[], BrokerSettings],
        keys: Callable[[], Keys] = lambda: (),
        shared_address: str = "",
        log: Log = NO_LOG,
    ) -> None:
        """`settings` and `keys` return the current settings and the current keys of the broker
        broker group, which may change at run time. `shared_address` is the address of the broker
        group's master, whichever broker that is; `identity` has the broker's own.
        """
        self.identity = identity
        self.master_address = ""  # of this broker's master, as the name servers report it
        self.master_ha_address = ""
        self.links: dict[str, Link] = {}
        self._topics = topics
        self._bodies = Bodies(topics, settings)
        self._listing = Listing(client, lambda: self.identity, settings, log)
        self._is_listed: bool | None = None  # by any name server; None before the first attempt
        self._client = client
        self._addresses = addresses
        self._settings = settings
        self._keys = keys
        self._own_address = identity.broker_addr
        self._shared_address = shared_address
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
        """Return why this broker is not registered even though a name server answers."""
        for link in self.links.values():
            if link.holder is not None:
                me = self.identity
                return (
                    f"a running broker at {link.holder} is registered with brokerName"
                    f"={me.broker_name} and brokerId={me.broker_id} at the name server"
                    f" {link.address}: give this broker another brokerName, or stop the other one"
                    " (takeOverName=true takes its place)"
                )
        return None

    @property
    def route_fault(self) -> str | None:
        """Return why no name server lists this broker, so that clients cannot find it."""
        return None if self.up_count else _faults(self.links)

    @property
    def route_gap(self) -> str | None:
        """Return which name servers do not list this broker, if others do."""
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
        """Make all links register now, and return immediately; call this after each change of
        topics.
        """
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
            if link.acknowledged == self._topics.version:
                known_count += 1
                continue
            link.wake.set()
            if link.is_up:
                waiter = loop.create_future()
                link.waiters.append(waiter)
                waiters.append(waiter)
        return known_count + sum([await waiter for waiter in waiters])

    def use_role(self, broker_id: int, epoch: int) -> None:
        """Register under a new id; a name server drops the old id of the same address.

        `epoch` is the epoch of the role in a broker group; CometMQ's name servers refuse
        registrations of an earlier epoch. A master registers the address of its broker group, if
        that has one.
        """
        is_master = broker_id == MASTER_ID
        self.identity = msgspec.structs.replace(
            self.identity,
            broker_id=broker_id,
            broker_addr=(is_master and self._shared_address) or self._own_address,
            epoch=epoch,
        )
        for link in self.links.values():
            link.is_role_new = True
            if link.asked_s is not None and _now_s() - link.asked_s > STUCK_MS / 1000:
                self._client.disconnect(link.address, "a registration got no answer")
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
        """Register again in full, because a name server drops a broker when its connection
        closes.
        """
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
                group.create_task(self._leave(link, self.identity))

    async def register(self, link: Link) -> bool:
        """Bring one name server up to date; return whether that succeeded.

        As in RocketMQ, a connection on which a request was not answered is closed.
        """
        link.asked_s = _now_s()
        me = self.identity
        try:
            may_skip = not (self._settings().force_register or link.is_role_new)
            if may_skip and not await self._is_stale(link):
                self._mark_up(link)
                return True
            await self._send_registration(link)
            await self._end_former(link, me)
        except CometError as error:
            if isinstance(error, RequestTimeout):
                self._client.disconnect(link.address, "a registration got no answer")
            link.failed_count += 1
            link.acknowledged = None
            link.is_role_new = self.identity.epoch is not None
            self._note_failed(link, error)
            link.is_up = False
            link.fault = str(error) or type(error).__name__
            self._note_listed()
            return False
        finally:
            link.asked_s = None
        self._mark_up(link)
        return True

    async def _end_former(self, link: Link, now: Identity) -> None:
        """Unregister this broker's own address, if it is now listed under the broker group's
        address.

        The broker group's address is never unregistered here: the next master may have it already.
        Its own address stays listed until the new registration has succeeded, so that clients
        always find a broker of the broker group.
        """
        former, link.listed = link.listed, now
        if former is not None and former.broker_addr not in {now.broker_addr, self._shared_address}:
            await self._leave(link, former)

    def _note_failed(self, link: Link, error: CometError) -> None:
        """Warn about the first failure; warn about refusals of an earlier epoch only if they
        persist.

        During a switchover, a registration from the old master may already be in progress.
        """
        is_refused = isinstance(error, CommandError) and error.remark.startswith(
            remarks.STALE_EPOCH
        )
        link.is_refused = is_refused
        if is_refused and link.failed_count < REFUSED_COUNT_MAX:
            self._log.info("registration.refused", namesrv=link.address, error=str(error))
        elif link.is_up or link.failed_count == (REFUSED_COUNT_MAX if is_refused else 1):
            self._log.warning("namesrv.lost", namesrv=link.address, error=str(error))

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
        """Register with one name server for as long as it is in the list."""
        while True:
            link.wake.clear()
            waiting, link.waiters = link.waiters, []
            is_done = False
            try:
                if await self._listing.may_register(link):
                    is_done = await self.register(link)
                else:
                    self._note_listed()
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
            if link.is_up and not link.wake.is_set() and await self._is_lost(link):
                link.acknowledged = None
                link.watch_ms = min(2 * watch_ms, self.period_ms)
                return

    async def _is_lost(self, link: Link) -> bool:
        link.asked_s = _now_s()  # a new role does not wait for the answer
        try:
            return await self._listing.is_lost(link)
        finally:
            link.asked_s = None

    async def _send_registration(self, link: Link) -> None:
        """Send the topics that the name server lacks, or all topics, in one or more parts.

        A periodic registration of a table with several parts sends none of them again, unless the
        name server has another version.
        """
        version = self._topics.version
        is_periodic = link.acknowledged == version
        since = None if is_periodic else link.acknowledged
        parts = self._bodies.parts(since, link.part_bytes)
        is_whole = since is None and len(parts) == 1
        if is_periodic and len(parts) > 1 and not await self._is_stale(link):
            parts = [{}]
        link.is_role_new = False
        for number, topics in enumerate(parts, 1):
            is_last = number == len(parts)
            body_version = version if is_last else part_version(version, number)
            body, crc = self._bodies.encoded(topics, body_version, is_whole=is_whole)
            self._take_answer(await self._send_body(link, body, crc))
        link.acknowledged = version

    async def _send_body(self, link: Link, body: bytes, crc: int) -> Response:
        me, settings = self.identity, self._settings()
        facts = RegistrationFacts(
            me.cluster_name, me.broker_name, me.broker_addr, me.broker_id, me.ha_server_addr,
            me.epoch,
        )  # fmt: skip
        header = RegisterBroker(
            broker_name=me.broker_name,
            broker_addr=me.broker_addr,
            cluster_name=me.cluster_name,
            ha_server_addr=me.ha_server_addr,
            broker_id=me.broker_id,
            compressed=settings.compressed_register,
            body_crc32=crc,
            group_epoch=me.epoch,
            group_proof=registration_proof(self._keys(), facts, body),
        )
        try:
            return await self._client.invoke(
                link.address,
                RequestCode.REGISTER_BROKER,
                header,
                body,
                timeout_ms=settings.register_broker_timeout_mills,
            )
        except (ConnectionLost, RequestTimeout):
            # A name server closes the connection on a frame above its limit.
            if len(body) > PART_BYTES_MIN:
                link.part_bytes = max(PART_BYTES_MIN, min(len(body), link.part_bytes) // 2)
            raise

    async def _is_stale(self, link: Link) -> bool:
        """Ask the name server for its version of the topics; return whether it differs from the
        current one.
        """
        version, timeout_ms = self._topics.version, self._settings().register_broker_timeout_mills
        answer = await asked_if_changed(
            self._client, link.address, self.identity, version, timeout_ms
        )
        if answer != "false":
            return True
        link.acknowledged = version
        return False

    def _take_answer(self, response: Response) -> None:
        """Adopt the master's address and the list of ordered topics."""
        self.master_address = response.ext.get("masterAddr", self.master_address)
        self.master_ha_address = response.ext.get("haServerAddr", self.master_ha_address)
        if response.body:
            self._topics.set_ordered(decode_json(KVTable, response.body).table.keys())

    def _mark_up(self, link: Link) -> None:
        if not link.is_up:
            self._log.info("namesrv.registered", namesrv=link.address)
        link.is_up = link.is_name_checked = True
        link.is_refused = False
        link.failed_count = 0
        link.fault = ""
        self._note_listed()

    def _note_listed(self) -> None:
        """Report once that no name server lists this broker, and that one does again."""
        is_listed = bool(self.up_count)
        if not is_listed and not all(link.fault for link in self.links.values()):
            return  # some were not tried yet
        if not is_listed and self._is_listed is not False and self.route_fault:
            self._log.warning("broker.unlisted", reason=self.route_fault)
        elif is_listed and self._is_listed is False:
            self._log.info("broker.listed", namesrvs=self.up_count)
        self._is_listed = is_listed or not self.links

    async def _leave(self, link: Link, me: Identity) -> None:
        facts = RegistrationFacts(
            me.cluster_name, me.broker_name, me.broker_addr, me.broker_id, "", me.epoch,
            is_leaving=True,
        )  # fmt: skip
        header = UnregisterBroker(
            broker_name=me.broker_name,
            broker_addr=me.broker_addr,
            cluster_name=me.cluster_name,
            broker_id=me.broker_id,
            group_epoch=me.epoch,
            group_proof=registration_proof(self._keys(), facts),
        )
        try:
            await self._client.invoke(
                link.address,
                RequestCode.UNREGISTER_BROKER,
                header,
                timeout_ms=UNREGISTER_TIMEOUT_MS,
            )
        except CometError as error:
            self._log.warning("namesrv.unregister_failed", namesrv=link.address, error=str(error))


def _faults(links: Mapping[str, Link]) -> str | None:
    """Return which name servers do not list this broker, and why."""
    faults = [f"{link.address}: {link.fault}" for link in links.values() if link.fault]
    return f"not registered with {'; '.join(faults)}" if faults else None


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _release(link: Link) -> None:
    """Wake the callers that wait for a link, because no registration will follow."""
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
