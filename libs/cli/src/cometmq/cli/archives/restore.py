# SPDX-License-Identifier: Apache-2.0
"""`cometmq restore`: send the messages of a backup to topics, and compare what is stored."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives.backup import Rate, Timeout
from cometmq.cli.archives.form import Folder, load
from cometmq.cli.archives.groups import check_groups
from cometmq.cli.archives.places import place_of
from cometmq.cli.archives.segments import check
from cometmq.cli.archives.work import Manner, Work
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    DryRunOption,
    Namesrv,
    Yes,
    ask,
    confirm,
    with_access,
    wrong_usage,
)
from cometmq.cli.lazy import App
from cometmq.cli.limits import BriefEnd, with_limit
from cometmq.cli.output import AsJson, Cell, print_notes, print_rows
from cometmq.client import Producer, ProducerOptions
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight.words import counted
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import SEND_FORBIDDEN_TOPICS

GROUP: Final = "CLI_RESTORER"
END_S: Final = 1.0
"""Time limit for closing the client; by then all sends have ended."""
COLUMNS: Final = (
    "Topic", "To", "Messages", "Restored", "Left out", "Verified", "Differ", "Group offsets",
)  # fmt: skip

app = App()


@app.command()
def restore(  # noqa: PLR0913  # one parameter per option
    folder: Annotated[Path, typer.Argument(help="Folder of the backup.")],
    topic: Annotated[list[str] | None, typer.Argument(help="Only these topics of it.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    target: Annotated[
        str | None, typer.Option("--to", help="Another topic for the messages of one topic.")
    ] = None,
    groups: Annotated[
        bool, typer.Option("--groups", help="Place the saved groups where they were.")
    ] = False,
    rate: Rate = None,
    timeout: Timeout = 30,
    progress: Annotated[
        Path | None,
        typer.Option("--progress", help="File that remembers how far; or in the folder."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read all back, and compare.")
    ] = True,
    again: Annotated[
        bool, typer.Option("--again", help="Restore once more what was restored before.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Restore what an unfinished backup has.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send the messages of a backup, with their ids, keys, tags and properties.

    All files are checked before the first message is sent. A command that was interrupted continues
    when it is repeated. Missing topics are created. Exit status 1 if messages are left out or
    differ.

    \b
    EXAMPLES
      cometmq restore /backup/orders --dry-run
      cometmq restore /backup/orders orders --to orders-copy --rate 1000 --groups
    """
    backup = load(folder)
    names = _chosen(backup, topic or (), target, is_unfinished_wanted=unfinished)
    if progress is not None:
        if len(names) > 1:
            raise wrong_usage("--progress needs one topic")
        progress = progress.resolve()  # a link of the user's own, unlike one in the folder
    segments = [it for it in backup.segments if it.topic in names]
    for segment in segments:
        check(folder, segment)
    if not segments:
        raise ClientError(f"{folder} has no message of {', '.join(names)}")

    manner = Manner(rate, timeout, has_proof=verify, has_groups=groups)

    async def question(admin: CommandAdmin) -> list[list[Cell]]:
        places = [await place_of(admin, backup, it, target or it) for it in names]
        if groups:
            await check_groups(admin, backup, names)
        cluster = admin.namesrv.addresses
        works = _left([Work(backup, it, progress, cluster, is_again=again) for it in places])
        await _confirmed(admin, works, has_groups=groups, is_confirmed=yes)
        for it in works:
            it.begin_again()
        options = with_limit(with_access(ProducerOptions()), timeout or None)
        async with BriefEnd(END_S) as end:
            started = Producer(GROUP, namesrv, options=options, log=NO_LOG)
            producer = await end.enter_async_context(started)
            return [await it.run(admin, producer, manner) for it in works]

    rows = ask(namesrv, question, limit_s=timeout or None)
    print_rows(COLUMNS, rows, as_json=as_json)
    if any(row[4] or row[6] for row in rows):
        raise typer.Exit(1)


def _chosen(
    backup: Folder, only: Sequence[str], target: str | None, *, is_unfinished_wanted: bool
) -> list[str]:
    """Return the topics to restore; raise InvalidArgument for contradictions, without asking a
    server.
    """
    if backup.end is None and not is_unfinished_wanted:
        raise ClientError(
            f"{backup.path} is unfinished: repeat the command that began it, or restore what it has"
            " with --unfinished"
        )
    known = [it.name for it in backup.plan.topics]
    for name in only:
        if name not in known:
            raise InvalidArgument(f"{backup.path} has no topic {name}; it has {', '.join(known)}")
    names = list(dict.fromkeys(only)) or known
    if target is not None and len(names) > 1:
        raise InvalidArgument("--to needs one topic")
    for name in [target] if target is not None else names:
        if name in SEND_FORBIDDEN_TOPICS or name.startswith("%"):
            raise InvalidArgument(f"{name} belongs to the brokers: give another topic with --to")
    return names


def _left(works: Sequence[Work]) -> list[Work]:
    """Return the works that are not done; raise ClientError if all are."""
    left = [it for it in works if not it.done_text]
    done = [it.done_text for it in works if it.done_text]
    if not left:
        raise ClientError(done[0])
    print_notes(done)
    return left


async def _confirmed(
    admin: CommandAdmin, works: Sequence[Work], *, has_groups: bool, is_confirmed: bool
) -> None:
    """Print what will be restored, and ask for confirmation; a dry run ends here."""
    sent = sum(it.message_count - it.done_count for it in works)
    new = [it.place.topic for it in works if it.place.is_new]
    facts: dict[str, Cell] = {
        "messages": sent,
        "restored_before": sum(it.done_count for it in works),
        "topics": [it.place.topic for it in works],
        "new_topics": new,
        "group_offsets": sum(it.group_offset_count for it in works) if has_groups else 0,
    }
    admin.preview = facts
    print_notes([note for it in works for note in it.place.notes])
    masters = await admin.masters_to_change()
    targets = ", ".join(it.place.topic for it in works)
    admin.check_dry_run(f"send {counted(sent, 'message')} to {targets}", masters.values())
    await confirm(f"Send {counted(sent, 'message')} to {targets}?", is_confirmed=is_confirmed)
