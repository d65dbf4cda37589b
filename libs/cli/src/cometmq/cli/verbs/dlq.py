# SPDX-License-Identifier: Apache-2.0
"""`cometmq dlq`: list, export and replay messages that consumer groups gave up on."""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from cometmq.cli.changes import add_changes
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, Yes, ask, confirm
from cometmq.cli.input import has_content
from cometmq.cli.lazy import App
from cometmq.cli.lookup import known_group
from cometmq.cli.meter import live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.option_sets import OptionSet
from cometmq.cli.output import (
    STDOUT,
    AsJson,
    Cell,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.cli.say import say
from cometmq.cli.watching import watched
from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.client.message import MessageExt
from cometmq.insight import times
from cometmq.insight.changes.change import Plan
from cometmq.insight.changes.messages import ReplayDeadLetters, no_such_id, nothing_matched
from cometmq.insight.changes.replays import Choice, Replayed, as_object
from cometmq.insight.life import replays_of
from cometmq.insight.model import Unknown
from cometmq.insight.words import counted
from cometmq.remoting.names import dead_letter_topic

COLUMNS: Final = (
    "Died", "Sent again", "Queue", "Offset", "Origin topic", "Tag", "Keys", "Body", "Deliveries",
    "Message id",
)  # fmt: skip
BODY_CHARS: Final = 60
"""The number of characters of a body that `show` prints."""
AGAIN: Final = "the same command would begin again, and send those that were sent, too"
app = App("List, show, export and replay the dead letters of consumer groups.")

Group = Annotated[str, typer.Argument(help="Name of the consumer group.")]
Max = Annotated[int | None, typer.Option("--max", min=1, help="At most N messages.")]


class Selection(OptionSet, frozen=True, kw_only=True):
    """The options that select some of a group's dead letters."""

    tag: Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")] = None
    key: Annotated[
        str | None,
        typer.Option("--key", help="Only those with this key."),
    ] = None
    origin: Annotated[
        str | None, typer.Option("--origin", help="Only those first sent to this topic.")
    ] = None
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only this id; may be repeated."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only since 90m ago, or 2026-11-20T10:00Z."),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Only those that became dead letters before.")
    ] = None


def chosen(options: Selection, count_max: int | None) -> Choice:
    """Return the choice that these options make; relative times count from now."""
    now_ms = wall_ms()
    begin_ms = None if options.since is None else times.parsed(options.since, now_ms=now_ms)
    end_ms = None if options.until is None else times.parsed(options.until, now_ms=now_ms)
    ids = frozenset(options.ids) if options.ids else None
    return Choice(options.tag, options.key, options.origin, ids, begin_ms, end_ms, count_max)


