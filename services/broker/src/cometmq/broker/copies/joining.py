# SPDX-License-Identifier: Apache-2.0
"""Makes a broker a member of a broker group: opens the member's saved state and builds, starts and
stops its membership.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.gate.diversion import Diversion
from cometmq.broker.copies.gate.gate import Gate
from cometmq.broker.copies.gate.permission import Permission
from cometmq.broker.copies.members import parse_members, record_of
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
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.streams.serving import TICK_INTERVAL_MS
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.journal import Journal
from cometmq.ha import epochs, in_sync
from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.epochs import EpochFile, History
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import HandOver
from cometmq.ha.port import RecordPort
from cometmq.ha.state import Boot, State, StateFile
from cometmq.remoting.transport.client import RemotingClient
from cometmq.runtime.tasks import every
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
