# SPDX-License-Identifier: Apache-2.0
"""`cometmq group reset` and `cometmq group clone`: move consumer groups."""

from contextlib import suppress
from typing import Annotated, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    DryRunOption,
    Namesrv,
    Yes,
    ask,
    confirm,
    wrong_usage,
)
from cometmq.cli.consuming import moves
from cometmq.cli.consuming.observer import begin_of
from cometmq.cli.consuming.source import queues_of
from cometmq.cli.lookup import broadcasting_text, chosen_queues, known_group
from cometmq.cli.output import AsJson, Cell, print_notes, print_rows
from cometmq.cli.verbs.topic_changes import check_exists
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_consumers import END
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, NoRoute
from cometmq.insight import times
from cometmq.insight.members import members_of
from cometmq.insight.preview import MEMBERS_MOVE, preview_clone, preview_reset
from cometmq.insight.queue_states import topics_by_group
from cometmq.remoting.bodies.queues import MessageQueue

_PLACES: Final = {"first": 0, "last": END}
Group = Annotated[str, typer.Argument(help="Name of the consumer group.")]


def reset(  # noqa: PLR0913  # one parameter per option
    group: Group,
    topic: Annotated[str, typer.Argument(help="Topic that the group consumes.")],
    to: Annotated[
        str | None, typer.Option("--to", help="first, last or a time (2026-11-20T10:00Z, 90m ago).")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", help="Move only this queue, BROKER:NUMBER, to --offset instead of --to."
        ),
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="New offset of --queue.")] = None,
    backwards: Annotated[
        bool, typer.Option("--backwards", help="Never move a queue forward.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to new offsets, whether or not it is connected; asks for confirmation.

    A time selects the first message stored at that time in each queue, or else the nearest one, so
    one older message per queue may be read again. --queue and --offset require a group without
    members.

    \b
    EXAMPLE
      cometmq group reset billing orders --to 90m --dry-run
    """
    if queue is not None or offset is not None:
        if queue is None or offset is None or to is not None or backwards:
            raise wrong_usage("--queue and --offset belong together, without --to and --backwards")
        moved = ask(
            namesrv, lambda admin: _move_queue(admin, group, topic, queue, offset, is_confirmed=yes)
        )
        _print_moved(moved, as_json=as_json)
        return
    if to is None:
        raise wrong_usage("give --to, or --queue with --offset")

    async def question(admin: CommandAdmin) -> dict[MessageQueue, int]:
        now_ms = wall_ms()
        at_ms = _PLACES.get(to)
        if at_ms is None:
            at_ms = times.parsed(to, now_ms=now_ms, words=_PLACES)
            if at_ms > now_ms:
                raise wrong_usage(
                    f"{to} is in the future: it is {times.shown(now_ms)} now; for the end of each"
                    " queue, give --to last"
                )
        await _check_brokers(admin, topic)
        await known_group(admin, group)
        found = await preview_reset(admin, group, topic, at_ms, is_forced=not backwards)
        admin.preview = moves.totals(found.moves)
        if found.redelivered is None:
            print_notes(MEMBERS_MOVE)
        await _ask_to_move(admin, group, topic, is_confirmed=yes)
        return await admin.reset_offsets(group, topic, at_ms, is_forced=not backwards)

    moved = ask(namesrv, question)
    _print_moved(moved, as_json=as_json)


def clone(
    source: Annotated[str, typer.Argument(help="Group to copy from.")],
    destination: Annotated[str, typer.Argument(help="Group to copy to.")],
    topic: Annotated[str, typer.Argument(help="Topic that both groups consume.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of a group in a topic to another group; asks for confirmation.

    \b
    EXAMPLE
      cometmq group clone billing billing-2 orders
    """

    async def question(admin: CommandAdmin) -> dict[MessageQueue, int]:
        await _check_brokers(admin, topic)
        await known_group(admin, source)
        await known_group(admin, destination, other_than=source)
        await check_exists(admin, topic)
        if topic not in (await topics_by_group(admin)).get(source, ()):
            raise ClientError(f"the consumer group {source} has no offsets in {topic}")
        if await admin.is_broadcasting(destination):
            raise ClientError(f"{broadcasting_text(destination)}: nothing was copied")
        offsets = await moves.offsets_of(admin, source, [topic])
        found = await preview_clone(admin, destination, topic, offsets)
        admin.preview = moves.totals(found.moves)
        await _ask_to_move(admin, destination, topic, is_confirmed=yes)
        return await admin.clone_offsets(source, destination, topic)

    _print_moved(ask(namesrv, question), as_json=as_json)


async def _move_queue(
    admin: CommandAdmin, group: str, topic: str, name: str, offset: int, *, is_confirmed: bool
) -> dict[MessageQueue, int]:
    """Move a group in one queue; it must have no members, because they would overwrite the
    offset.
    """
    await _check_brokers(admin, topic)
    if (await members_of(admin, group, await known_group(admin, group))).count:
        raise ClientError(
            f"the consumer group {group} has connected members, which would commit their own offset"
            " again: stop them first (cometmq group describe shows them), or use --to"
        )
    (queue,) = chosen_queues(await queues_of(admin, topic), topic, name)
    masters = {broker.name: broker for broker in await admin.masters_to_change_of(topic)}
    begin = await begin_of(masters.get(queue.broker_name), queue, "", offset)
    await _ask_to_move(admin, group, topic, is_confirmed=is_confirmed)
    await admin.change_each(
        [masters[queue.broker_name]],
        lambda it: it.commit_offset(group, topic, queue.queue_id, begin),
        f"move the group {group} in {topic}",
    )
    return {queue: begin}


async def _check_brokers(admin: AdminClient, topic: str) -> None:
    """Raise ClientError if a broker of a topic does not answer, before the user is asked and before
    anything is changed.
    """
    with suppress(NoRoute):  # reported after a wrong group
        await admin.ask_all(await admin.masters_of(topic), lambda it: it.groups())


async def _ask_to_move(admin: CommandAdmin, group: str, topic: str, *, is_confirmed: bool) -> None:
    """Ask for confirmation to change the offsets of a group in an existing topic.

    Print a note if the group has no offsets there yet.
    """
    await admin.masters_to_change_of(topic)  # raises if a broker has no master
    is_new = topic not in (await topics_by_group(admin)).get(group, ())
    text = f"{group} has no offsets in {topic} yet"
    if is_new and is_confirmed:
        print_notes([text])
    words = [text] if is_new else []
    known = {name: it for name, it in admin.preview.items() if it is not None}
    words += [f"{count} {name.replace('_', ' ')}" for name, count in known.items()]
    hint = f" ({', '.join(words)})" if words else ""
    await confirm(f"Move the consumer group {group} in {topic}?{hint}", is_confirmed=is_confirmed)


def _print_moved(moved: dict[MessageQueue, int], *, as_json: bool) -> None:
    rows: list[list[Cell]] = [
        [queue.broker_name, queue.queue_id, offset] for queue, offset in moved.items()
    ]
    columns = ("Broker", "Queue", "Offset")
    print_rows(columns, rows, as_json=as_json, empty="no queue was moved")
