# SPDX-License-Identifier: Apache-2.0
"""Makes a broker a member of a broker group: opens the member's saved state and builds, starts and
stops its membership.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from cometmq.broker.broker import Broker
from cometmq.broker.copies.gate.diversion import Diversion
from cometmq.broker.copies.gate.gate import Gate
from cometmq.broker.copies.gate.permission import Permission
from cometmq.broker.copies.members import parse_members, record_of
from cometmq.broker.copies.roles.current_role import CurrentRole
from cometmq.broker.copies.roles.inbox import Inbox
from cometmq.broker.copies.roles.master_role import MasterRole
from cometmq.broker.copies.roles.member_driver import MemberDriver
from cometmq.broker.copies.roles.membership import Membership
from cometmq.broker.copies.roles.record_watch import RecordWatch
from cometmq.broker.copies.roles.role_changes import RoleChanges
from cometmq.broker.copies.roles.role_hook import RoleHook
from cometmq.broker.copies.roles.saved_state import SavedState
from cometmq.broker.copies.roles.stale_clients import StaleClients
from cometmq.broker.copies.roles.watchdog import Watchdog
from cometmq.broker.copies.streams.epoch_log import EpochLog
from cometmq.broker.copies.streams.follower import Follower
from cometmq.broker.copies.streams.handshake import Identity
from cometmq.broker.copies.streams.proving import Proving
from cometmq.broker.copies.streams.replica import MemberReplica
from cometmq.broker.copies.streams.reports import FollowerView
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.streams.serving import TICK_INTERVAL_MS, LogServer
from cometmq.broker.copies.streams.tails import keep_tail
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.tables.journal import Journal
from cometmq.ha import epochs, in_sync
from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.durable import Files, OsFiles
from cometmq.ha.epochs import EpochFile, History
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import HandOver
from cometmq.ha.port import RecordPort
from cometmq.ha.state import Boot, State, StateFile
from cometmq.remoting.log import Log
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.runtime.clock import boottime_ms
from cometmq.runtime.process.boot import boot_id
from cometmq.runtime.tasks import every
from cometmq.store.log.commit_log import LogView
from cometmq.store.message_store import MessageStore

CUT_FOLDER: Final = "cut"


def _random_incarnation() -> str:
    return uuid4().hex


class Surroundings(NamedTuple):
    """What a membership needs from the host: clocks, randomness, files. A simulator passes its
    own.
    """

    files: Files = OsFiles()
    boot_id: Callable[[], str] = boot_id
    boottime_ms: Callable[[], int] = boottime_ms
    new_incarnation: Callable[[], str] = _random_incarnation
    keep_tail: Callable[[Path, LogView, int, int], Path] = keep_tail
    new_nonce: Callable[[int], bytes] = secrets.token_bytes


HOST: Final = Surroundings()


def open_state(
    settings: BrokerSettings, store: MessageStore, journal: Journal, host: Surroundings = HOST
) -> tuple[State, History]:
    """Load, update and save the store's state file and history, after recovery; blocks.

    A store that may have lost bytes or changes of its tables becomes a new copy (R2), and epochs
    whose bytes were lost are removed from the history (R5). Raise OSError, StateDamaged or
    EpochsDamaged.
    """
    folder, files = Path(settings.store_path_root_dir).expanduser(), host.files
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


@dataclass(slots=True)
class Joined:
    """The parts of a membership that the broker starts and stops."""

    member: Membership
    inbox: Inbox
    driver: MemberDriver
    watch: RecordWatch
    roles: RoleChanges
    current: CurrentRole
    watchdog: Watchdog
    gate: Gate
    follower: Follower
    sender: LogSender
    record: RecordPort
    linger_ms: int = 0
    hook: RoleHook | None = None

    def loops(self, server: LogServer, log: Log) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the background loops of the membership, by name."""

        def tick() -> None:
            server.tick()
            self.watchdog.tick()

        hook = {} if self.hook is None else {"role-hook": self.hook.run()}
        return {
            **hook,
            "member": self.driver.run(),
            "record": self.watch.run(),
            "leader": self.current.run(),
            "replication": every(TICK_INTERVAL_MS, tick, name="replication", log=log),
            "slave-addresses": server.addresses.run(),
        }

    def begin(self) -> None:
        """Start the membership; call this once the broker has recovered and is listening."""
        self.inbox.observe(rules.Recovered())

    async def leave(self) -> None:
        """If this broker leads, hand over to the in-sync copy with the longest log; then forward
        requests for `linger_ms`.
        """
        self.watchdog.leave()
        for _ in range(HAND_OVERS_MAX):
            leading = self.current.leading
            if leading is not None and not await self._hand_over(leading):
                return
            await self.gate.diversion.linger(self.linger_ms)
            if self.current.leading is None:
                return
            # An elector that does not know of the stop may have made this broker the master again.

    async def _hand_over(self, leading: MasterRole) -> bool:
        """Hand over; return whether another broker is now the master."""
        ready = self._successors(leading)
        for _ in range(FOLLOWERS_POLLS):  # followers of a new master may not be connected yet
            if ready or len(in_sync.certain_set(leading.confirmation.view)) == 1:
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
        members = in_sync.certain_set(leading.confirmation.view)
        return [one for one in self.sender.followers() if one.copy in members]

    async def close(self) -> None:
        """Stop following and leading; call this when the loops have ended."""
        await self.follower.leave()
        self.sender.stop()
        if self.hook is not None:
            await self.hook.stopped()
        await self.record.close()


