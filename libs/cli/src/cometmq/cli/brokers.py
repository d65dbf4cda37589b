# SPDX-License-Identifier: Apache-2.0
"""`cometmq cluster`: every broker with its role, rates and disk."""

import asyncio
from typing import Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Cluster, Namesrv, ask
from cometmq.cli.output import AsJson, Cell, print_rows
from cometmq.cli.times import shown
from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.client.routes import MASTER_ID
from cometmq.remoting.bodies.route import ClusterInfo
from cometmq.remoting.errors import CometError

COLUMNS: Final = (
    "Cluster", "Broker", "Id", "Role", "Address", "Version", "In per s", "Out per s",
    "Messages today", "Disk percent", "Started", "State",
)  # fmt: skip

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("cluster")
def show_cluster(
    namesrv: Namesrv = DEFAULT_NAMESRV, cluster: Cluster = None, *, as_json: AsJson = False
) -> None:
    """Show every broker with its role, rates and disk; exit status 1 if one does not answer."""

    async def question(admin: AdminClient) -> list[list[Cell]]:
        info = await admin.cluster()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise InvalidArgument(f"there is no cluster {cluster}")
        async with asyncio.TaskGroup() as group:
            rows = [group.create_task(_row(admin, *place)) for place in _places(info, cluster)]
        return [row.result() for row in rows]

    rows = ask(namesrv, question)
    print_rows(COLUMNS, rows, as_json=as_json)
    if any(row[-1] != "ok" for row in rows):
        raise typer.Exit(1)


def _places(info: ClusterInfo, wanted: str | None) -> list[tuple[str, str, int, str]]:
    """Return cluster, name, id and address of every broker."""
    return [
        (cluster, name, broker_id, address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        if wanted in (None, cluster)
        for name in sorted(names)
        for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]


async def _row(
    admin: AdminClient, cluster: str, name: str, broker_id: int, address: str
) -> list[Cell]:
    role = "master" if broker_id == MASTER_ID else "slave"
    place: list[Cell] = [cluster, name, broker_id, role, address]
    try:
        facts = await admin.broker(address, name=name).runtime_info()
    except CometError as error:
        return [*place, *[None] * (len(COLUMNS) - len(place) - 1), str(error)]
    ratio = _number(facts.get("commitLogDiskRatio"))
    now = _number(facts.get("msgPutTotalTodayNow"))
    morning = _number(facts.get("msgPutTotalTodayMorning"))
    return [
        *place,
        facts.get("brokerVersionDesc"),
        _rounded(_number(facts.get("putTps"))),
        _rounded(_number(facts.get("getTransferedTps"))),
        None if now is None or morning is None else int(now - morning),
        None if ratio is None or ratio < 0 else _rounded(100 * ratio),
        shown(int(_number(facts.get("bootTimestamp")) or 0)),
        "ok",
    ]


def _number(text: str | None) -> float | None:
    """Return the first number of a text: rates come over three periods."""
    words = (text or "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
