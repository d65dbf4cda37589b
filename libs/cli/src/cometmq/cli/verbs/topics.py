# SPDX-License-Identifier: Apache-2.0
"""`cometmq topic`: list and describe topics; the verbs that change them are derived."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.changes import add_changes
from cometmq.cli.connecting import DEFAULT_NAMESRV, Cluster, Namesrv, ask
from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, Cell, print_facts, print_json, print_notes, print_rows
from cometmq.cli.verbs.topic_notes import attribute_notes, closed_notes, unread_notes
from cometmq.cli.verbs.write_access import read_only_brokers
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.insight import times
from cometmq.insight.changes import deletions, topics
from cometmq.insight.changes.topics import permission_text
from cometmq.insight.times import shown
from cometmq.insight.words import counted, lasting, sized
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.names import (
    DLQ_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    is_system_topic,
)

if TYPE_CHECKING:
    from cometmq.insight.sampling import Analysis, Names, Point


def analyse_topic(  # one parameter per option
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=100_000, help="Read about so many messages.")
    ] = 5_000,
    since: Annotated[
        str | None, typer.Option("--since", help="Only messages stored since then: 90m, 1d.")
    ] = None,
    bytes_max: Annotated[
        int, typer.Option("--max-mib", min=1, help="Read at most so many MiB.")
    ] = 256,
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Read for at most so many seconds.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show what a topic's messages are like: sizes, ages, keys, tags, producers, properties.

    The figures are of a sample, which is spread over all queues and their whole length; a small
    topic is read whole. Nothing is committed.

    \b
    EXAMPLE
      cometmq topic analyse orders --since 1d --sample 20000
    """
    begin_ms = times.parsed(since, now_ms=wall_ms()) if since else None
    count = 0

    def note(read: int) -> None:
        nonlocal count
        count = read

    async def question(admin: CommandAdmin) -> "Analysis":
        # Only this command needs them.
        from cometmq.cli.meter import live  # noqa: PLC0415
        from cometmq.insight.sampling import Bounds, analyse  # noqa: PLC0415

        bounds = Bounds(
            count_max=sample,
            bytes_max=bytes_max << 20,
            time_ms=int(seconds * 1_000),
            begin_ms=begin_ms,
        )
        async with live(lambda: f"{count:,} messages read"):
            return await analyse(admin, topic, bounds, progress=note)

    found = ask(namesrv, question, limit_s=seconds)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)
    print_notes([f"the sample is smaller than wanted: {found.ended}"] if found.ended else [])
    print_notes(f"queue {place} was not read: {why}" for place, why in found.unanswered.items())
    if found.unanswered:
        raise typer.Exit(1)


def _print(found: "Analysis") -> None:
    figures = found.figures
    how = "all" if found.is_whole else f"a sample of {figures.messages:,}"
    facts: dict[str, Cell] = {
        "messages": f"{found.messages:,} ({how})",
        "stored": None if found.per_s is None else f"{found.per_s:,.1f}/s on average",
        "mean_size": sized(figures.mean_bytes),
        "damaged": figures.damaged,
    }
    print_facts(facts, as_json=False, title=found.topic)
    if not figures.messages:
        return
    columns = ("Percentile", "Body", "Age", "Keys")
    lines = zip(figures.sizes, figures.ages_s, figures.keys_per_message, strict=True)
    print_rows(
        columns,
        [
            [_percent(size), sized(size.value), lasting(age.value), keys.value]
            for size, age, keys in lines
        ],
        as_json=False,
    )
    kinds = {
        "Key": figures.keys,
        "Tag": figures.tags,
        "Producer": figures.hosts,
        "Property": figures.properties,
    }
    rows = [row for kind, names in kinds.items() for row in _names(kind, names, figures.messages)]
    print_rows(("Kind", "Name", "Messages", "Share"), rows, as_json=False)


def _percent(point: "Point") -> str:
    words = {0: "least", 50: "median", 100: "most"}
    return words.get(int(point.percent), "") or f"{point.percent:g} %"


def _names(kind: str, names: "Names", messages: int) -> Iterator[list[Cell]]:
    """Return the frequent names of a kind, and how many there are."""
    for it in names.top:
        yield [kind, it.name, it.count, f"{it.count / messages:.1%}"]
    rest = names.different - len(names.top)
    if rest > 0:
        yield [kind, f"{rest:,} others" + (" or more" if names.is_cut else ""), None, None]
    if names.messages < messages:
        without = messages - names.messages
        yield [kind, "none", without, f"{without / messages:.1%}"]


app = App("List, describe, analyse, create, clone, alter, trim and delete topics.")

Topic = Annotated[str, typer.Argument(help="Name of the topic.")]


