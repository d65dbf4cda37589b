# SPDX-License-Identifier: Apache-2.0
"""`cometmq group`: list, describe, create, alter, move and delete consumer groups."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
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
from cometmq.cli.consuming import disconnect, group_moves, seek
from cometmq.cli.consuming.absent import note_left_out
from cometmq.cli.consuming.progress import Progress
from cometmq.cli.lookup import check_not_reserved, known_group
from cometmq.cli.output import (
    AsJson,
    Cell,
    as_objects,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.cli.say import say
from cometmq.cli.verbs.topic_changes import configs_at, unread_notes
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient
from cometmq.client.admin.groups import check_deletable, with_offsets_only
from cometmq.client.errors import ClientError
from cometmq.client.message import check_group
from cometmq.insight import times
from cometmq.insight.consumer_groups import OWN_OFFSETS, loss_facts, loss_words
from cometmq.insight.members import (
    GroupMembers,
    Owners,
    is_ours,
    members_of,
    owner_words,
    owners_of,
    silent_notes,
)
from cometmq.insight.model import Unknown
from cometmq.insight.queue_states import (
    QueueState,
    missed_notes,
    missing_level_notes,
    queue_states,
    time_to_loss,
    topics_by_group,
    unread_since_ms,
    waiting_in,
)
from cometmq.insight.words import counted
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import dead_letter_topic, retry_topic
from cometmq.remoting.visible import command

Loss = float | Unknown | None
"""Seconds until unread messages may be deleted; None if nothing is unread."""
GROUP_COLUMNS: Final = ("Group", "Members", "Model", "Topics", "Retries", "Enabled")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, describe, create, alter, reset and delete consumer groups.",
)


RETRIES_HELP: Final = (
    "Retries before a message becomes a dead letter; 0 and -1 mean none. cometmq consume keeps to"
    " it; Python and Java clients send their own limit with a message (default 16)."
)

Group = Annotated[str, typer.Argument(help="Name of the consumer group.")]
app.command("reset")(group_moves.reset)
app.command("clone")(group_moves.clone)
app.command("seek")(seek.seek)
app.command("disconnect")(disconnect.disconnect)


@app.command("list")
@watched
def list_groups(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    with_all: Annotated[bool, typer.Option("--all", help="Include system groups.")] = False,
    as_json: AsJson = False,
) -> None:
    """List consumer groups with their members and the time until unread messages may be deleted
    (see lag).

    The topics shown are the members' subscriptions or, if there are no members, the topics in which
    the group has offsets.

    \b
    EXAMPLE
      cometmq group list --all
    """

    async def question(admin: AdminClient) -> tuple[list[list[Cell]], list[Loss]]:
        topics = await topics_by_group(admin)
        known = with_offsets_only(await admin.groups(), topics)
        shown = {name: it for name, it in known.items() if with_all or is_ours(name)}
        progress = await Progress.read(admin)
        kept_s: dict[str, float | None] = {}
        rows, losses = [], []
        for group, states in (await progress.states(shown)).items():
            found = await progress.members(group, shown[group])
            rows.append(_row(found, topics.get(group, set())))
            losses.append(await _loss(admin, found, states, kept_s))
        return rows, losses

    rows, losses = ask(namesrv, question)
    if as_json:
        objects = as_objects(GROUP_COLUMNS, rows)
        print_json([it | loss_facts(loss_s) for it, loss_s in zip(objects, losses, strict=True)])
        return
    cells = [[*row, loss_words(loss_s)] for row, loss_s in zip(rows, losses, strict=True)]
    empty = "no consumer group exists (--all includes those of the servers)"
    print_rows((*GROUP_COLUMNS, "Time to loss"), cells, as_json=False, empty=empty)


async def _loss(
    admin: AdminClient,
    found: GroupMembers,
    states: list[QueueState] | CometError,
    kept_s: dict[str, float | None],
) -> Loss:
    if isinstance(states, CometError):
        note_left_out(found.group, states)
        return Unknown(str(states))
    if found.model == "BROADCASTING":
        return OWN_OFFSETS
    return await time_to_loss(admin, states, kept_s)


def _row(found: GroupMembers, topics: Iterable[str]) -> list[Cell]:
    if found.online is not None:
        topics = found.online.subscription_table
    return [
        found.group,
        found.count,
        found.model,
        sorted(topics),
        found.config.retry_max_times,
        found.config.consume_enable,
    ]


@app.command()
@watched
def describe(group: Group, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False) -> None:
    """Show a group's members, subscriptions, settings, unread messages and the owner of each queue.

    \b
    EXAMPLE
      cometmq group describe billing
    """

    async def question(
        admin: AdminClient,
    ) -> tuple[GroupMembers, list[QueueState], Owners, float | Unknown | None, list[str]]:
        members = await members_of(admin, group, await known_group(admin, group))
        states = await queue_states(admin, group)
        notes = missed_notes(group, states)
        topics = {state.queue.topic for state in states}
        notes += await unread_notes(admin, topics, waiting_in(states))
        notes += await missing_level_notes(admin)
        loss_s = await time_to_loss(admin, states)
        owners = await owners_of(admin, group, members.sharers)
        notes += [*silent_notes(owners), *_duplicate_notes(members)]
        return members, states, owners, loss_s, notes

    found, states, owners, loss_s, notes = ask(namesrv, question)
    print_notes(notes)
    connections: list[dict[str, Cell]] = []
    subscriptions: list[dict[str, Cell]] = []
    if found.online is not None:
        connections = [
            {
                "client": connection.client_id,
                "address": connection.client_addr,
                "language": connection.language,
                "version": connection.version,
            }
            for connection in found.online.connection_set
        ]
        subscriptions = [
            {"topic": topic, "type": wanted.expression_type, "expression": wanted.sub_string}
            for topic, wanted in sorted(found.online.subscription_table.items())
        ]
    facts = {**_facts(found), **_progress(found, states, loss_s)}
    if as_json:
        queues = [_queue_facts(it, owners) for it in states]
        sections = {"members": connections, "subscriptions": subscriptions, "queues": queues}
        print_json({**facts, **sections})
        return
    print_facts({name: it for name, it in facts.items() if name != "time_to_loss_s"}, as_json=False)
    if found.online is None:
        say("No member is connected.")
    else:
        _print_section("Members", connections)
        _print_section("Subscriptions", subscriptions)
    _print_section(
        "Queues",
        [_queue_facts(it, owners) | {"owners": owner_words(owners.of(it.queue))} for it in states],
    )


def _queue_facts(state: QueueState, owners: Owners) -> dict[str, Cell]:
    queue = state.queue
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "lag": state.lag,
        "owners": owners.of(queue),
    }


def _facts(found: GroupMembers) -> dict[str, Cell]:
    config, online = found.config, found.online
    return {
        "group": found.group,
        "model": found.model,
        "consume_from": online.consume_from_where if online is not None else None,
        "consume_type": online.consume_type if online is not None else None,
        "enabled": config.consume_enable,
        "broadcast_enabled": config.consume_broadcast_enable,
        "retries": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
    }


def _progress(
    found: GroupMembers, states: Sequence[QueueState], loss_s: float | Unknown | None
) -> dict[str, Cell]:
    """Return the fields about unread messages, whose values are unknown if members broadcast,
    because these keep their own offsets.
    """
    if found.model == "BROADCASTING":
        return {"unread_messages": None, "oldest_unread": None, **loss_facts(OWN_OFFSETS)}
    since_ms = unread_since_ms(states)
    return {
        "unread_messages": sum(it.lag for it in states),
        "oldest_unread": None if since_ms is None else times.shown(since_ms),
        **loss_facts(loss_s),
    }


def _duplicate_notes(found: GroupMembers) -> list[str]:
    """Return a line for each client id that several members use: these members compute the same
    share of the queues, and no broker notices.
    """
    if found.online is None:
        return []
    addresses: dict[str, list[str]] = {}
    for member in found.online.connection_set:
        addresses.setdefault(member.client_id, []).append(member.client_addr)
    return [
        f"{len(at)} members have the client id {client_id} ({', '.join(at)}): in CLUSTERING, they"
        " consume the same queues, and other queues are not consumed; give each process an"
        " instance name (instance_name, Java: instanceName) of its own"
        for client_id, at in addresses.items()
        if len(at) > 1
    ]


def _print_section(title: str, rows: list[dict[str, Cell]]) -> None:
    say()
    columns = [name.capitalize() for name in rows[0]] if rows else []
    print_rows(columns, [list(row.values()) for row in rows], as_json=False, title=title)


@app.command()
def create(  # noqa: PLR0913  # one parameter per option
    group: Group,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    retries: Annotated[int, typer.Option(min=-1, help=RETRIES_HELP)] = 16,
    *,
    enabled: Annotated[bool, typer.Option(help="Whether the group may consume.")] = True,
    broadcast: Annotated[bool, typer.Option(help="Whether the group may use broadcasting.")] = True,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Create a consumer group; fails if a broker already has it (see alter).

    \b
    EXAMPLE
      cometmq group create billing --retries 5
    """
    config = SubscriptionGroupConfig(
        group_name=group,
        retry_max_times=retries,
        consume_enable=enabled,
        consume_broadcast_enable=broadcast,
    )

    async def question(admin: CommandAdmin) -> None:
        check_group(group)
        check_not_reserved(group)
        admin.resume = lambda _: (
            "create it there, too: "
            + command("group alter", group, options=("--retries", str(retries)))
        )
        masters = await admin.masters_to_change(cluster)
        existing = await configs_at(admin, masters, group, lambda it: it.groups())
        if not existing:
            await admin.create_group(config, cluster=cluster)
            return
        found = ", ".join(f"{name} ({_settings_text(it)})" for name, it in existing.items())
        text = (
            f"the consumer group {group} exists at {found}; to change it, use cometmq group alter"
        )
        if len(existing) < len(masters):
            text += ", which also creates it at the other brokers"
        raise ClientError(text)

    ask(namesrv, question)
    facts: dict[str, Cell] = {"group": group, "enabled": enabled, "retries": retries}
    print_facts(facts, as_json=as_json)


