# SPDX-License-Identifier: Apache-2.0
"""mqadmin's broker commands: settings, statistics, files and clients."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin import COMMANDS
from cometmq.cli.mqadmin.frame import (
    AnyBrokers,
    Column,
    Family,
    Force,
    Namesrv,
    Target,
    TrueFalse,
    ask_each,
    exit_if_any,
    print_done,
    print_table,
    time_column,
    to_object,
)
from cometmq.cli.mqadmin.group_settings import BROKER, refuse_unknown
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient, ClusterMember
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.figures import Load
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.remoting.bodies.connections import ProducerInfo
from cometmq.remoting.bodies.stats import BrokerConsumeStats
from cometmq.remoting.errors import CometError
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

OneBroker = Annotated[str, typer.Option("-b", "--brokerAddr", help="Address of the broker.")]


# -- settings ---------------------------------------------------------------------------------


@app.named("updateBrokerConfig")
def update_broker_config(
    key: Annotated[str, typer.Option("-k", "--key", help="Name of the setting.")],
    value: Annotated[str, typer.Option("-v", "--value", help="New value.")],
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Change a setting of running brokers."""
    key, value = key.strip(), value.strip()

    async def question(admin: AdminClient) -> tuple[dict[str, None], dict[str, CometError]]:
        masters = await target.masters(admin)
        if not force:
            configs, _ = await ask_each(masters, lambda one: one.config())
            for address, config in configs.items():
                refuse_unknown(key, address, config, BROKER)
        return await ask_each(masters, lambda one: one.update_config({key: value}, is_forced=True))

    done, failures = ask(namesrv, question)
    lines = [f"update broker config success, {address}" for address in done]
    facts = {"brokers": list(done), "key": key, "value": value}
    print_done("\n".join(lines), facts, as_json=as_json)
    exit_if_any(failures)


@app.named("getBrokerConfig")
def get_broker_config(
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the settings of brokers."""

    async def question(
        admin: AdminClient,
    ) -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, CometError]]:
        if target.broker is not None:
            titles, members = {target.broker: target.broker}, [admin.broker(target.broker)]
        else:
            groups = list((await admin.broker_groups(target.cluster)).values())
            titles = {
                it.address: _role_title(group, it) for group in groups for it in group.values()
            }
            members = [it for group in groups for it in group.values()]
        return titles, *await ask_each(members, lambda one: one.config())

    titles, found, failures = ask(namesrv, question)
    if as_json:
        print_json(found)
    else:
        for address, config in found.items():
            say(f"============{titles[address]}============")
            for key, value in config.items():
                say(f"{key:<50}=  {value}")
            say()
    exit_if_any(failures)


def _role_title(group: dict[int, BrokerAdmin], member: BrokerAdmin) -> str:
    master = group.get(MASTER_ID)
    if member is master:
        return f"Master: {member.address}"
    return f"My Master: {master.address if master else None}=====Slave: {member.address}"


# -- figures ----------------------------------------------------------------------------------


@app.named("brokerStatus")
def broker_status(
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the run-time statistics of brokers."""
    found, failures = target.ask(namesrv, lambda one: one.runtime_info(), with_slaves=True)
    if as_json:
        print_json(found)
    else:
        for address, facts in found.items():
            prefix = "" if target.broker is not None else f"{address:<24} "
            for key, value in sorted(facts.items()):
                say(f"{prefix}{key:<32}: {value}")
    exit_if_any(failures)


@app.named("brokerConsumeStats")
def broker_consume_stats(
    broker: OneBroker,
    timeout_ms: Annotated[
        int, typer.Option("-t", "--timeoutMillis", min=1, help="Timeout of the request.")
    ] = 50_000,
    level: Annotated[
        int, typer.Option("-l", "--level", min=0, help="Only queues with at least this lag.")
    ] = 0,
    order: Annotated[
        TrueFalse, typer.Option("-o", "--order", help="Only ordered topics.")
    ] = "false",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the progress of all groups on a broker."""

    async def question(admin: AdminClient) -> BrokerConsumeStats:
        one = admin.broker(broker)
        return await one.all_consume_stats(is_order=order == "true", timeout_ms=timeout_ms)

    found = ask(namesrv, question)
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
    if as_json:
        objects = [to_object(CONSUME_COLUMNS, row) for row in rows]
        print_json({"queues": objects, "diff_total": found.total_diff})
    else:
        print_table(CONSUME_COLUMNS, rows, as_json=False)
        say(f"\nDiff Total: {found.total_diff}")


@app.named("producer")
def producer(
    broker: Annotated[str, typer.Option("-b", "--broker", help="Address of the broker.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the connected members of all producer groups of a broker."""

    async def question(admin: AdminClient) -> dict[str, list[ProducerInfo]]:
        return await admin.broker(broker).producers()

    found = ask(namesrv, question)
    lines = [
        f"producer group ({group}) instance : clientId={one.client_id},remoteIP={one.remote_ip}, "
        f"language={one.language}, version={one.version}, "
        f"lastUpdateTimestamp={one.last_update_timestamp}"
        for group, members in found.items()
        for one in members
    ]
    print_done("\n".join(lines), found, as_json=as_json)


# -- files ------------------------------------------------------------------------------------


def _named_cleaning(name: str, clean: Callable[[BrokerAdmin], Awaitable[None]]) -> None:
    """Add a command that cleans a broker, the brokers of a cluster, or all brokers."""

    @app.named(name, COMMANDS[name].help)
    def command(
        target: AnyBrokers,
        namesrv: Namesrv = DEFAULT_NAMESRV,
        *,
        as_json: AsJson = False,
    ) -> None:
        done, failures = target.ask(namesrv, clean, with_slaves=True)
        print_done("false" if failures else "success", {"brokers": list(done)}, as_json=as_json)
        exit_if_any(failures)


_named_cleaning("cleanExpiredCQ", BrokerAdmin.clean_expired_queues)
_named_cleaning("cleanUnusedTopic", BrokerAdmin.clean_unused_topics)
_named_cleaning("deleteExpiredCommitLog", BrokerAdmin.delete_expired_logs)
