# SPDX-License-Identifier: Apache-2.0
"""The elector of a group, and the control clients of its brokers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from cometmq.control.client import MemberClient
from cometmq.control.controlled import Target
from cometmq.elector.app import ElectorApp
from cometmq.elector.elector import Elector
from cometmq.elector.metrics import ElectorStats
from cometmq.elector.settings import ElectorSettings
from cometmq.ha.actions import Tell
from cometmq.ha.orders import Order
from cometmq.ha.port import RecordPort
from cometmq.ha.proof import Keys
from cometmq.ha.record import Record
from cometmq.operator.broker_groups.group import CONTROL_PORT, MAIN_PORT, BrokerGroup
from cometmq.operator.broker_groups.seen import Election
from cometmq.operator.broker_groups.user_orders import AcceptLoss
from cometmq.remoting.log import Log
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.runtime.clock import Clock
from cometmq.runtime.settings import Loaded


class MemberAccess(msgspec.Struct, frozen=True):
    """How a member's ports are reached."""

    tls: TlsSettings | None = None
    """None means plain connections."""
    name: str = ""
    """The name in the member's certificate, if it differs from the member's host."""
    has_key: bool = False
    """Whether the member has the key of its group, so that it must prove itself."""


PLAIN: Final = MemberAccess()


class Addresses(msgspec.Struct, frozen=True):
    """Addresses of a broker's ports, by group and ordinal; tests replace them."""

    control: Callable[[BrokerGroup, int], str] = lambda group, one: (
        f"{group.host(one)}:{CONTROL_PORT}"
    )
    main: Callable[[BrokerGroup, int], str] = lambda group, one: f"{group.host(one)}:{MAIN_PORT}"


class GroupElector:
    """Elects masters of one group in the background, and forwards orders to its brokers.

    Failover runs here, independently of passes over Kubernetes objects: it continues while the
    group is paused, and while the API server rejects its objects.
    """

    def __init__(
        self, record: RecordPort, *, clock: Clock, log: Log, addresses: Addresses | None = None
    ) -> None:
        self._record_port = record
        self._clock = clock
        self._log = log
        self.addresses = addresses or Addresses()
        self._app: ElectorApp | None = None
        self._settings: ElectorSettings | None = None
        self.links: Mapping[int, MemberAccess] = {}
        """How each control port is reached, from the last call of `look_after`."""
        self.master_opened = asyncio.Event()
        """Set when a master opens; the waiting task clears it."""
        self.keys: Keys = ()
        """The group's keys, for the members that have them."""

    @property
    def elector(self) -> Elector | None:
        return None if self._app is None else self._app.elector

    @property
    def stats(self) -> ElectorStats | None:
        return None if self.elector is None else self.elector.stats

    @property
    def open_master(self) -> Record | None:
        """The record, if the member that it names is open as the master of its
        epoch; otherwise None.
        """
        stats = self.stats
        return stats.record if stats and stats.is_record_reachable and stats.has_master else None

    @property
    def election(self) -> Election:
        elector = self.elector
        if elector is None:
            return Election()
        fault = ("RecordUnreachable", elector.fault) if elector.fault else None
        if waiting := elector.stats.waiting:
            fault = waiting.reason.value, waiting.text
        members = elector.members.by_ordinal
        return Election(
            record=elector.stats.record,
            is_record_known=elector.stats.is_record_reachable,
            has_looked=elector.has_ended_a_round,
            asked=tuple(members),
            statuses=elector.members.statuses,
            reported_keys={
                ordinal: one.report.group_keys
                for ordinal, one in members.items()
                if one.report is not None
            },
            is_accepting_loss=elector.restoration.is_accepting_loss,
            fault=fault,
        )

    def accept_loss(self, order: AcceptLoss) -> None:
        """Allow the elector to create the record once, although messages may be lost."""
        if self.elector is not None:
            self.elector.restoration.accept_loss(order.epoch, order.copies)

    async def look_after(
        self,
        group: BrokerGroup,
        ordinals: range,
        leaving: frozenset[int],
        links: Mapping[int, MemberAccess],
    ) -> None:
        """Start electing masters among these brokers; if any argument has changed, start again.

        A renewed certificate counts as a change, because the TLS settings in `links` name files
        whose paths change with their content. A member that is missing in `links` is reached
        without TLS.
        """
        replication = group.spec.replication
        members = (f"{one}={self.addresses.control(group, one)}" for one in ordinals)
        settings = ElectorSettings(
            broker_name=group.broker_name,
            group_record=f"kubernetes:{group.namespace}/{group.name}",
            control_members=";".join(members),
            leaving_members=";".join(str(one) for one in sorted(leaving)),
            min_in_sync=min(replication.min_in_sync, len(ordinals) - len(leaving)),
            renew_deadline_mills=replication.renew_deadline_ms,
            heard_within_mills=replication.heard_within_ms,
        )
        if settings == self._settings and links == self.links:
            return
        await self.close()
        self.links = dict(links)
        app = ElectorApp(
            Loaded(settings, {}, {}),
            log=self._log,
            clock=self._clock,
            record=self._record_port,
            accept_with=f"cometmq k8s accept-loss {group.name}",
            tls_of=self._tls_of,
            keys_of=self._keys_of,
            master_opened=self.master_opened.set,
        )
        await app.start()
        self._app, self._settings = app, settings

    async def close(self) -> None:
        """Stop electing; an election in progress is completed by the next elector."""
        app, self._app, self._settings = self._app, None, None
        if app is not None:
            await app.stop()

    def _tls_of(self, ordinal: int) -> tuple[TlsSettings | None, str]:
        link = self.links.get(ordinal, PLAIN)
        return link.tls, link.name

    def _keys_of(self, ordinal: int) -> Keys:
        return self.keys if self.links.get(ordinal, PLAIN).has_key else ()

    @asynccontextmanager
    async def client(self, group: BrokerGroup, ordinal: int) -> AsyncIterator[MemberClient]:
        """Connect to the control port of a broker for a few calls."""
        link, keys = self.links.get(ordinal, PLAIN), self._keys_of(ordinal)
        address = self.addresses.control(group, ordinal)
        target = Target(group.broker_name, ordinal)
        client = MemberClient(address, target, tls=link.tls, tls_name=link.name, keys=lambda: keys)
        try:
            yield client
        finally:
            await client.close()

    async def tell(self, group: BrokerGroup, action: Tell[Order]) -> None:
        """Send a broker an order; raise CometError if it refuses or does not answer."""
        async with self.client(group, action.ordinal) as it:
            await it.order(action.order)
