# SPDX-License-Identifier: Apache-2.0
"""mqadmin's broker commands: settings, statistics, files and clients."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from cometmq.cli.mqadmin.frame import (
    AnyBrokers,
    Column,
    Family,
    Force,
    Reply,
    Target,
    TrueFalse,
    ask_each,
    failures,
    objects,
    sections,
    table,
    text_of,
    time_column,
)
from cometmq.cli.mqadmin.group_settings import BROKER, refuse_unknown
from cometmq.cli.option_sets import opt
from cometmq.client.admin import AdminClient, ClusterMember
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.figures import Load
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.remoting.progress import difference

app = Family()

HOUR_MS: Final = 3_600_000


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


@app.asks("clusterList")
async def _cluster_list(
    admin: AdminClient,
    interval_s: Annotated[
        int | None, opt("-i", "--interval", "Repeat every N seconds until Ctrl-C.", min=1)
    ] = None,
    *,
    with_totals: Annotated[
        bool, opt("-m", "--moreStats", "Show message counts for yesterday and today instead.")
    ] = False,
    as_json: bool,
) -> Reply:
    columns, row = (TOTAL_COLUMNS, _total_row) if with_totals else (BASE_COLUMNS, _base_row)
    while True:
        members = await admin.members()
        failed = {it.address: it.failure for it in members if it.failure is not None}
        reply = table(columns, [*map(row, members)])
        if interval_s is None:
            return reply._replace(failed=failures(failed))
        reply.print(as_json=as_json)
        await asyncio.sleep(interval_s)


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


CONSUME_COLUMNS: Final = (
    Column("topic", "#Topic", "%-64.64s  "),
    Column("group", "#Group", "%-64s  "),
    Column("broker", "#Broker Name", "%-32.32s  "),
    Column("queue", "#QID", "%-4d  "),
    Column("broker_offset", "#Broker Offset", "%-20d  "),
    Column("consumer_offset", "#Consumer Offset", "%-20d  "),
    Column("diff", "#Diff", "%-20d  "),
    time_column("last_time", "#LastTime"),
)


# -- settings ---------------------------------------------------------------------------------


@app.asks("updateBrokerConfig")
async def _update_broker_config(
    admin: AdminClient,
    key: Annotated[str, opt("-k", "--key", "Name of the setting.")],
    value: Annotated[str, opt("-v", "--value", "New value.")],
    target: Target,
    *,
    force: Force = False,
) -> Reply:
    key, value = key.strip(), value.strip()
    masters = await target.masters(admin)
    if not force:
        configs, _ = await ask_each(masters, lambda one: one.config())
        for address, config in configs.items():
            refuse_unknown(key, address, config, BROKER)
    done, failed = await ask_each(
        masters, lambda one: one.update_config({key: value}, is_forced=True)
    )
    lines = [f"update broker config success, {address}" for address in done]
    return Reply("\n".join(lines), {"brokers": list(done), "key": key, "value": value}, failed)


@app.asks("getBrokerConfig")
async def _get_broker_config(admin: AdminClient, target: Target) -> Reply:
    if target.broker is not None:
        titles, members = {target.broker: target.broker}, [admin.broker(target.broker)]
    else:
        groups = list((await admin.broker_groups(target.cluster)).values())
        titles = {it.address: _role_title(group, it) for group in groups for it in group.values()}
        members = [it for group in groups for it in group.values()]
    found, failed = await ask_each(members, lambda one: one.config())
    by_title = {titles[address]: config for address, config in found.items()}
    return Reply(sections(by_title, below="\n"), found, failed)


def _role_title(group: dict[int, BrokerAdmin], member: BrokerAdmin) -> str:
    master = group.get(MASTER_ID)
    if member is master:
        return f"Master: {member.address}"
    return f"My Master: {master.address if master else None}=====Slave: {member.address}"


# -- figures ----------------------------------------------------------------------------------


@app.asks("brokerStatus")
async def _broker_status(admin: AdminClient, target: Target) -> Reply:
    found, failed = await target.ask(admin, lambda one: one.runtime_info(), with_slaves=True)
    lines = [
        f"{'' if target.broker is not None else f'{address:<24} '}{key:<32}: {value}"
        for address, facts in found.items()
        for key, value in sorted(facts.items())
    ]
    return Reply("\n".join(lines), found, failed)


@app.asks("brokerConsumeStats")
async def _broker_consume_stats(
    admin: AdminClient,
    broker: Annotated[str, opt("-b", "--brokerAddr", "Address of the broker.")],
    timeout_ms: Annotated[
        int, opt("-t", "--timeoutMillis", "Timeout of the request.", min=1)
    ] = 50_000,
    level: Annotated[int, opt("-l", "--level", "Only queues with at least this lag.", min=0)] = 0,
    order: Annotated[TrueFalse, opt("-o", "--order", "Only ordered topics.")] = "false",
) -> Reply:
    one = admin.broker(broker)
    found = await one.all_consume_stats(is_order=order == "true", timeout_ms=timeout_ms)
    rows = [
        (
            *(queue.topic, group, queue.broker_name, queue.queue_id),
            *(at.broker_offset, at.consumer_offset, diff, at.last_timestamp),
        )
        for groups in found.consume_stats_list
        for group, parts in groups.items()
        for part in parts
        for queue, at in sorted(part.offset_table.items())
        if (diff := difference(at.consumer_offset, at.broker_offset)) >= level
        and at.last_timestamp > 0
    ]
    return Reply(
        f"{text_of(CONSUME_COLUMNS, rows)}\n\nDiff Total: {found.total_diff}",
        {"queues": objects(CONSUME_COLUMNS, rows), "diff_total": found.total_diff},
    )


@app.asks("producer")
async def _producer(
    admin: AdminClient, broker: Annotated[str, opt("-b", "--broker", "Address of the broker.")]
) -> Reply:
    found = await admin.broker(broker).producers()
    lines = [
        f"producer group ({group}) instance : clientId={one.client_id},remoteIP={one.remote_ip}, "
        f"language={one.language}, version={one.version}, "
        f"lastUpdateTimestamp={one.last_update_timestamp}"
        for group, members in found.items()
        for one in members
    ]
    return Reply("\n".join(lines), found)


# -- files ------------------------------------------------------------------------------------


def _named_cleaning(name: str, clean: Callable[[BrokerAdmin], Awaitable[None]]) -> None:
    """Add a command that cleans a broker, the brokers of a cluster, or all brokers."""

    @app.asks(name)
    async def _clean(admin: AdminClient, target: AnyBrokers) -> Reply:
        done, failed = await target.ask(admin, clean, with_slaves=True)
        return Reply("false" if failed else "success", {"brokers": list(done)}, failed)


_named_cleaning("cleanExpiredCQ", BrokerAdmin.clean_expired_queues)
_named_cleaning("cleanUnusedTopic", BrokerAdmin.clean_unused_topics)
_named_cleaning("deleteExpiredCommitLog", BrokerAdmin.delete_expired_logs)
