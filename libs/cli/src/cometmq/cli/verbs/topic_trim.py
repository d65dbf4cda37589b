# SPDX-License-Identifier: Apache-2.0
"""`cometmq topic trim`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, DryRunOption, Namesrv, Yes, ask, confirm
from cometmq.cli.lookup import chosen_queues
from cometmq.cli.output import AsJson, Cell, print_json, print_notes, print_rows
from cometmq.cli.verbs.topic_changes import check_exists
from cometmq.client.clock import wall_ms
from cometmq.insight.words import counted, sized

if TYPE_CHECKING:
    from cometmq.client.admin.trims import Trim


def trim_topic(  # one parameter per option
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    before: Annotated[
        str,
        typer.Option("--before", help="OFFSET, @TIME (@2026-11-20T10:00Z, @90m ago) or end (all)."),
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only this queue, BROKER:NUMBER.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Delete the messages before an offset or a time; asks for confirmation.

    Clients see the queues as after retention. Disk space is freed, and the bytes vanish, when
    retention reaches them in the log, which all topics share.

    \b
    EXAMPLE
      cometmq topic trim orders --before @7d --dry-run
    """

    async def question(admin: CommandAdmin) -> "Trim":
        # Only this command needs them.
        from cometmq.client.admin.trims import carry_out, plan_trim  # noqa: PLC0415
        from cometmq.insight.preview import trim_losses, trim_place  # noqa: PLC0415

        place = trim_place(before, now_ms=wall_ms())
        await check_exists(admin, topic)
        chosen = None
        if queue is not None:  # of all queues, because consumers may not read dead letters
            (chosen,) = chosen_queues(list(await admin.topic_stats(topic)), topic, queue)
        plan = await plan_trim(admin, topic, place, chosen)
        losses = trim_losses(plan)
        admin.preview = {"messages": plan.messages, "bytes": plan.size, "losses": losses}
        print_notes(losses if yes or sys.stdin.isatty() else [])
        text = f"Delete {counted(plan.messages, 'message')} ({sized(plan.size)}) of {topic}?"
        await confirm(text, is_confirmed=yes)
        await carry_out(admin, plan)
        return plan

    done = ask(namesrv, question)
    rows: list[list[Cell]] = [
        [it.queue.broker_name, it.queue.queue_id, it.first, it.before, it.messages, it.size]
        for it in done.queues
        if it.messages
    ]
    columns = ("Broker", "Queue", "From", "To", "Messages", "Bytes")
    if as_json:
        names = [column.lower() for column in columns]
        print_json(
            {
                "topic": topic,
                "messages": done.messages,
                "bytes": done.size,
                "unread": dict(done.unread),
                "queues": [dict(zip(names, row, strict=True)) for row in rows],
            }
        )
        return
    print_rows(columns, rows, as_json=False, empty="no message was deleted")
