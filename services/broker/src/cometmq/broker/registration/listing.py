# SPDX-License-Identifier: Apache-2.0
"""Compares what a name server lists with what a broker registered there.

Any program that reaches a name server without access control can replace or remove a broker, or
change its topics in the routes. The broker therefore asks every WATCH_MS whether the name server
still has the data version that it has acknowledged, and every COMPARE_MS under which address it
lists the broker. A RocketMQ name server reports a lost version only if the broker was removed,
CometMQ's also if topics may have changed.

Compatibility: QUERY_DATA_VERSION (322) and GET_BROKER_CLUSTER_INFO (106).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.broker.registration.identity import (
    TIMEOUT_MS,
    Connections,
    Identity,
    Link,
    holder_of,
    is_running,
)
from cometmq.broker.role import MASTER_ID
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.namesrv import QueryDataVersion
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log

WATCH_MS: Final = 1_000
COMPARE_MS: Final = 5_000


@dataclass(slots=True)
class Listing:
    """How name servers list this broker."""

    client: Connections
    identity: Callable[[], Identity]
    settings: Callable[[], BrokerSettings]
    log: Log

    async def may_register(self, link: Link) -> bool:
        """Return whether no other running broker is registered under this broker's name and id.

        This is checked until the first registration. If no broker of this name answers at the
        listed address, the address is out of date, often this broker's own of an earlier run; the
        registration then replaces it.
        """
        if link.is_name_checked or self.settings().group_record:
            return True  # in a group with failover, epochs decide which broker has an id
        me = self.identity()
        try:
            holder = await holder_of(self.client, link.address, me)
        except CometError:
            return True  # the registration that follows reports the failure
        if holder is None or holder == me.broker_addr:
            link.holder = None
            return True
        if self.settings().take_over_name:
            self.log.warning("broker.name_taken_over", **self._rivalry(link, holder))
        elif await is_running(self.client, holder, me.broker_name):
            if link.holder != holder:
                self.log.error("broker.name_taken", **self._rivalry(link, holder))
            link.holder = holder
            link.fault = f"a running broker at {holder} has its name and id"
            link.failed_count += 1
            return False
        link.holder = None
        return True

    async def is_lost(self, link: Link) -> bool:
        """Return whether the broker has to register again, because the name server lists another
        broker in its place, does not list it, or lacks the topics that it acknowledged.

        Slaves in a broker group do not check whether another broker has their id: they may exchange
        ids in a switchover.
        """
        with link.asking():  # a new role does not wait for the answer
            return await self._has_lost(link)

    async def _has_lost(self, link: Link) -> bool:
        is_changed = await self._is_changed(link)
        now_s = asyncio.get_running_loop().time()
        if not is_changed:
            link.watch_ms = 0
            if now_s - link.compared_s < COMPARE_MS / 1000:
                return False
        link.compared_s, me = now_s, self.identity()
        try:
            holder = await holder_of(self.client, link.address, me)
        except CometError:
            return False  # the next registration reports it
        if holder is None:
            self.log.warning("registration.lost", **self._facts(link))
            return True
        if holder == me.broker_addr:
            if is_changed:
                self.log.info("registration.incomplete", **self._facts(link))
            return is_changed
        if self.settings().group_record and me.broker_id != MASTER_ID:
            return False
        self.log.warning("broker.displaced", **self._rivalry(link, holder))
        return True

    async def _is_changed(self, link: Link) -> bool:
        """Return whether the name server has lost the version that it has acknowledged."""
        if link.acknowledged is None:
            return False
        me, version = self.identity(), link.acknowledged
        try:
            return (
                await asked_if_changed(self.client, link.address, me, version, TIMEOUT_MS) == "true"
            )
        except CometError:
            return False  # it does not know the request, or the next registration reports it

    def _facts(self, link: Link) -> dict[str, str | int]:
        me = self.identity()
        return {
            "broker_name": me.broker_name,
            "broker_id": me.broker_id,
            "address": me.broker_addr,
            "namesrv": link.address,
        }

    def _rivalry(self, link: Link, holder: str) -> dict[str, str | int]:
        return {**self._facts(link), "holder": holder}


async def asked_if_changed(
    client: Connections, namesrv: str, me: Identity, version: DataVersion, timeout_ms: int
) -> str | None:
    """Ask whether a name server lacks this version: "true", "false", or None if it won't say."""
    response = await client.invoke(
        namesrv,
        RequestCode.QUERY_DATA_VERSION,
        QueryDataVersion(**me.named),
        encode_json(version),
        timeout_ms=timeout_ms,
    )
    return response.ext.get("changed")
