# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the replication of a broker; `app` calls it.

A member of a broker group opens its saved state, and its role follows the record of the group. The
role of any other broker is fixed by its settings, as in RocketMQ 4.9: its master's side serves
slaves (`streams/serving.py`), and its slave's side follows the log (`streams/rocketmq/slave.py`)
and copies the tables (`from_master.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.discard import Discard
from cometmq.broker.copies.from_master import MasterCopies
from cometmq.broker.copies.gate.diversion import Diversion, Gate
from cometmq.broker.copies.gate.permission import Permission
from cometmq.broker.copies.members import exposure, parse_members, record_of
from cometmq.broker.copies.roles.master_role import MasterRole
from cometmq.broker.copies.roles.member_driver import MemberDriver
from cometmq.broker.copies.roles.parts import HOST, Around, Parts, Surroundings
from cometmq.broker.copies.roles.role_changes import RoleChanges
from cometmq.broker.copies.roles.role_hook import RoleHook
from cometmq.broker.copies.streams.follower import Follower
from cometmq.broker.copies.streams.follower_stream import FollowerView
from cometmq.broker.copies.streams.handshake import Identity
from cometmq.broker.copies.streams.proving import Proving
from cometmq.broker.copies.streams.replica import EpochLog, MemberReplica
from cometmq.broker.copies.streams.rocketmq.slave import SlaveFollower
from cometmq.broker.copies.streams.rocketmq.slave_addresses import SlaveAddresses, parse_allowed
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.streams.serving import IDLE_INTERVAL_MS, TICK_INTERVAL_MS, LogServer
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.handlers.transactions import recall_transactions
from cometmq.broker.registration.identity import Invoker, slave_hosts
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.tables.journal import Journal
from cometmq.ha import epochs, in_sync
from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.epochs import EpochFile, History
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import HandOver
from cometmq.ha.port import RecordPort
from cometmq.ha.state import Boot, State, StateFile
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.runtime.extras import INSTALL_EXTRA, needs_extra
from cometmq.runtime.tasks import every
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import MessageStore

CUT_FOLDER: Final = "cut"


def open_state(
    settings: BrokerSettings, store: MessageStore, journal: Journal, host: Surroundings = HOST
) -> tuple[State, History]:
    """Load, update and save the store's state file and history, after recovery; blocks.

    A store that may have lost bytes or changes becomes a new copy (R2), and epochs whose bytes were
    lost are removed (R5). Raise OSError, StateDamaged or EpochsDamaged.
    """
    folder, files = _folder(settings), host.files
    epoch_file, state_file = EpochFile(folder, files), StateFile(folder, files)
    saved = epoch_file.load()
    truncated = epochs.truncated(saved, store.commit_log.end)
    history = epochs.pruned(truncated, store.commit_log.min_offset)
    if history != saved:
        epoch_file.save(history)
    name, ordinal = settings.broker_name, settings.broker_id
    boot = Boot(
        boot_id=host.boot_id(),
        was_closed=store.upkeep.recovered.was_clean,
        has_cut_records=bool(
            store.upkeep.recovered.has_cut_records or truncated != saved or journal.replay.damage
        ),
    )
    known = state_file.load(name, ordinal)
    before = known or states.created(name, ordinal, boot.boot_id, host.new_incarnation)
    state = states.started(before, boot, host.new_incarnation)
    if state != known:
        state_file.save(state)
    return state, history


HAND_OVERS_MAX: Final = 3
"""How many times a stopping broker tries to hand over; if all attempts fail, a failover follows."""
FOLLOWERS_POLLS: Final = 60
FOLLOWERS_POLL_S: Final = 0.05


class Joined:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.member = parts.member
        self.roles = self.member.duties = RoleChanges(parts)
        self.hook = _role_hook(parts.broker)

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:

        server, log = self.parts.around.server, self.parts.broker.log

        def tick() -> None:
            server.tick()
            self.roles.watchdog.tick()

        hook = {} if self.hook is None else {"role-hook": self.hook.run()}
        return {
            **hook,
            "member": self.member.run(),
            "leader": self.roles.run(),
            "replication": every(TICK_INTERVAL_MS, tick, name="replication", log=log),
            "slave-addresses": server.addresses.run(),
        }

    def begin(self) -> None:
        """Start the membership; call this once the broker has recovered and is listening."""
        self.member.observe(rules.Recovered())

    async def leave(self) -> None:
        """Hand over if this broker leads; then forward requests for `handOverLingerMills`."""
        self.roles.watchdog.leave()
        for _ in range(HAND_OVERS_MAX):
            leading = self.roles.leading
            if leading is not None and not await self._hand_over(leading):
                return
            await self.parts.gate.diversion.linger(
                self.parts.broker.settings.hand_over_linger_mills
            )
            if self.roles.leading is None:
                return
            # An elector that does not know of the stop may have made this broker the master again.

    async def _hand_over(self, leading: MasterRole) -> bool:
        ready = self._successors(leading)
        for _ in range(FOLLOWERS_POLLS):  # followers of a new master may not be connected yet
            if ready or len(in_sync.certain_set(leading.view)) == 1:
                break
            await asyncio.sleep(FOLLOWERS_POLL_S)
            ready = self._successors(leading)
        if not ready:
            return False
        best = max(ready, key=lambda one: one.acked_offset)
        try:
            await self.member.obey(HandOver(best.copy.ordinal))
        except OrderRefused:
            return False
        return True

    def _successors(self, leading: MasterRole) -> list[FollowerView]:
        members = in_sync.certain_set(leading.view)
        return [one for one in self.parts.sender.followers() if one.copy in members]

    async def close(self) -> None:
        await self.parts.follower.leave()
        self.parts.sender.stop()
        if self.hook is not None:
            await self.hook.stopped()
        await self.member.record.close()


def join(
    broker: Broker,
    opened: tuple[State, History],
    around: Around,
    *,
    journal: Journal,
    record: RecordPort | None = None,
) -> Joined:
    """Build the membership without starting it; `record` overrides that of the settings."""
    settings, host, workers = broker.settings, around.host, around.workers
    state, history = opened
    folder = _folder(settings)
    feed = TableFeed(journal, {table.file.path.name: table for table in broker.journaled})
    epoch_log = EpochLog(
        EpochFile(folder, host.files), history,
        commit_log=broker.store.commit_log, worker=workers.config,
    )  # fmt: skip
    member = MemberDriver(
        state, StateFile(folder, host.files), worker=workers.config,
        record=record or record_of(settings, broker.config.loaded.label), log=broker.log,
    )  # fmt: skip
    replica = MemberReplica(
        broker.driver, epoch_log, feed, member,
        keep_tail=partial(host.keep_tail, folder / CUT_FOLDER), worker=workers.config,
        settings=lambda: broker.settings, now_ms=host.boottime_ms,
        log=broker.log, status=broker.replication.following,
    )  # fmt: skip
    proving = _proving(broker, state, host)
    sender = LogSender(replica, port=around.server, worker=workers.replicate, proving=proving)
    around.server.serve_members(sender)
    parts = Parts(
        broker, around, member, parse_members(settings.group_members), epoch_log, feed,
        Follower(replica, proving), sender,
        _gate(broker, around.client, feed, replica, member),
    )  # fmt: skip
    return Joined(parts)


def _folder(settings: BrokerSettings) -> Path:
    return Path(settings.store_path_root_dir).expanduser()


def _gate(
    broker: Broker,
    client: RemotingClient,
    feed: TableFeed,
    replica: MemberReplica,
    member: MemberDriver,
) -> Gate:
    """Build the gate, and make it decide from now on whether reads of queues are served."""
    now_ms = broker.clock.monotonic_ms
    permission = Permission(changes=feed.settle, may_read_copy=replica.may_read, now_ms=now_ms)
    diversion = Diversion(client, permission, epoch_seen=member.epoch_seen, now_ms=now_ms)
    broker.role.may_read = permission.may_read
    return Gate(permission, diversion)


def _role_hook(broker: Broker) -> RoleHook | None:
    settings, role = broker.settings, broker.role
    if not settings.role_hook:
        return None
    hook = RoleHook(settings.role_hook, settings.broker_name, role.state, log=broker.log)
    role.changed = hook.tell
    return hook


def _proving(broker: Broker, state: State, host: Surroundings) -> Proving:
    settings = broker.settings
    return Proving(
        identity=Identity(settings.broker_cluster_name, settings.broker_name, state.copy),
        keys=broker.admission.member_keys.current,
        is_required=settings.group_key_required,
        shown=f"{broker.config.loaded.label('groupKeyFile')}={settings.group_key_file}",
        new_nonce=host.new_nonce,
    )


class Copying:
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
        clients: Callable[[], Collection[PeerProtocol]],
        record: RecordPort | None,
    ) -> None:
        broker = self._broker
        assert broker.tables.journal is not None
        opened = await self._workers.store.submit(
            partial(open_state, broker.settings, broker.store, broker.tables.journal)
        )
        promoted = partial(recall_transactions, broker)
        around = Around(self._workers, self._client, self._server, clients, promoted)
        self.joined = join(broker, opened, around, journal=broker.tables.journal, record=record)
        self._stack.push_async_callback(self.joined.close)

    async def listen(self, host: str, port: int) -> None:
        await self._server.listen(host, port)
        risk = "" if self.joined is None else exposure(self._broker.settings)
        if risk:
            self._broker.log.warning(
                "group.exposed", risk=risk, port=port,
                action="give all brokers, electors and administrators of the group a groupKeyFile"
                " (docs/guides/high-availability.md)",
            )  # fmt: skip

    def begin(self) -> Iterable[tuple[str, Coroutine[None, None, None]]]:
        """Start the membership, if there is one; return the loops to run, with their names."""
        if self.joined is None:
            return replication_loops(self._broker, self._server, self._client)
        loops = self.joined.loops()
        self.joined.begin()
        return loops.items()

    async def serve_control(self) -> None:
        """Serve the control API; it is stopped first, so that electors notice the stop."""
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
            self._discard.check(self.joined.member.state.role, self._broker.log)
            await self.joined.leave()

    async def store_closed(self) -> None:
        """Move the files of the closed store aside, if an order demanded it (`discard.py`)."""
        if self.joined is not None:
            broker, role = self._broker, self.joined.member.state.role
            finish = partial(
                self._discard.finish, broker.settings, role, broker.clock.now_ms(), broker.log
            )
            await self._workers.store.submit(finish)


def log_server(broker: Broker, worker: Worker, client: Invoker) -> LogServer:
    """Build the server for slaves; `worker` reads cold slices, `client` asks name servers."""

    def look_up() -> Awaitable[list[str] | None]:
        return slave_hosts(client, list(broker.registration.links), broker.settings.broker_name)

    return LogServer(
        broker.driver,
        broker.replication.slaves,
        worker=worker,
        settings=lambda: broker.settings,
        addresses=SlaveAddresses(
            parse_allowed(broker.settings.ha_slave_addresses),
            look_up,
            now_ms=broker.clock.monotonic_ms,
            log=broker.log,
        ),
        clock=broker.clock,
        log=broker.log,
    )


def replication_loops(
    broker: Broker, server: LogServer, client: Invoker
) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
    """Yield the loops by name; those of the slave's side do nothing on a master."""
    follower, copies = slave_side(broker, client)

    def tick() -> None:
        server.tick()
        follower.tick()

    def tick_interval_ms() -> int:
        is_idle = server.connection_count == 0 and not broker.role.is_slave
        return IDLE_INTERVAL_MS if is_idle else TICK_INTERVAL_MS

    settings, log = broker.settings, broker.log
    yield "follow", follower.run()
    yield "slave-addresses", server.addresses.run()
    yield "replication", every(tick_interval_ms, tick, name="replication", log=log)
    yield (
        "copies",
        every(
            settings.slave_sync_interval_mills,
            copies.step,
            name="copies",
            log=log,
            first_ms=settings.slave_sync_delay_mills,
        ),
    )


def slave_side(broker: Broker, client: Invoker) -> tuple[SlaveFollower, MasterCopies]:
    """Build what follows the master's log and copies its tables; each calls the other."""

    def is_slave() -> bool:
        return broker.role.is_slave and not broker.process.is_stopping

    def inspect() -> Awaitable[None]:
        return copies.inspect()

    follower = SlaveFollower(
        broker.driver,
        broker.replication.following,
        is_slave=is_slave,
        address=lambda: master_ha_address(broker),
        inspect=inspect,
        settings=lambda: broker.settings,
        clock=broker.clock,
        log=broker.log,
    )
    copies = MasterCopies(broker, client, is_slave=is_slave, note_unfit=follower.note_unfit)
    return follower, copies


def master_ha_address(broker: Broker) -> str:
    """Return the master's HA address: the configured one, or the one that name servers report."""
    address = broker.settings.ha_master_address or broker.registration.registrant.master_ha_address
    return "" if address == broker.registration.registrant.identity.ha_server_addr else address
