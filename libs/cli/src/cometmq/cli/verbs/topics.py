# SPDX-License-Identifier: Apache-2.0
"""`cometmq topic`: list, describe, create, alter, trim and delete topics."""

import sys
from typing import Annotated, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    Cluster,
    DryRunOption,
    Namesrv,
    Yes,
    ask,
    confirm,
    wrong_usage,
)
from cometmq.cli.output import AsJson, Cell, print_facts, print_notes, print_rows
from cometmq.cli.verbs.topic_analysis import analyse_topic
from cometmq.cli.verbs.topic_changes import (
    Change,
    at_brokers,
    attribute_notes,
    check_exists,
    clone_topic,
    closed_notes,
    configs_at,
    cut_off_text,
    described,
    exists_text,
    loss_text,
    permission_text,
    unread_notes,
)
from cometmq.cli.verbs.topic_trim import trim_topic
from cometmq.cli.verbs.write_access import read_only_brokers
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient
from cometmq.client.admin.groups import check_disconnected
from cometmq.client.errors import ClientError, NoRoute
from cometmq.client.message import check_topic
from cometmq.client.settings import ProducerOptions
from cometmq.insight.queue_states import (
    kept_note,
    offsets_by_group,
    outlived_note,
    waiting_counts,
    waiting_note,
)
from cometmq.insight.times import shown
from cometmq.insight.words import counted
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.topic_config import QUEUES_MAX, TopicConfig
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import (
    DLQ_PREFIX,
    DLQ_REPLAY_GROUP,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    is_system_topic,
)
from cometmq.remoting.visible import command

QUEUES_DEFAULT: Final = 8
"""The default of RocketMQ's updateTopic."""
AUTO_CREATED_QUEUES: Final = ProducerOptions().default_topic_queue_nums

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, describe, analyse, create, clone, alter, trim and delete topics.",
)

Topic = Annotated[str, typer.Argument(help="Name of the topic.")]
Permission = Annotated[str, typer.Option(help="What clients may do: rw, r, w or none.")]
Brokers = Annotated[
    list[str] | None, typer.Option("-b", "--broker", help="Only this broker; may be repeated.")
]
NewQueues = Annotated[
    int | None, typer.Option(min=1, max=QUEUES_MAX, help="Read and write queues per broker.")
]
NewReadQueues = Annotated[
    int | None, typer.Option(min=1, max=QUEUES_MAX, help="Queues that consumers read.")
]
NewWriteQueues = Annotated[
    int | None, typer.Option(min=1, max=QUEUES_MAX, help="Queues that producers send to.")
]
_PURPOSES: Final = {RETRY_PREFIX: "retries", DLQ_PREFIX: "dead letters"}
PERMISSIONS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE, "none": 0}


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


# -- create, alter, delete --------------------------------------------------------------------


@app.command()
def create(  # noqa: PLR0913  # one parameter per option
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    broker: Brokers = None,
    queues: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=QUEUES_MAX,
            help=f"Queues per broker; by default {QUEUES_DEFAULT}, as in mqadmin. (A topic that its"
            f" first message creates has {AUTO_CREATED_QUEUES}.)",
        ),
    ] = None,
    perm: Permission = "rw",
    *,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic; fails if a broker already has it (see alter).

    Warns about groups that have offsets from an earlier topic of this name, because they will skip
    messages.

    \b
    EXAMPLE
      cometmq topic create orders --queues 8
    """
    checked_permission = _permission(perm)
    queue_count = QUEUES_DEFAULT if queues is None else queues

    async def question(admin: CommandAdmin) -> tuple[list[str], dict[str, int]]:
        check_topic(topic)
        admin.resume = lambda rest: (
            "create it there, too: "
            + command(
                "topic create",
                topic,
                options=[
                    *("--queues", str(queue_count), "--perm", perm),
                    *at_brokers(it.name for it in rest),
                ],
            )
        )
        masters = await admin.masters_to_change(cluster, broker or None)
        existing = await configs_at(admin, masters, topic, lambda it: it.topics())
        if existing:
            raise ClientError(exists_text(topic, existing, masters))
        names = await admin.create_topic(
            topic,
            queue_count=queue_count,
            perm=checked_permission,
            cluster=cluster,
            broker_names=list(masters),
        )
        return names, await offsets_by_group(admin, masters.values(), topic)

    names, offsets = ask(namesrv, question)
    total: Cell = queue_count * len(names)
    if len(names) > 1 and not as_json:
        total = f"{queue_count} at each of {len(names)} brokers"
    if queues is None and not as_json:
        total = f"{total} (the default; to choose: --queues)"
    facts: dict[str, Cell] = {"topic": topic, "brokers": names, "queues": total, "permission": perm}
    print_facts(facts, as_json=as_json)
    print_notes(_group_topic_notes(topic))
    if offsets:
        print_notes([outlived_note(topic, offsets)])


def _group_topic_notes(topic: str) -> list[str]:
    """Return a note for a topic that brokers create themselves for a consumer group."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            group = topic.removeprefix(prefix)
            note = (
                f"{topic} is the topic of the {_PURPOSES[prefix]} of the group {group}; brokers"
                " create it when it is needed; to create the group: "
                + command("group create", group)
            )
            return [note]
    return []


