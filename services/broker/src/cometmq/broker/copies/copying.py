# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the replication of a broker; `app` calls it."""

from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module

from cometmq.broker.broker import Broker
from cometmq.broker.copies.discard import Discard
from cometmq.broker.copies.exposure import exposure
from cometmq.broker.copies.fixed_role import log_server, replication_loops
from cometmq.broker.copies.joining import Joined, join, open_state
from cometmq.broker.handlers.transactions import recall_transactions
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.ha.port import RecordPort
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.runtime.extras import INSTALL_EXTRA, needs_extra


class Copying:
    """A broker's replication: its server for slaves, and its part in a broker group, if it has
    one.
    """

    def __init__(
        self,
        broker: Broker,
        workers: Workers,
        client: RemotingClient,
        *,
        discard: Discard,
        stack: AsyncExitStack,
    ) -> None:
        """`stack` stops everything that starts here, in reverse order."""
        self.joined: Joined | None = None
        self._broker = broker
        self._workers = workers
        self._client = client
        self._discard = discard
        self._stack = stack
        self._server = log_server(broker, workers.replicate, client)
        stack.callback(self._server.close)

    async def join(
        self,
        *,
        close_clients: Callable[[], None],
        clients: Callable[[], Collection[PeerProtocol]],
        record: RecordPort | None,
    ) -> None:
        """Build the broker's membership in its broker group; `begin` starts it."""
        broker = self._broker
        assert broker.tables.journal is not None
        opened = await self._workers.store.submit(
            partial(open_state, broker.settings, broker.store, broker.tables.journal)
        )
        self.joined = join(
            broker,
            opened,
            workers=self._workers,
            client=self._client,
            log_server=self._server,
            journal=broker.tables.journal,
            close_clients=close_clients,
            clients=clients,
            promoted=partial(recall_transactions, broker),
            record=record,
        )
        self._stack.push_async_callback(self.joined.close)

    async def listen(self, host: str, port: int) -> None:
        """Listen for slaves and other members."""
        await self._server.listen(host, port)
        risk = "" if self.joined is None else exposure(self._broker.settings)
        if risk:
            self._broker.log.warning(
                "group.exposed", risk=risk, port=port,
                action="give all brokers, electors and administrators of the group a groupKeyFile"
                " (docs/guides/high-availability.md)",
            )  # fmt: skip

    def begin(self) -> Iterable[tuple[str, Coroutine[None, None, None]]]:
        """Start the membership, if there is one; return the loops of replication, which the caller
        must run, with their names.
        """
        if self.joined is None:
            return replication_loops(self._broker, self._server, self._client)
        loops = self.joined.loops(self._server, self._broker.log)
        self.joined.begin()
        return loops.items()

    async def serve_control(self) -> None:
        """Serve the control API. It is stopped before all else, so that electors notice the
        stop.
        """
        broker = self._broker
        if self.joined is None or broker.settings.control_port < 0:
            return
        try:
            control = import_module("cometmq.broker.copies.control")  # gRPC: 0.15 s and 4 MB
        except ModuleNotFoundError as error:
            if not needs_extra(error):
                raise
            raise SettingsError(f"controlPort: {error}: {INSTALL_EXTRA}") from error
        server = await control.serve_control(broker, self.joined, self._discard.order)
        broker.replication.elector_count = lambda: server.electors.count
        self._stack.push_async_callback(server.stop)

    async def leave(self) -> None:
        """Leave the broker group, if there is one; a master hands over first."""
        if self.joined is not None:
            self._discard.check(self.joined.inbox.member.role, self._broker.log)
            await self.joined.leave()

    async def store_closed(self) -> None:
        """Move the files of the closed store aside, if an order demanded it (`discard.py`)."""
        if self.joined is not None:
            broker, role = self._broker, self.joined.inbox.member.role
            finish = partial(
                self._discard.finish, broker.settings, role, broker.clock.now_ms(), broker.log
            )
            await self._workers.store.submit(finish)
