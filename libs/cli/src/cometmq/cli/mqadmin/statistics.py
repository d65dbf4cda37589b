# SPDX-License-Identifier: Apache-2.0
"""mqadmin's statsAll: traffic into each topic, and out of it by group."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, print_table
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.figures import Traffic
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX

NO_CONSUMER: Final = "NO_CONSUMER"
COLUMNS: Final = (
    Column("topic", "#Topic", "%-64.64s  "),
    Column("group", "#Consumer Group", "%-64.64s "),
    Column("accumulation", "#Accumulation", "%12d "),
    Column("in_tps", "#InTPS", "%11.2f "),
    Column("out_tps", "#OutTPS", "%11.2f "),
    Column("in_24h", "#InMsg24Hour", "%14d "),
    Column(
        *("out_24h", "#OutMsg24Hour", "%14s"),
        data=lambda count: None if count == NO_CONSUMER else count,
    ),
)

app = Family()


@app.named("statsAll")
def stats_all(
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    only_active: Annotated[
        bool, typer.Option("-a", "--activeTopic", help="Only topics with traffic.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show rates and counts of all topics and their groups.

    As in RocketMQ, the figures of 24 hours come from samples: they stay 0 for messages older than
    a minute until the next sample, which may take ten minutes. `cometmq cluster` counts all of
    today's messages.
    """

    async def question(admin: AdminClient) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for name in await admin.topics():
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, name):
                with suppress(CometError):  # the topic's brokers may not answer at the moment
                    rows += await _rows(admin, name, only_active=only_active)
        return rows

    print_table(COLUMNS, ask(namesrv, question), as_json=as_json)


async def _rows(admin: AdminClient, topic: str, *, only_active: bool) -> list[tuple[Any, ...]]:
    masters = await admin.masters_of(topic)
    groups = await admin.consuming_groups(topic)
    incoming = await _traffic(masters, "TOPIC_PUT_NUMS", topic)
    if not groups:
        row = (topic, "", 0, incoming.tps, None, incoming.count, NO_CONSUMER)
        return [] if only_active and not incoming.count else [row]
    rows = []
    for group in groups:
        outgoing = await _traffic(masters, "GROUP_GET_NUMS", f"{topic}@{group}")
        if not only_active or incoming.count or outgoing.count:
            lag = sum(one.difference for one in await admin.lag(group, topic))
            rates = (incoming.tps, outgoing.tps, incoming.count, outgoing.count)
            rows.append((topic, group, max(lag, 0), *rates))
    return rows


async def _traffic(masters: Iterable[BrokerAdmin], name: str, key: str) -> Traffic:
    """Return the sum over all masters; a master without this count returns an error and adds
    nothing.
    """
    total = Traffic()
    for master in masters:
        with suppress(CometError):
            total += Traffic.of(await master.stats(name, key))
    return total