@app.command()
def alter(  # noqa: PLR0913, PLR0917  # one parameter per option
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    broker: Brokers = None,
    queues: NewQueues = None,
    read_queues: NewReadQueues = None,
    write_queues: NewWriteQueues = None,
    perm: Annotated[str | None, typer.Option(help="What clients may do: rw, r, w or none.")] = None,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Allow queues that hold messages or get new ones but are not read."
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Change the given settings of a topic on the brokers that have it.

    Consumers do not see messages in a queue that is not read. To add queues, use --queues, which
    changes read and write queues together. To remove queues without losing messages, set
    --write-queues, wait until the groups have consumed the other queues, and then set --read-queues
    with --force. The command asks for confirmation before it removes permission to read or write.

    \b
    EXAMPLE
      cometmq topic alter orders --queues 16 --dry-run
    """
    change = Change(
        read_queues if read_queues is not None else queues,
        write_queues if write_queues is not None else queues,
        None if perm is None else _permission(perm),
    )
    if change == Change():
        raise wrong_usage(
            "nothing to change: give --queues, --read-queues, --write-queues or --perm"
        )

    async def question(admin: CommandAdmin) -> list[list[Cell]]:
        masters = await admin.masters_to_change(cluster, broker or None)
        before = await configs_at(admin, masters, topic, lambda it: it.topics())
        if not before:
            raise NoRoute(
                f"no broker has the topic {topic}; to create it, use cometmq topic create"
            )
        after = {name: change.applied_to(config) for name, config in before.items()}
        if refusal := await admin.too_many_queues(topic, before, after):
            raise ClientError(refusal)
        loss = await loss_text(topic, masters, before, after)
        if loss and not force:
            raise ClientError(
                f"{loss}; to do it anyway, give --force (see cometmq topic alter --help)"
            )
        if text := loss or cut_off_text(topic, before, after):
            await confirm(f"{text}. Continue?", is_confirmed=yes)
        admin.preview = {name: _step(before[name], it) for name, it in after.items()}
        await admin.change_each(
            [masters[name] for name in after],
            lambda it: it.create_topic(after[it.name]),
            f"change the topic {topic}" if after != before else f"change nothing of {topic}",
        )
        return [
            [name, it.read_queue_nums, it.write_queue_nums, permission_text(it.perm)]
            for name, it in after.items()
        ]

    columns = ("Broker", "Read queues", "Write queues", "Permission")
    print_rows(columns, ask(namesrv, question), as_json=as_json, title=topic)


def _step(before: TopicConfig, after: TopicConfig) -> str:
    if after == before:
        return f"{described(after)} already"
    return f"{described(before)} -> {described(after)}"


def _permission(text: str) -> int:
    if text not in PERMISSIONS:
        raise wrong_usage(f"--perm={text}: must be one of {', '.join(PERMISSIONS)}")
    return int(PERMISSIONS[text])


@app.command()
def delete(
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    *,
    reset_groups: Annotated[
        bool,
        typer.Option(
            "--reset-groups",
            help="Also reset group offsets in the topic to 0, for a new topic of this name.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and its messages; asks for confirmation.

    A broker that is down keeps the topic and brings it back when it starts; cluster --expect shows
    whether all brokers are there.

    Group offsets are kept, so a new topic of this name would not be read from its beginning.
    --reset-groups prevents that; it fails if members are connected, because they would commit the
    old offsets again. Delayed messages that are waiting are kept, too, and are delivered to a new
    topic of this name.

    \b
    EXAMPLE
      cometmq topic delete orders --dry-run
    """

    async def question(admin: AdminClient) -> tuple[list[str], list[str]]:
        await check_exists(admin, topic)
        masters = (await admin.masters_to_change(cluster)).values()
        await admin.ask_all(masters, lambda it: it.topics())  # before any change
        found = await offsets_by_group(admin, masters, topic)
        groups = [group for group in found if group != DLQ_REPLAY_GROUP]  # reset with the topic
        notes: list[str] = []
        if reset_groups:
            await check_disconnected(masters, groups)  # before the user is asked
        elif groups:
            notes.append(kept_note(topic, groups))
        if counts := await waiting_counts(masters):
            notes.append(waiting_note(topic, counts))
        if sys.stdin.isatty() and not yes:
            print_notes(notes)
        await confirm(f"Delete the topic {topic} with all its messages?", is_confirmed=yes)
        await admin.delete_topic(topic, cluster=cluster, reset_groups=reset_groups)
        return groups, notes

    groups, notes = ask(namesrv, question)
    facts: dict[str, Cell] = {"deleted": topic}
    if groups:
        facts["offsets_reset" if reset_groups else "offsets_kept"] = groups
    print_facts(facts, as_json=as_json)
    if yes:
        print_notes(notes)


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
app.command("clone")(clone_topic)
app.command("trim")(trim_topic)
