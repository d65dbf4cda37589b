# SPDX-License-Identifier: Apache-2.0
"""Registers this broker with one name server, under its current identity, and unregisters it.

Compatibility: REGISTER_BROKER (103) plain or compressed, UNREGISTER_BROKER (104), and
QUERY_DATA_VERSION (322) if forceRegister is off. As in RocketMQ, a broker without read or write
permission registers all its topics with its own permission.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.registration.bodies import PART_BYTES_MIN, Bodies, part_version
from cometmq.broker.registration.identity import Connections, Identity, Link
from cometmq.broker.registration.listing import Listing, asked_if_changed
from cometmq.broker.role import MASTER_ID
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.topics import Topics
from cometmq.ha.proof import Keys, registration_proof
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.namesrv import RegisterBroker, UnregisterBroker
from cometmq.remoting.commands.table import PUBLIC, Service
from cometmq.remoting.errors import CometError, CommandError, ConnectionLost, RequestTimeout
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.signature import credentials_of, signing
from cometmq.remoting.types import Buffer

STUCK_MS: Final = 500
"""How long the registration of a new role waits for an earlier one; then the connection is closed.
After a network failure, packets are retransmitted at growing intervals, so a new connection is
faster.
"""
REFUSED_COUNT_MAX: Final = 5
"""Number of successive refusals of an earlier epoch, over 3 s, that cause a warning."""
UNREGISTER_TIMEOUT_MS: Final = 3_000


class Registrant:
    """Sends this broker's identity and topics; learns its master's address."""

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        client: Connections,
        *,
        settings: Callable[[], BrokerSettings],
        keys: Callable[[], Keys] = lambda: (),
        shared_address: str = "",
        log: Log = NO_LOG,
    ) -> None:
        """`settings` and `keys` return the current settings and the current keys of the broker
        group, which may change at run time. `shared_address` is the one address at which the broker
        group's master is reached (`groupAddress`); `identity` has the broker's own address.
        """
        self.identity = identity
        self.master_address = ""  # of this broker's master, as the name servers report it
        self.master_ha_address = ""
        self.listing = Listing(client, lambda: self.identity, settings, log)
        self._topics = topics
        self._bodies = Bodies(topics, settings)
        self._client = client
        self._settings = settings
        self._keys = keys
        self._own_address = identity.broker_addr
        self._shared_address = shared_address
        self._log = log

    def use_role(self, broker_id: int, epoch: int) -> None:
        """Register under a new id from now on.

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

    def is_current(self, link: Link) -> bool:
        """Return whether a name server has acknowledged the current topics."""
        return link.acknowledged == self._topics.version

    def end_stuck(self, link: Link) -> None:
        """Close the connection to a name server whose answer is pending for more than STUCK_MS."""
        now_s = asyncio.get_running_loop().time()
        if link.asked_s is not None and now_s - link.asked_s > STUCK_MS / 1000:
            self._client.disconnect(link.address, "a registration got no answer")

    async def register(self, link: Link) -> bool:
        """Bring one name server up to date; return whether that succeeded.

        As in RocketMQ, a connection on which a request was not answered is closed.
        """
        me = self.identity
        try:
            with link.asking():
                may_skip = not (self._settings().force_register or link.is_role_new)
                if not may_skip or await self._is_stale(link):
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
            return False
        if not link.is_up:
            self._log.info("namesrv.registered", namesrv=link.address)
        link.is_up = link.is_name_checked = True
        link.is_refused = False
        link.failed_count = 0
        link.fault = ""
        return True

    async def leave(self, link: Link, me: Identity) -> None:
        """Unregister an identity; log a failure."""
        header = UnregisterBroker(**me.named, group_epoch=me.epoch)
        proof = registration_proof(self._keys(), header)
        header = msgspec.structs.replace(header, group_proof=proof)
        try:
            await self._client.invoke(
                link.address,
                RequestCode.UNREGISTER_BROKER,
                header,
                timeout_ms=UNREGISTER_TIMEOUT_MS,
            )
        except CometError as error:
            self._log.warning("namesrv.unregister_failed", namesrv=link.address, error=str(error))

    async def _end_former(self, link: Link, now: Identity) -> None:
        """Unregister the broker's own address after it was registered as master
        under `shared_address`.

        The own address stays listed until then, so that clients always find a broker of the group.
        The shared address is never unregistered here, because the next master may have it already.
        """
        former, link.listed = link.listed, now
        if former is not None and former.broker_addr not in {now.broker_addr, self._shared_address}:
            await self.leave(link, former)

    def _note_failed(self, link: Link, error: CometError) -> None:
        """Warn about the first failure. Warn about refusals of an earlier epoch only after
        REFUSED_COUNT_MAX: in a switchover, a registration of the old master may be on its way.
        """
        is_refused = isinstance(error, CommandError) and error.remark.startswith(
            remarks.STALE_EPOCH
        )
        link.is_refused = is_refused
        if is_refused and link.failed_count < REFUSED_COUNT_MAX:
            self._log.info("registration.refused", namesrv=link.address, error=str(error))
        elif link.is_up or link.failed_count == (REFUSED_COUNT_MAX if is_refused else 1):
            self._log.warning("namesrv.lost", namesrv=link.address, error=str(error))

    async def _send_registration(self, link: Link) -> None:
        """Send the topics that the name server lacks, or all topics, in one or more parts.

        A periodic registration sends a table with several parts only if the name server has another
        data version.
        """
        version = self._topics.version
        is_periodic = self.is_current(link)
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
        header = RegisterBroker(
            **me.named,
            ha_server_addr=me.ha_server_addr,
            compressed=settings.compressed_register,
            body_crc32=crc,
            group_epoch=me.epoch,
        )
        proof = registration_proof(self._keys(), header, body)
        header = msgspec.structs.replace(header, group_proof=proof)
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
        """Ask the name server whether its version of the topics differs from the current one."""
        version, timeout_ms = self._topics.version, self._settings().register_broker_timeout_mills
        answer = await asked_if_changed(
            self._client, link.address, self.identity, version, timeout_ms
        )
        if answer != "false":
            return True
        link.acknowledged = version
        return False

    def _take_answer(self, response: Response) -> None:
        """Adopt the master's address and the list of ordered topics from an answer."""
        self.master_address = response.ext.get("masterAddr", self.master_address)
        self.master_ha_address = response.ext.get("haServerAddr", self.master_ha_address)
        if response.body:
            self._topics.set_ordered(decode_json(KVTable, response.body).table.keys())


SIGNED: Final = frozenset(
    code
    for code, command in COMMANDS.items()
    if Service.NAMESRV in command.services and command.access is not PUBLIC
)
"""The requests that are signed. Requests to other brokers are not: they need no
account, and could reuse a signature.
"""

Hook = Callable[[int, dict[str, str], Buffer], None]


def registration_signing(settings: BrokerSettings) -> tuple[Hook, ...]:
    """Return the hooks that sign the requests of the broker's client; raise SettingsError if only
    one of access key and secret key is set.
    """
    credentials = credentials_of(settings.access_key, settings.secret_key)
    if credentials is None:
        return ()
    sign = signing(credentials)

    def sign_registrations(code: int, ext: dict[str, str], body: Buffer) -> None:
        if code in SIGNED:
            sign(code, ext, body)

    return (sign_registrations,)
