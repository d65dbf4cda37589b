# SPDX-License-Identifier: Apache-2.0
"""mqadmin's clusterList: every broker with its load, once or periodically."""

import asyncio
from typing import Annotated, Any, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, exit_if_any, print_table
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient, ClusterMember
from cometmq.client.admin.figures import Load
from cometmq.client.clock import wall_ms
from cometmq.remoting.errors import CometError

HOUR_MS: Final = 3_600_000

app = Family()


def _load_text(load: Load) -> str:
    return f"{load.tps:9.2f}({load.waiting},{load.wait_ms}ms)"


BASE_COLUMNS: Final = (
    Column("cluster", "#Cluster Name", "%-16s  "),
    Column("broker", "#Broker Name", "%-22s  "),
    Column("id", "#BID", "%-4s  "),
    Column("address", "#Addr", "%-22s "),
    Column("version", "#Version", "%-16s "),
    Column("incoming", "#InTPS(LOAD)", "%19s ", text=_load_text),
    Column("outgoing", "#OutTPS(LOAD)", "%19s ", text=_load_text),
    Column("page_cache_wait_ms", "#PCWait(ms)", "%10s "),
    Column("hours", "#Hour", "%5.2f "),
    Column("space", "#SPACE", "%6.4f"),
)
TOTAL_COLUMNS: Final = (
    Column("cluster", "#Cluster Name", "%-16s  "),
    Column("broker", "#Broker Name", "%-32s "),
    Column("in_yesterday", "#InTotalYest", "%14d "),
    Column("out_yesterday", "#OutTotalYest", "%14d "),
    Column("in_today", "#InTotalToday", "%14d "),
    Column("out_today", "#OutTotalToday", "%14d"),
)


@app.named("clusterList")
def cluster_list(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    interval_s: Annotated[
        int | None,
        typer.Option("-i", "--interval", min=1, help="Repeat every N seconds until Ctrl-C."),
    ] = None,
    *,
    with_totals: Annotated[
        bool,
        typer.Option(
            "-m", "--moreStats", help="Show message counts for yesterday and today instead."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every broker with its load."""

    async def show(admin: AdminClient) -> dict[str, CometError]:
        members = await admin.members()
        if with_totals:
            print_table(TOTAL_COLUMNS, map(_total_row, members), as_json=as_json)
        else:
            print_table(BASE_COLUMNS, map(_base_row, members), as_json=as_json)
        return {it.address: it.failure for it in members if it.failure is not None}

    async def question(admin: AdminClient) -> dict[str, CometError]:
        failures = await show(admin)
        while interval_s is not None:
            await asyncio.sleep(interval_s)
            failures = await show(admin)
        return failures

    exit_if_any(ask(namesrv, question))


def _base_row(member: ClusterMember) -> tuple[Any, ...]:
    place = (member.cluster, member.broker_name, member.broker_id, member.address)
    figures = member.figures
    if figures is None:
        return (*place, *[None] * (len(BASE_COLUMNS) - len(place)))
    earliest_ms = figures.earliest_message_ms
    hours = 0.0 if earliest_ms is None else (wall_ms() - earliest_ms) / HOUR_MS
    return (
        *(*place, figures.version, figures.incoming, figures.outgoing),
        *(figures.page_cache_lock_ms, hours, figures.commit_log_disk_ratio or 0.0),
    )


def _total_row(member: ClusterMember) -> tuple[Any, ...]:
    figures = member.figures
    if figures is None:
        return (member.cluster, member.broker_name, None, None, None, None)
    return (
        *(member.cluster, member.broker_name, figures.put_yesterday, figures.got_yesterday),
        *(figures.put_today, figures.got_today),
    )