@app.command()
def alter(  # noqa: PLR0913  # one parameter per option
    group: Group,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    retries: Annotated[int | None, typer.Option(min=-1, help=RETRIES_HELP)] = None,
    *,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--no-enabled", help="Whether the group may consume.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Whether the group may use broadcasting."),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Change the given settings of a consumer group.

    A broker without the group gets it, with settings copied from another broker, or with those that
    brokers use for a group that has only offsets.

    \b
    EXAMPLE
      cometmq group alter billing --no-enabled
    """
    changes: dict[str, int | bool] = {
        name: value
        for name, value in (
            ("retry_max_times", retries),
            ("consume_enable", enabled),
            ("consume_broadcast_enable", broadcast),
        )
        if value is not None
    }
    if not changes:
        raise wrong_usage("nothing to change: give --retries, --[no-]enabled or --[no-]broadcast")

    async def question(admin: AdminClient) -> dict[str, SubscriptionGroupConfig]:
        check_not_reserved(group)
        masters = await admin.masters_to_change(cluster)
        existing = await configs_at(admin, masters, group, lambda it: it.groups())
        template = next(iter(existing.values()), None) or await known_group(admin, group)
        after = {
            name: msgspec.structs.replace(existing.get(name, template), **changes)
            for name in masters
        }
        await admin.change_each(
            [masters[name] for name in after],
            lambda it: it.create_group(after[it.name]),
            f"change the group {group}",
        )
        return after

    rows: list[list[Cell]] = [
        [name, it.retry_max_times, it.consume_enable, it.consume_broadcast_enable]
        for name, it in ask(namesrv, question).items()
    ]
    columns = ("Broker", "Retries", "Enabled", "Broadcast enabled")
    print_rows(columns, rows, as_json=as_json, title=group)


def _settings_text(config: SubscriptionGroupConfig) -> str:
    enabled = "enabled" if config.consume_enable else "disabled"
    return f"{config.retry_max_times} retries, {enabled}"


@app.command()
def delete(  # noqa: PLR0913  # one parameter per option
    group: Group,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    *,
    offsets: Annotated[
        bool, typer.Option("--offsets/--keep-offsets", help="Whether to delete its offsets.")
    ] = True,
    topics: Annotated[
        bool, typer.Option("--topics", help="Also delete its retry and dead-letter topics.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the group even if members are connected.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Delete a consumer group; asks for confirmation.

    A broker that is down keeps the group and brings it back when it starts; cluster --expect shows
    whether all brokers are there.

    Its retry and dead-letter topics stay unless --topics is given, because they may hold messages.

    Fails if members are connected, because they would continue without offsets or create the group
    again.

    \b
    EXAMPLE
      cometmq group delete billing --dry-run
    """

    async def question(admin: AdminClient) -> list[str]:
        check_not_reserved(group)
        masters = await admin.masters_to_change(cluster)
        await admin.ask_all(masters.values(), lambda it: it.groups())  # before any question
        count = (await members_of(admin, group, await known_group(admin, group))).count
        members = f" with {counted(count, 'connected member')}" if count else ""
        if members and not force:
            raise ClientError(
                f"the consumer group {group} is in use{members}; stop them first (cometmq group"
                f" describe {group}), or give --force"
            )
        place = (masters.values(), cluster)
        await check_deletable(admin, group, *place, with_offsets=offsets)
        await confirm(f"Delete the consumer group {group}{members}?", is_confirmed=yes)
        await admin.delete_group(group, remove_offsets=offsets, cluster=cluster, is_forced=force)
        own = {retry_topic(group), dead_letter_topic(group)}
        found = sorted(own.intersection(await admin.topics()))
        for name in found if topics else ():
            await admin.delete_topic(name, cluster=cluster)
        return found

    found = ask(namesrv, question)
    facts: dict[str, Cell] = {"deleted": group, "offsets_deleted": offsets}
    facts["topics_deleted" if topics else "topics_kept"] = found
    print_facts(facts, as_json=as_json)