def join(  # noqa: PLR0913  # the collaborators, all but two by name
    broker: Broker,
    opened: tuple[State, History],
    *,
    workers: Workers,
    client: RemotingClient,
    log_server: LogServer,
    journal: Journal,
    close_clients: Callable[[], None],
    clients: Callable[[], Collection[PeerProtocol]],
    promoted: Callable[[], None],
    record: RecordPort | None = None,
    host: Surroundings = HOST,
) -> Joined:
    """Build the membership without starting it; `record` overrides the record that
    the settings name.
    """
    settings = broker.settings
    state, history = opened
    folder = Path(settings.store_path_root_dir).expanduser()
    place = record or record_of(settings, broker.config.loaded.label)
    feed = TableFeed(journal, {table.file.path.name: table for table in broker.journaled})
    epoch_log = EpochLog(
        EpochFile(folder, host.files), history,
        commit_log=broker.store.commit_log, worker=workers.config,
    )  # fmt: skip
    inbox = Inbox(state.copy, state.promised, log=broker.log)
    replica = MemberReplica(
        broker.driver, epoch_log, feed, inbox,
        keep_tail=partial(host.keep_tail, folder / CUT_FOLDER), worker=workers.config,
        settings=lambda: broker.settings, now_ms=host.boottime_ms,
        log=broker.log, status=broker.replication.following,
    )  # fmt: skip
    proving = _proving(broker, state, host)
    follower = Follower(replica, proving)
    sender = LogSender(replica, port=log_server, worker=workers.replicate, proving=proving)
    log_server.serve_members(sender)
    gate = _gate(broker, client, feed, replica, inbox)

    def close_peers() -> None:
        close_clients()
        log_server.close_slaves()

    current = CurrentRole(broker)
    stale_clients = StaleClients(clients, gate.diversion.is_diverting, host.boottime_ms)
    watchdog = Watchdog(broker, inbox, current, stale_clients)
    new_leading = partial(
        MasterRole, broker, inbox=inbox, record=place, sender=sender, feed=feed,
        boottime_ms=host.boottime_ms, close_peers=close_peers,
    )  # fmt: skip
    roles = RoleChanges(
        broker, inbox=inbox, members=parse_members(settings.group_members), epoch_log=epoch_log,
        feed=feed, follower=follower, sender=sender, gate=gate, current=current, watchdog=watchdog,
        new_leading=new_leading, boottime_ms=host.boottime_ms, close_peers=close_peers,
        promoted=promoted,
    )  # fmt: skip
    saved = SavedState(state, StateFile(folder, host.files), workers.config)
    driver = MemberDriver(saved, place, roles, inbox=inbox, log=broker.log)
    member = Membership(driver, saved, roles, current=current, inbox=inbox, log=broker.log)
    watch = RecordWatch(place, saved, inbox, current=current, log=broker.log)
    return Joined(
        member, inbox, driver, watch, roles, current, watchdog, gate, follower, sender, place,
        settings.hand_over_linger_mills, _role_hook(broker),
    )  # fmt: skip


def _gate(
    broker: Broker, client: RemotingClient, feed: TableFeed, replica: MemberReplica, inbox: Inbox
) -> Gate:
    """Build the gate, and make it decide from now on whether reads of queues are served."""
    now_ms = broker.clock.monotonic_ms
    permission = Permission(changes=feed.settle, may_read_copy=replica.may_read, now_ms=now_ms)
    diversion = Diversion(client, permission, epoch_seen=inbox.epoch_seen, now_ms=now_ms)
    broker.role.may_read = permission.may_read
    return Gate(permission, diversion)


def _role_hook(broker: Broker) -> RoleHook | None:
    """Return the hook that runs the program in roleHook after each change of the role; None if the
    setting is empty.
    """
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
