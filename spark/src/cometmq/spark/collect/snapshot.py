# SPDX-License-Identifier: Apache-2.0
"""Takes one snapshot, querying all brokers of a cluster concurrently."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.namesrv import Namesrv, find_addresses
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo
from cometmq.remoting.errors import CometError
from cometmq.remoting.signature import signing
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.spark.collect.broker import CollectSettings, ask
from cometmq.spark.tables import rows
from cometmq.spark.tables.arrow import versioned
from cometmq.spark.tables.columns import TABLES
from cometmq.spark.tables.files import write_parquet
from cometmq.spark.tables.rows import BrokerState

MINUTE_MS: Final = 60_000


class NothingCollected(CometError):
    """No broker could be queried."""


class Snapshot(msgspec.Struct, frozen=True):
    """All brokers' answers to the queries for one snapshot."""

    snapshot_id: int
    states: list[BrokerState]

    def table(self, name: str) -> pa.Table:
        return rows.table(name, self.states)

    def tables(self) -> dict[str, pa.Table]:
        return {name: self.table(name) for name in TABLES}

    @property
    def failures(self) -> dict[str, str]:
        """Map the name of each broker that could not be queried to the reason."""
        return {it.broker_name: it.error for it in self.states if it.error is not None}


def snapshot_id_of(now_ms: int) -> int:
    """Return the snapshot id of a time: minutes since 1970."""
    return now_ms // MINUTE_MS


async def take(settings: CollectSettings, snapshot_id: int | None = None) -> Snapshot:
    """Query every broker once.

    A broker that fails is kept in the snapshot, with its error and without rows. Raises
    NothingCollected if all brokers fail, and passes on errors of the name servers.
    """
    number = snapshot_id_of(wall_ms()) if snapshot_id is None else snapshot_id
    async with _connections(settings) as remoting:
        addresses = await find_addresses(settings.namesrv, settings.namesrv_url)
        namesrv = Namesrv(addresses, remoting, timeout_ms=settings.timeout_ms)
        info = await NamesrvAdmin(namesrv).cluster()
        states = [_state_of(number, data) for data in _chosen(info, settings.cluster)]
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_asked(remoting, state, settings)) for state in states]
    snapshot = Snapshot(number, [it.result() for it in asked])
    if len(snapshot.failures) == len(snapshot.states):
        reasons = "; ".join(f"{name}: {error}" for name, error in snapshot.failures.items())
        raise NothingCollected(reasons or "no broker is registered")
    return snapshot


@asynccontextmanager
async def _connections(settings: CollectSettings) -> AsyncIterator[RemotingClient]:
    remoting = RemotingClient(
        ClientSettings(frame_bytes_max=settings.reply_bytes_max, tls=settings.tls),
        clock_ms=wall_ms,
        before=() if settings.credentials is None else (signing(settings.credentials),),
    )
    try:
        yield remoting
    finally:
        await remoting.close()


def _chosen(info: ClusterInfo, cluster: str | None) -> list[BrokerData]:
    if cluster is None:
        names = set(info.broker_addr_table)
    elif cluster in info.cluster_addr_table:
        names = set(info.cluster_addr_table[cluster])
    else:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise NothingCollected(f"cluster {cluster} does not exist; known: {known}")
    found = (info.broker_addr_table[name] for name in sorted(names))
    return [data for data in found if data.broker_addrs]


def _state_of(number: int, data: BrokerData) -> BrokerState:
    broker_id = min(data.broker_addrs)  # the master, or a slave, which has copies of the offsets
    return BrokerState(
        snapshot_id=number,
        cluster=data.cluster,
        broker_name=data.broker_name,
        broker_id=broker_id,
        address=data.broker_addrs[broker_id],
        asked_ms=wall_ms(),
    )


async def _asked(
    remoting: RemotingClient, state: BrokerState, settings: CollectSettings
) -> BrokerState:
    broker = BrokerAdmin(
        remoting, state.address, timeout_ms=settings.timeout_ms, name=state.broker_name
    )
    try:
        await ask(broker, state, settings)
    except CometError as error:
        return state.emptied(str(error))
    return state


WRITE_ORDER: Final = ("offsets", "groups", "brokers", "progress")
RAW: Final = "raw"


def hour_of(snapshot_id: int) -> datetime:
    moment = datetime.fromtimestamp(snapshot_id * 60, tz=UTC)
    return moment.replace(minute=0, second=0)


def hour_folder(hour: datetime) -> str:
    return f"dt={hour:%Y-%m-%d}/hh={hour:%H}"


def snapshot_path(root: Path, table: str, snapshot_id: int) -> Path:
    return root / RAW / table / hour_folder(hour_of(snapshot_id)) / f"snap-{snapshot_id}.parquet"


def is_taken(root: Path, snapshot_id: int) -> bool:
    """Return whether a complete snapshot of this minute exists."""
    return snapshot_path(root, WRITE_ORDER[-1], snapshot_id).exists()


def write(root: Path, snapshot: Snapshot) -> dict[str, int]:
    """Write all tables; return row counts by table, or {} if another collector has written them."""
    tables = snapshot.tables()
    if is_taken(root, snapshot.snapshot_id):
        return {}
    for name in WRITE_ORDER:
        path = snapshot_path(root, name, snapshot.snapshot_id)
        write_parquet(path, versioned(tables[name]))
    return {name: tables[name].num_rows for name in WRITE_ORDER}
