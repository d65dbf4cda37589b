# SPDX-License-Identifier: Apache-2.0
"""`cometmq group seek`: write the offsets of a group to a file, and move it to those of a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
from cometmq.cli.input import has_content
from cometmq.cli.lookup import check_not_reserved, known_group
from cometmq.cli.output import STDOUT, AsJson, print_facts, print_rows
from cometmq.cli.say import say
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError
from cometmq.insight.members import members_of
from cometmq.insight.preview import QueueMove
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.visible import command


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
    wanted = moves.read_offsets(from_file)
    wanted = {queue: it for queue, it in wanted.items() if not only or queue.topic in only}

    async def question(admin: CommandAdmin) -> list[QueueMove]:
        config = await known_group(admin, group)
        masters = await admin.masters_to_change()
        found = await moves.previewed(admin, group, wanted)
        if count := (await members_of(admin, group, config)).count:
            raise ClientError(
                f"the consumer group {group} has {count} connected members, which would commit"
                f" their own offsets again: stop them first ({command('group describe', group)})"
            )
        admin.preview = moves.totals(found)
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

    rows = [moves.row(it) for it in ask(namesrv, question)]
    print_rows(moves.COLUMNS, rows, as_json=as_json)


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
        return await moves.offsets_of(admin, group, topics)

    found = ask(namesrv, question)
    if not found:
        raise ClientError(f"{group} has no offsets: {file} was not written")
    if str(file) == STDOUT:
        say(moves.written(found), nl=False)
        return
    try:
        file.write_text(moves.written(found), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write to {file}: {error.strerror}") from error
    print_facts({"file": str(file), "queues": len(found)}, as_json=as_json)