@app.command("list")
@watched
def list_groups(
    group: Annotated[str | None, typer.Argument(help="Only this group; all by default.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """List consumer groups that have dead letters, and how many.

    Last is when the newest dead letter was stored. Sent again is how many of them dlq replay has
    sent without a selection; dlq show says it of each message.

    \b
    EXAMPLE
      cometmq dlq list
    """

    async def question(admin: AdminClient) -> list[list[Cell]]:
        rows: list[list[Cell]] = []
        groups = await admin.dead_letter_groups()
        if group is not None and group not in groups:
            await known_group(admin, group)
        for name in groups:
            if group not in {None, name}:
                continue
            stats = await admin.topic_stats(dead_letter_topic(name))
            count = sum(queue.max_offset - queue.min_offset for queue in stats.values())
            last_ms = max((queue.last_update_timestamp for queue in stats.values()), default=0)
            replayed = Replayed(admin, name, is_ignored=False)
            await replayed.load()
            rows.append([name, count, replayed.sent_count(stats), times.shown(last_ms)])
        return rows

    rows = ask(namesrv, question)
    columns = ("Group", "Messages", "Sent again", "Last")
    empty = "no group has dead letters" if group is None else f"{group} has no dead letters"
    print_rows(columns, rows, as_json=as_json, empty=empty)


@app.command()
def show(  # one parameter per option
    group: Group,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    selection: Selection,
    count_max: Max = 100,
    as_json: AsJson = False,
) -> None:
    """Show the dead letters of a group; --json includes whole bodies and properties.

    Sent again says when a replay last sent the message to the group. Only the newest 100 dead
    letters are looked up; the older ones show unknown.

    RocketMQ's protocol carries no error with a dead letter: the consumer's log says why its
    listener failed. `cometmq dlq replay` sends them again.

    \b
    EXAMPLE
      cometmq dlq show billing --since 1d
    """

    more: list[MessageExt] = []

    async def question(admin: AdminClient) -> list[tuple[MessageExt, int | Unknown]]:
        choice = chosen(selection, None if count_max is None else count_max + 1)
        if not await _has_dead_letters(admin, group):
            return []
        found = [message async for message in choice.read(admin, group)]
        _note_if_none(group, choice, len(found))
        more[:] = found[count_max:] if count_max is not None else []
        found = sorted(found[:count_max], key=lambda it: it.store_timestamp)  # not by queue
        return list(zip(found, await replays_of(admin, group, found), strict=True))

    letters = ask(namesrv, question)
    notes = [f"only {count_max:,} dead letters are shown: give --max, --since or --key"]
    if as_json:
        print_json([as_object(it) | {"replayed_ms": _known(at_ms)} for it, at_ms in letters])
        print_notes(notes if more else [])
        return
    rows: list[list[Cell]] = [
        [
            times.shown(message.store_timestamp),
            "unknown" if isinstance(at_ms, Unknown) else times.shown(at_ms),
            f"{message.queue.broker_name}:{message.queue.queue_id}",
            message.queue_offset,
            origin_topic(message),
            message.tag,
            " ".join(message.keys),
            _beginning(message.body),
            message.reconsume_times,
            message.message_id,
        ]
        for message, at_ms in letters
    ]
    print_rows(COLUMNS, rows, as_json=False)
    print_notes(notes if more else [])


def _known(at_ms: int | Unknown) -> int | None:
    return None if isinstance(at_ms, Unknown) else at_ms


def _beginning(body: bytes) -> str:
    """Return the beginning of a body as text on one line."""
    text = " ".join(body[: 4 * BODY_CHARS].decode(errors="replace").split())
    return text if len(text) <= BODY_CHARS else f"{text[:BODY_CHARS]}..."


@app.command()
def export(  # one parameter per option
    group: Group,
    file: Annotated[str, typer.Argument(help="File of JSON lines; - is standard output.")] = STDOUT,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    selection: Selection,
    count_max: Max = None,
    yes: Yes = False,
) -> None:
    """Write dead letters of a group to a file that `produce --json-lines` can send.

    Asks before it overwrites a file. To send a message again with another body, edit its line, and
    send the file to the topic; all groups of the topic get it.

    \b
    EXAMPLES
      cometmq dlq export billing dead.jsonl --id C000020264005CE3AC0B4A0F46680001
      cometmq produce orders --json-lines -f dead.jsonl
    """

    async def question(admin: AdminClient) -> int:
        choice = chosen(selection, count_max)
        count = 0
        is_any = await _has_dead_letters(admin, group)  # fails before the file is created
        if file != STDOUT and has_content(Path(file)):
            await confirm(f"Overwrite {file}?", is_confirmed=yes)
        with _opened(file) as out:
            if not is_any:
                return 0
            async with live(lambda: f"{count:,} messages", beside_output=file == STDOUT):
                async for message in choice.read(admin, group):
                    out.write(msgspec.json.encode(as_object(message)) + b"\n")
                    count += 1
        _note_if_none(group, choice, count)
        return count

    count = ask(namesrv, question)
    if file != STDOUT:
        print_facts({"group": group, "messages": count, "file": file}, as_json=False)


@asynccontextmanager
async def _replaying(
    plan: Plan, change: ReplayDeadLetters, options: Mapping[str, Any]
) -> AsyncIterator[None]:
    """Show how far a replay is; on any error or signal, print the command that sends the rest."""
    run, begin = plan.job, monotonic()
    total = len(run.wanted)
    try:
        async with live(lambda: f"sent {shown_rate(len(run.sent), begin, total)}"):
            yield
    except BaseException as error:
        done = {*run.sent, *run.broken}
        left = [it for it in run.wanted if it not in done]
        more = ["-n", options["namesrv"]] if options["namesrv"] != DEFAULT_NAMESRV else []
        more += ["--yes"] if options["yes"] else []
        rest = change.rest(left)
        found = "" if rest is None else " ".join([rest.command(), shlex.join(more)]).rstrip()
        why = "interrupted: " if isinstance(error, asyncio.CancelledError) else ""
        text = f"{why}sent {len(run.sent):,} of {counted(total, 'message')}"
        how = f"to go on: {found}" if found else AGAIN
        print_notes([f"{text}, {len(left):,} left; {how}" if left else text])
        raise


add_changes(app, [ReplayDeadLetters], replay=_replaying)


async def _has_dead_letters(admin: AdminClient, group: str) -> bool:
    """Return whether a group has a dead-letter topic, and print a note if not.

    Raise an error if the group does not exist.
    """
    if await admin.namesrv.route(dead_letter_topic(group)) is not None:
        return True
    await known_group(admin, group)
    say(f"cometmq: {group} has no dead letters", err=True)
    return False


def _note_if_none(group: str, choice: Choice, count: int) -> None:
    """If no dead letter is selected, say so; raise ClientError if ids were given, because these
    must be wrong.
    """
    if count:
        return
    if choice.ids:
        raise no_such_id(group, choice)
    print_notes([nothing_matched(group)])


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    is_new = not path.exists()
    try:
        with path.open("wb") as out:
            yield out
    except OSError as error:
        if is_new and path.is_file() and not path.stat().st_size:
            path.unlink()
        raise ClientError(f"{file} cannot be written: {error.strerror or error}") from error
