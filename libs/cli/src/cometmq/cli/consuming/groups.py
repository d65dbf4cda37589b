# SPDX-License-Identifier: Apache-2.0
"""`cometmq group`: list and describe consumer groups; most verbs that change them are derived."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import typer

from cometmq.cli.changes import add_changes
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask
from cometmq.cli.consuming import seek
from cometmq.cli.consuming.progress import Progress, note_left_out
from cometmq.cli.lazy import App
from cometmq.cli.lookup import known_group
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
from cometmq.cli.verbs.topic_notes import unread_notes
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient
from cometmq.client.admin.groups import with_offsets_only
from cometmq.insight import times
from cometmq.insight.changes import groups as changed_groups
from cometmq.insight.changes import moves
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
from cometmq.remoting.errors import CometError

Loss = float | Unknown | None
"""Seconds until unread messages may be deleted; None if nothing is unread."""
GROUP_COLUMNS: Final = ("Group", "Members", "Model", "Topics", "Retries", "Enabled")

app = App("List, describe, create, alter, reset and delete consumer groups.")


Group = Annotated[str, typer.Argument(help="Name of the consumer group.")]
app.command("seek")(seek.seek)


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


add_changes(app, (*changed_groups.CHANGES, *moves.CHANGES))