def kind_of(topic: str) -> str:
    """Return the purpose of a topic: messages, retry, dead letters or system."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    if is_system_topic(topic) or topic.endswith(REPLY_SUFFIX):
        return "system"
    return "messages"


# -- list -------------------------------------------------------------------------------------


@app.command("list")
@watched
def list_topics(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    *,
    with_all: Annotated[
        bool, typer.Option("--all", help="Include system, retry and dead-letter topics.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List topics with their queues at each broker, in the order of the brokers.

    With --json, the queue count is the sum over the brokers.

    If a broker has no master, its slave's copy is shown, which may be 10 s old. The permission is
    that of the topic; a note names brokers that are read-only as a whole.

    \b
    EXAMPLE
      cometmq topic list --json
    """

    async def question(admin: CommandAdmin) -> tuple[list[list[Cell]], list[str]]:
        brokers = await admin.masters_or_slaves(cluster)
        reserved = {*brokers, *(await admin.cluster()).cluster_addr_table}
        found: dict[str, dict[str, TopicConfig]] = {}
        for broker, configs in await admin.ask_each(brokers.values(), lambda it: it.topics()):
            for topic, config in configs.items():
                found.setdefault(topic, {})[broker.name] = config
        rows = [
            _row(topic, "system" if topic in reserved else kind_of(topic), configs, as_json=as_json)
            for topic, configs in sorted(found.items())
        ]
        return rows, [it.note for it in (await read_only_brokers(admin, brokers)).values()]

    rows, notes = ask(namesrv, question)
    if not with_all:
        rows = [row for row in rows if row[1] == "messages"]
    columns = ("Topic", "Kind", "Brokers", "Read queues", "Write queues", "Permission")
    empty = "no topic exists (--all includes those of the servers)"
    print_rows(columns, rows, as_json=as_json, empty=empty)
    print_notes(notes)


def _row(topic: str, kind: str, configs: dict[str, TopicConfig], *, as_json: bool) -> list[Cell]:
    permissions = {permission_text(config.perm) for config in configs.values()}
    return [
        topic,
        kind,
        list(configs),
        _queue_counts([it.read_queue_nums for it in configs.values()], as_json=as_json),
        _queue_counts([it.write_queue_nums for it in configs.values()], as_json=as_json),
        "/".join(sorted(permissions)),
    ]


def _queue_counts(counts: list[int], *, as_json: bool) -> Cell:
    """Return the queue counts of a topic's brokers: `4`, `4 at each`, `4+2`; in JSON, their sum."""
    if as_json or len(counts) == 1:
        return sum(counts)
    return f"{counts[0]} at each" if len(set(counts)) == 1 else "+".join(map(str, counts))


# -- describe, route --------------------------------------------------------------------------


@app.command()
@watched
def describe(topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False) -> None:
    """Show the first and last offset and the last message of each queue.

    Notes list the topic's attributes (such as message.type of RocketMQ 5), queues that producers
    write to but consumers do not, or may not, read, and brokers to which producers may not send.

    \b
    EXAMPLE
      cometmq topic describe orders
    """

    async def question(admin: AdminClient) -> tuple[list[list[Cell]], list[str]]:
        rows: list[list[Cell]] = [
            [
                queue.broker_name,
                queue.queue_id,
                offsets.min_offset,
                offsets.max_offset,
                offsets.max_offset - offsets.min_offset,
                shown(offsets.last_update_timestamp),
            ]
            for queue, offsets in (await admin.topic_stats(topic)).items()
        ]
        notes = attribute_notes(await admin.topic_configs(topic))
        notes += await unread_notes(admin, [topic])
        return rows, notes + closed_notes(topic, await admin.route(topic))

    rows, notes = ask(namesrv, question)
    count = sum(row[4] for row in rows if isinstance(row[4], int))
    print_rows(
        ("Broker", "Queue", "Min", "Max", "Messages", "Last message"),
        rows,
        as_json=as_json,
        title=f"{topic}: {counted(len(rows), 'queue')}, {counted(count, 'message')}",
    )
    print_notes(notes)


@app.command()
@watched
def route(topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False) -> None:
    """Show the brokers of a topic as clients see them.

    \b
    EXAMPLE
      cometmq topic route orders
    """

    async def question(admin: AdminClient) -> TopicRoute:
        return await admin.route(topic)

    found = ask(namesrv, question)
    queues = {data.broker_name: data for data in found.queue_datas}
    rows: list[list[Cell]] = []
    for data in sorted(found.broker_datas, key=lambda data: data.broker_name):
        queue = queues.get(data.broker_name)
        if queue is None:
            continue
        counts: list[Cell] = [
            queue.read_queue_nums,
            queue.write_queue_nums,
            permission_text(queue.perm),
        ]
        rows += [
            [data.cluster, data.broker_name, broker_id, address, *counts]
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
    columns = ("Cluster", "Broker", "Id", "Address", "Read queues", "Write queues", "Permission")
    print_rows(columns, rows, as_json=as_json)


app.command("analyse")(analyse_topic)
add_changes(app, (*topics.CHANGES, *deletions.CHANGES))
