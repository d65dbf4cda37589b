# SPDX-License-Identifier: Apache-2.0
"""`cometmq message delayed`: the messages that wait for their time, and how many do."""

from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, wrong_usage
from cometmq.cli.output import AsJson, Cell, print_notes, print_rows
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.insight.delayed import Delayed, delay_ms, delay_texts, levels_at, waiting_at
from cometmq.insight.model import Unknown
from cometmq.insight.times import shown
from cometmq.insight.transactions import masters_of

LEVEL_COLUMNS: Final = ("Broker", "Level", "Delay", "Waiting")
COLUMNS: Final = (
    "Due", "Stored", "Broker", "Level", "Topic", "Tag", "Bytes", "Message id",
)  # fmt: skip


@watched
def delayed(  # one parameter per option
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    broker: Annotated[
        str | None, typer.Option("-b", "--broker", help="Only messages at this broker.")
    ] = None,
    level: Annotated[
        int | None, typer.Option("--level", min=1, help="Only messages in this delay level.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="Only messages for this topic.")
    ] = None,
    levels: Annotated[
        bool, typer.Option("--levels", help="Only how many wait in each level.")
    ] = False,
    count_max: Annotated[
        int, typer.Option("--max", min=1, max=10_000, help="Maximum number of messages.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List the delayed messages that wait, the next due first.

    Failed messages wait here for their next attempt, too: their topic is %RETRY%GROUP. Recall one
    with cometmq message recall.

    \b
    EXAMPLES
      cometmq message delayed --levels
      cometmq message delayed -t orders --max 10
    """
    if levels:
        if topic is not None:
            raise wrong_usage("--levels counts the messages of all topics: leave out --topic")
        _print_levels(namesrv, broker, level, as_json=as_json)
        return

    async def at(master: BrokerAdmin) -> tuple[list[Delayed], bool]:
        texts = await delay_texts(master)
        found: list[Delayed] = []
        is_cut = False
        for it in await levels_at(master):
            if level not in {None, it.level}:
                continue
            delay = delay_ms(texts[it.level - 1] if it.level <= len(texts) else "")
            queue = await waiting_at(master, it.level, delay, count_max, topic)
            found += queue.messages
            is_cut |= queue.is_cut
        return found, is_cut

    async def question(admin: AdminClient) -> tuple[list[Delayed], bool]:
        answers = await admin.ask_each(await masters_of(admin, broker), at)
        found = [it for _, (rows, _) in answers for it in rows]
        return found, any(is_cut for _, (_, is_cut) in answers)

    found, is_cut = ask(namesrv, question)
    found.sort(key=lambda it: it.order)
    empty = "no message waits" if topic is None else f"no message for {topic} waits"
    print_rows(COLUMNS, [_row(it) for it in found[:count_max]], as_json=as_json, empty=empty)
    if is_cut or len(found) > count_max:
        print_notes([f"more messages wait: the next {min(len(found), count_max):,} are shown"])


def _print_levels(namesrv: str, broker: str | None, level: int | None, *, as_json: bool) -> None:
    async def question(admin: AdminClient) -> list[list[Cell]]:
        answers = await admin.ask_each(await masters_of(admin, broker), levels_at)
        return [
            [it.broker, it.level, it.delay_text or None, it.waiting]
            for _, found in answers
            for it in found
            if level in {None, it.level}
        ]

    rows = ask(namesrv, question)
    print_rows(LEVEL_COLUMNS, rows, as_json=as_json, empty="no message waits")


def _row(it: Delayed) -> list[Cell]:
    message = it.message
    due = None if isinstance(it.due_ms, Unknown) else shown(it.due_ms)
    return [
        due, shown(message.store_timestamp), message.queue.broker_name, it.level, it.topic,
        message.tag, it.size, message.message_id,
    ]  # fmt: skip
