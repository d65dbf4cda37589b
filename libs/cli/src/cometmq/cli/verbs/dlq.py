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

from cometmq.cli.changes import add_changes, command_of
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, Yes, ask, confirm
from cometmq.cli.input import has_content
from cometmq.cli.lazy import App
from cometmq.cli.lookup import known_group
from cometmq.cli.meter import live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.output import (
    STDOUT,
    print_facts,
    print_notes,
)
from cometmq.cli.say import say
from cometmq.cli.verbs.views import add_view
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError
from cometmq.insight.changes.change import Plan
from cometmq.insight.changes.messages import ReplayDeadLetters, no_such_id, nothing_matched
from cometmq.insight.changes.replays import Choice, Selection, as_object
from cometmq.insight.views.messages import DeadLetterGroups, DeadLetters
from cometmq.insight.words import counted
from cometmq.remoting.names import dead_letter_topic

AGAIN: Final = "the same command would begin again, and send those that were sent, too"
app = App("List, show, export and replay the dead letters of consumer groups.")


add_view(app, DeadLetterGroups)
add_view(app, DeadLetters)


class Export(Selection, frozen=True, kw_only=True):
    """Write dead letters of a group to a file that `produce --json-lines` can send.

    Asks before it overwrites a file. To send a message again with another body, edit its line, and
    send the file to the topic; all groups of the topic get it.

    \b
    EXAMPLES
      cometmq dlq export billing dead.jsonl --id C000020264005CE3AC0B4A0F46680001
      cometmq produce orders --json-lines -f dead.jsonl
    """


def _export(selection: Export, options: dict[str, Any]) -> None:
    group, file, count_max = selection.group, options["file"], options["count_max"]

    async def question(admin: AdminClient) -> int:
        choice = selection.chosen(count_max)
        count = 0
        is_any = await _has_dead_letters(admin, group)  # fails before the file is created
        if file != STDOUT and has_content(Path(file)):
            await confirm(f"Overwrite {file}?", is_confirmed=options["yes"])
        with _opened(file) as out:
            if not is_any:
                return 0
            async with live(lambda: f"{count:,} messages", beside_output=file == STDOUT):
                async for message in choice.read(admin, group):
                    out.write(msgspec.json.encode(as_object(message)) + b"\n")
                    count += 1
        _note_if_none(group, choice, count)
        return count

    count = ask(options["namesrv"], question)
    if file != STDOUT:
        print_facts({"group": group, "messages": count, "file": file}, as_json=False)


_FILE: Final = Annotated[str, typer.Argument(help="File of JSON lines; - is standard output.")]
_MAX: Final = Annotated[int | None, typer.Option("--max", min=1, help="At most N messages.")]
_EXPORT: Final[dict[str, Any]] = {
    "file": (_FILE, STDOUT), "namesrv": (Namesrv, DEFAULT_NAMESRV), "count_max": (_MAX, None),
    "yes": (Yes, False),
}  # fmt: skip
app.command("export")(command_of(Export, _EXPORT, _export))


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
