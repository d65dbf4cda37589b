# SPDX-License-Identifier: Apache-2.0
"""Opens what a broker needs on its disk: folders, store, journal and accounts; all of it blocks."""

import time
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.broker.acl.check import AccessControl, Rules
from cometmq.broker.acl.files import AclFiles
from cometmq.broker.native import open_native_code, open_native_writes
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.journal import Journal
from cometmq.remoting.log import Log
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.clock import Clock
from cometmq.runtime.places import prepare_folder
from cometmq.runtime.process.memory import memory_limit_bytes
from cometmq.runtime.process.system import boot_id, connections_within, open_files_limit
from cometmq.runtime.settings import Loaded
from cometmq.runtime.tls_keys import Label, server_tls
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.recovery.start import StartReason
from cometmq.store.settings import BrokerRole

ACL_FILE: Final = "plain_acl.yml"
PAUSE_S: Final = 0.0002
"""How long a job that computes for long pauses; long enough for the loop to take over."""


def prepare_folders(loaded: Loaded[BrokerSettings]) -> None:
    settings, label = loaded.value, loaded.label
    root = Path(settings.store_path_root_dir).expanduser()
    prepare_folder(root, setting=label("storePathRootDir"))
    if settings.store_path_commit_log:
        commit_log = Path(settings.store_path_commit_log).expanduser()
        prepare_folder(commit_log, setting=label("storePathCommitLog"))


def open_store(settings: BrokerSettings, *, clock: Clock, log: Log) -> MessageStore:
    return MessageStore.open(
        settings,
        disk=OsDisk(open_files_max=store_files_max(settings), native=open_native_writes(settings)),
        clock_ms=clock.now_ms,
        monotonic_ms=clock.monotonic_ms,
        log=log,
        memory_bytes=memory_limit_bytes(),
        boot_id=boot_id(),
        native=open_native_code(settings, log),
        has_copies=bool(settings.group_record) or settings.broker_role is BrokerRole.SLAVE,
        pause=partial(time.sleep, PAUSE_S),
    )


def was_killed(store: MessageStore) -> bool:
    """Return whether the last run was killed after its first checkpoint: it had a journal."""
    recovered = store.upkeep.recovered
    return not recovered.was_clean and recovered.start.reason is StartReason.PROGRESS


def open_journal(
    settings: BrokerSettings, store: MessageStore, *, worker: Worker, log: Log
) -> Journal:
    return Journal(
        OsDisk(),
        store.layout.journal,
        worker=worker,
        log=log,
        keeps_position=bool(settings.group_record),
        was_killed=was_killed(store),
        log_end=lambda: store.commit_log.end,
    )


def open_acl(
    settings: BrokerSettings,
    config_path: Path | None,
    own_account: Account | None,
    *,
    clock: Clock,
    log: Log,
) -> tuple[AclFiles, AccessControl]:
    path = acl_path(settings, config_path)
    files = AclFiles(path, clock_ms=clock.now_ms, log=log)
    accounts = files.load()
    if accounts.is_empty:
        log.warning("accounts.missing", file=str(path))
    rules = Rules(
        is_rocketmq_4=settings.acl_rocketmq_4_rights, signed_age_ms_max=settings.acl_signed_age_max
    )
    return files, AccessControl(accounts, own_account, clock_ms=clock.now_ms, rules=rules)


def acl_path(settings: BrokerSettings, config_path: Path | None) -> Path:
    if settings.acl_file:
        path = Path(settings.acl_file)
    elif settings.rocketmq_home:
        path = Path(settings.rocketmq_home) / "conf" / ACL_FILE
    elif config_path is not None:
        path = config_path.with_name(ACL_FILE)
    else:
        path = Path(settings.store_path_root_dir) / "config" / ACL_FILE
    return path.expanduser().absolute()


def store_files_max(settings: BrokerSettings) -> int:
    """Return how many of its files the store may keep open."""
    return min(settings.open_queue_files_max, open_files_limit() // 2)


def server_settings(settings: BrokerSettings, label: Label = str) -> ServerSettings:
    return ServerSettings(
        connections_max=connections_within(
            settings.connections_max, files_max=store_files_max(settings)
        ),
        in_flight_per_connection_max=settings.connection_in_flight_max,
        in_flight_max=settings.in_flight_max,
        write_high_water_bytes=settings.write_buffer_high_bytes,
        write_low_water_bytes=settings.write_buffer_high_bytes // 4,
        unsent_bytes_max=settings.write_buffer_hard_bytes,
        unsent_total_bytes_max=settings.write_buffer_total_bytes,
        idle_timeout_ms=settings.server_channel_max_idle_time_seconds * 1000,
        tls=server_tls(settings, label),
    )
