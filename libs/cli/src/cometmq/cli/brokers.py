# SPDX-License-Identifier: Apache-2.0
"""`cometmq cluster`: every broker with its role, rates and disk usage."""

from typing import Final

import typer

from cometmq.cli.admin import note_missing
from cometmq.cli.connecting import DEFAULT_NAMESRV, Cluster, Namesrv, ask
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import AsJson, Cell, print_rows
from cometmq.cli.times import shown
from cometmq.client.admin import AdminClient
from cometmq.client.admin.clusters import ClusterMember
from cometmq.client.cluster.routes import MASTER_ID

COLUMNS: Final = (
    "Cluster", "Broker", "Id", "Role", "Address", "Version", "In per s", "Out per s",
    "Messages today", "Disk percent", "Started", "State",
)  # fmt: skip

REMEDY: Final = "look at its disk, its log and its /readyz"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("cluster")
def show_cluster(
    namesrv: Namesrv = DEFAULT_NAMESRV, cluster: Cluster = None, *, as_json: AsJson = False
) -> None:
    """Show brokers with role, rates and disk usage; exit status 1 if one fails.

    A broker fails if it does not answer, or if it is a master that takes no messages.
    """

    async def question(admin: AdminClient) -> list[ClusterMember]:
        return await admin.members(cluster)

    members = ask(namesrv, question)
    print_rows(COLUMNS, [_row(member) for member in members], as_json=as_json)
    for member in members:
        if member.failure is not None:
            note_missing(member.broker_name, member.address, member.failure)
        elif reasons := _refusal(member):
            place = f"{member.broker_name} ({member.address})"
            MISSING[member.address] = f"broker {place} takes no messages: {reasons}; {REMEDY}"


def _refusal(member: ClusterMember) -> str:
    """Return why a master takes no messages; slaves never take any."""
    is_master = member.broker_id == MASTER_ID
    return member.figures.writes_refused if is_master and member.figures else ""


def _row(member: ClusterMember) -> list[Cell]:
    role = "master" if member.broker_id == MASTER_ID else "slave"
    place: list[Cell] = [
        *(member.cluster, member.broker_name, member.broker_id, role, member.address)
    ]
    figures = member.figures
    if figures is None:
        return [*place, *[None] * (len(COLUMNS) - len(place) - 1), str(member.failure)]
    ratio = figures.commit_log_disk_ratio
    return [
        *place,
        figures.version,
        round(figures.incoming.tps, 1),
        round(figures.outgoing.tps, 1),
        figures.put_today,
        None if ratio is None else round(100 * ratio, 1),
        shown(figures.started_ms),
        f"takes no messages: {reasons}" if (reasons := _refusal(member)) else "ok",
    ]
