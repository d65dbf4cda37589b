# SPDX-License-Identifier: Apache-2.0
"""`cometmq group seek`: write the offsets of a group to a file, and move it to those of a file."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from cometmq.cli.input import has_content
from cometmq.cli.lookup import known_group
from cometmq.cli.output import STDOUT, AsJson, Cell, print_facts, print_rows
from cometmq.cli.say import say
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight.changes.groups import check_not_reserved
from cometmq.insight.changes.moves import check_without_members, offsets_of, totals
from cometmq.insight.changes.preview import QueueMove, preview_offsets
from cometmq.insight.times import shown
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import SettingsError

COLUMNS: Final = (
    "Topic", "Broker", "Queue", "From", "To", "Read again", "Skipped", "First", "Last",
)  # fmt: skip
"""The columns of a preview; First and Last are the times of the messages read again or skipped."""
LINES_MAX: Final = 1_000_000
HEAD: Final = (
    "# Offsets of a consumer group: TOPIC BROKER QUEUE OFFSET; cometmq group seek --from-file"
)
_LINE: Final = re.compile(r"(\S{1,255}) (\S{1,255}) (\d{1,5}) (\d{1,19})")


def seek(  # noqa: PLR0913  # one parameter per option
    group: Annotated[str, typer.Argument(help="Name of the consumer group.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    to_file: Annotated[
        Path | None,
        typer.Option("--to-file", help="Write its offsets to this file; - is standard output."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Move it to the offsets in this file.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("-t", "--topic", help="Only offsets in this topic; may be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Save the offsets of a group in a file, or move the group to those of a file.

    A group that is moved must not have members, because they would commit their own offsets again.
    All lines are checked before the first change.

    \b
    EXAMPLES
      cometmq group seek billing --to-file before.txt
      cometmq group seek billing --from-file before.txt --dry-run
    """
    if (to_file is None) == (from_file is None):
        raise wrong_usage("give either --to-file or --from-file")
    check_not_reserved(group)
    if to_file is not None:
        _save(namesrv, group, to_file, only or (), is_confirmed=yes or dry_run, as_json=as_json)
        return
    assert from_file is not None
    wanted = read_offsets(from_file)
    wanted = {queue: it for queue, it in wanted.items() if not only or queue.topic in only}

    async def question(admin: CommandAdmin) -> list[QueueMove]:
        config = await known_group(admin, group)
        masters = await admin.masters_to_change()
        found = await previewed(admin, group, wanted)
        await check_without_members(admin, group, config)
        admin.preview = totals(found)
        facts = f"{admin.preview['read_again']} read again, {admin.preview['skipped']} skipped"
        await confirm(f"Move the consumer group {group} ({facts})?", is_confirmed=yes)

        async def change(broker: BrokerAdmin) -> None:
            for it in found:
                if it.queue.broker_name == broker.name:
                    await broker.commit_offset(group, it.queue.topic, it.queue.queue_id, it.wanted)

        names = {it.queue.broker_name for it in found}
        brokers = [broker for name, broker in masters.items() if name in names]
        await admin.change_each(brokers, change, f"move the group {group}")
        return found

    rows = [row(it) for it in ask(namesrv, question)]
    print_rows(COLUMNS, rows, as_json=as_json)


def _save(
    namesrv: str,
    group: str,
    file: Path,
    topics: Sequence[str],
    *,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    async def question(admin: CommandAdmin) -> dict[MessageQueue, int]:
        admin.unchanged = ""
        await known_group(admin, group)
        if str(file) != STDOUT and has_content(file):
            await confirm(f"Overwrite {file}?", is_confirmed=is_confirmed)
        return await offsets_of(admin, group, topics)

    found = ask(namesrv, question)
    if not found:
        raise ClientError(f"{group} has no offsets: {file} was not written")
    if str(file) == STDOUT:
        say(written(found), nl=False)
        return
    try:
        file.write_text(written(found), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write to {file}: {error.strerror}") from error
    print_facts({"file": str(file), "queues": len(found)}, as_json=as_json)


def row(move: QueueMove) -> list[Cell]:
    """Return the cells of a queue in a preview."""
    queue = move.queue
    place: list[Cell] = [queue.topic, queue.broker_name, queue.queue_id]
    counts: list[Cell] = [move.committed, move.wanted, move.redelivered, move.skipped]
    return [*place, *counts, shown(move.from_ms or 0), shown(move.to_ms or 0)]


async def previewed(
    admin: CommandAdmin, group: str, wanted: Mapping[MessageQueue, int]
) -> list[QueueMove]:
    """Return the moves to given offsets; raise CometError, before any change, for a queue or an
    offset that does not exist.
    """
    by_topic: dict[str, dict[MessageQueue, int]] = {}
    for queue, offset in wanted.items():
        by_topic.setdefault(queue.topic, {})[queue] = offset
    found: list[QueueMove] = []
    for topic, offsets in by_topic.items():
        await admin.masters_to_change_of(topic)
        found += (await preview_offsets(admin, group, topic, offsets)).moves
    return found


def written(offsets: Mapping[MessageQueue, int]) -> str:
    """Return offsets as the text of a file."""
    lines = [
        f"{it.topic} {it.broker_name} {it.queue_id} {offset}" for it, offset in offsets.items()
    ]
    return "\n".join([HEAD, *lines]) + "\n"


def read_offsets(file: Path) -> dict[MessageQueue, int]:
    """Return the offsets in a file; raise InvalidArgument, with the line, if one is wrong."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read {file}: {error}") from error
    found: dict[MessageQueue, int] = {}
    for number, line in enumerate(lines[:LINES_MAX], 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InvalidArgument(
                f"line {number} of {file}: {line[:80]!r} is not TOPIC BROKER QUEUE OFFSET"
            )
        queue = MessageQueue(match[1], match[2], int(match[3]))
        if queue in found:
            raise InvalidArgument(f"line {number} of {file}: the queue is named twice")
        found[queue] = int(match[4])
    if not found:
        raise InvalidArgument(f"{file} has no offsets")
    return found
