# SPDX-License-Identifier: Apache-2.0
"""`cometmq backup`: copy the messages of topics into a folder, and check such a folder."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Annotated, Final
from uuid import uuid4

import msgspec
import typer

from cometmq.cli.access import ACCESS
from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives.copying import Copy
from cometmq.cli.archives.form import (
    Folder,
    GroupOffset,
    Plan,
    QueueSpan,
    TopicPlan,
    created,
    is_begun,
    load,
    resumed,
)
from cometmq.cli.archives.segments import check, lines_of
from cometmq.cli.connecting import DEFAULT_NAMESRV, DryRunOption, Namesrv, ask, wrong_usage
from cometmq.cli.consuming.source import queues_of, readable
from cometmq.cli.lazy import App
from cometmq.cli.meter import live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.output import AsJson, Cell, print_facts, print_notes
from cometmq.cli.verbs.topics import kind_of
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, InvalidArgument, broker_missing
from cometmq.insight import times
from cometmq.insight.reading import each
from cometmq.insight.times import shown
from cometmq.insight.words import counted
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.visible import command
from cometmq.runtime.version import VERSION

_QUEUE: Final = re.compile(r"(\S+?):(\d{1,5})(?:=(\d{1,19})?(?::(\d{1,19}))?)?")

Ranges = Mapping[tuple[str, int], tuple[int | None, int | None]]
"""The chosen queues by broker and number, each with its first offset and its end, if given."""


def parse_queues(texts: Iterable[str]) -> Ranges:
    """Return the queues of `BROKER:NUMBER`, or of `BROKER:NUMBER=FIRST:END`."""
    found: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    for text in texts:
        match = _QUEUE.fullmatch(text)
        if match is None:
            raise InvalidArgument(
                f"--queue {text}: must be BROKER:NUMBER, or BROKER:NUMBER=FIRST:END with offsets"
            )
        first, end = (None if it is None else int(it) for it in match.group(3, 4))
        if first is not None and end is not None and first >= end:
            raise InvalidArgument(f"--queue {text}: the offsets end before they begin")
        found[match[1], int(match[2])] = first, end
    return found


class Wanted(msgspec.Struct, frozen=True):
    """The backup that the options describe."""

    topics: Sequence[str] = ()
    """All topics if none is named."""
    ranges: Ranges = {}
    groups: Sequence[str] | None = None
    """The groups whose offsets are saved; None means none, and an empty sequence all."""
    options: Mapping[str, Sequence[str]] = {}
    """The options as given, for the comparison with those of an unfinished backup."""
    since_ms: int | None = None
    until_ms: int | None = None

    async def planned(self, admin: CommandAdmin) -> Plan:
        """Return the plan of the backup.

        Raise ClientError if a broker does not answer, because the backup would lack its messages.
        """
        names = self.topics or await _own_topics(admin)
        if not names:
            raise ClientError("the cluster has no topics of its own")
        plans = await each(dict.fromkeys(names), lambda it: _topic(admin, it, self))
        slaves = sorted(admin.unanswered.keys() & {one.broker for it in plans for one in it.queues})
        print_notes([f"messages that only the master of {it} has are left out" for it in slaves])
        return Plan(
            id=uuid4().hex,
            begun=shown(wall_ms()) or "",
            program=f"cometmq {VERSION}",
            namesrv=";".join(admin.namesrv.addresses),
            topics=plans,
            options=self.options,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            offsets=[] if self.groups is None else await _offsets(admin, plans, self.groups),
        )


async def _own_topics(admin: CommandAdmin) -> list[str]:
    """Return the topics of a cluster, except those that servers create for themselves and for
    groups.
    """
    reserved = {*await admin.masters(), *(await admin.cluster()).cluster_addr_table}
    return [it for it in await admin.topics() if it not in reserved and kind_of(it) == "messages"]


async def _topic(admin: CommandAdmin, topic: str, choice: Wanted) -> TopicPlan:
    queues, ranges = await queues_of(admin, topic), choice.ranges
    known = {(it.broker_name, it.queue_id) for it in queues}
    for name, number in ranges.keys() - known:
        raise ClientError(f"the topic {topic} has no queue {name}:{number}")
    wanted = [it for it in queues if not ranges or (it.broker_name, it.queue_id) in ranges]
    brokers = await readable(admin, topic)
    for name in {it.broker_name for it in wanted} - brokers.keys():
        raise broker_missing(name)

    async def spans(broker: BrokerAdmin) -> list[QueueSpan]:
        return [
            await _span(broker, queue, choice)
            for queue in wanted
            if queue.broker_name == broker.name
        ]

    answers = await admin.ask_all(brokers.values(), spans)
    data = (await admin.route(topic)).queue_datas
    return TopicPlan(
        name=topic,
        queues=sorted(
            (span for _, found in answers for span in found), key=lambda it: (it.broker, it.queue)
        ),
        queue_count=max(max(it.read_queue_nums, it.write_queue_nums) for it in data),
    )


async def _span(broker: BrokerAdmin, queue: MessageQueue, choice: Wanted) -> QueueSpan:
    place = (queue.topic, queue.queue_id)
    least, end = await broker.min_offset(*place), await broker.max_offset(*place)
    first, wanted_end = choice.ranges.get((broker.name, queue.queue_id), (None, None))
    if choice.since_ms is not None:
        least = max(least, await broker.search_offset(*place, choice.since_ms))
    if choice.until_ms is not None:
        end = min(end, await broker.last_offset_until(*place, choice.until_ms) + 1)
    least, end = max(least, first or 0), min(end, end if wanted_end is None else wanted_end)
    return QueueSpan(broker.name, queue.queue_id, min(least, end), end)


async def _offsets(
    admin: CommandAdmin, plans: Sequence[TopicPlan], groups: Sequence[str]
) -> list[GroupOffset]:
    """Return the offsets that groups have in the queues of the plans."""
    queues = {(it.name, one.broker, one.queue) for it in plans for one in it.queues}

    async def ask(broker: BrokerAdmin) -> list[GroupOffset]:
        table = (await broker.consumer_offsets()).offset_table
        found = [
            GroupOffset(owner, topic, broker.name, queue, offset)
            for key, offsets in table.items()
            for topic, _, owner in [key.partition("@")]
            if not groups or owner in groups
            for queue, offset in offsets.items()
        ]
        return [it for it in found if it.key in queues]

    answers = await admin.ask_all((await admin.masters_to_change()).values(), ask)
    rows = sorted((it for _, found in answers for it in found), key=lambda it: (it.group, *it.key))
    for group in groups:
        if not any(it.group == group for it in rows):
            raise ClientError(f"the consumer group {group} has no offsets in these topics")
    return rows


app = App()

Rate = Annotated[float | None, opt("Maximum number of messages per second.", min=0.001)]
Timeout = Annotated[float, opt("Seconds to wait for brokers.", min=0)]


@app.command()
def backup(  # noqa: PLR0913  # one parameter per option
    folder: Annotated[Path, arg("Folder, new or unfinished.")],
    topic: Annotated[
        list[str] | None, arg("Topics; those of an unfinished backup are known.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    is_all: Annotated[bool, opt("--all", "All topics but the system's.")] = False,
    since: Annotated[
        str | None, opt("--since", "Only what was stored since 90m or a time.")
    ] = None,
    until: Annotated[str | None, opt("--until", "Only what was stored before this time.")] = None,
    queue: Annotated[
        list[str] | None, opt("--queue", "Only BROKER:NUMBER, or BROKER:NUMBER=FIRST:END.")
    ] = None,
    groups: Annotated[bool, opt("--groups", "Save offsets of all groups.")] = False,
    group: Annotated[list[str] | None, opt("-g", "--group", "Save those of one.")] = None,
    rate: Rate = None,
    timeout: Timeout = 30,
    verify: Annotated[
        bool, opt("--verify", "Only check the files of the folder; ask no server.")
    ] = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Copy messages with their keys, tags and properties into a folder of files.

    A command that was interrupted continues when it is repeated. The files are compressed lines for
    produce --json-lines. Exit status 1 if messages are damaged, or were deleted meanwhile.

    \b
    EXAMPLES
      cometmq backup /backup/orders orders --since 7d --groups
      cometmq backup /backup/orders --verify
    """
    if verify:
        if topic or is_all:
            raise wrong_usage("--verify checks the whole folder: give no topics")
        print_facts(_verified(load(folder)), as_json=as_json)
        return
    ranges, now_ms = parse_queues(queue or ()), wall_ms()
    if ranges and len(topic or ()) != 1:
        raise wrong_usage("--queue needs one topic")
    options = {
        "--all": ["yes"] * is_all,
        "--since": [since or ""],
        "--until": [until or ""],
        "--queue": sorted(queue or ()),
        "--groups": ["yes"] * groups,
        "--group": sorted(group or ()),
    }
    wanted = Wanted(
        topic or (),
        ranges,
        [] if groups else group or None,
        {name: texts for name, texts in options.items() if any(texts)},
        None if since is None else times.parsed(since, now_ms=now_ms),
        None if until is None else times.parsed(until, now_ms=now_ms),
    )

    async def question(admin: CommandAdmin) -> tuple[Folder, float]:
        admin.unchanged = ""
        with ExitStack() as stack:
            found = await _opened(admin, folder, wanted, stack)
            begin = monotonic()
            await _copied(admin, found, rate, timeout)
            return found, monotonic() - begin

    done, seconds = ask(namesrv, question, limit_s=timeout or None)
    print_facts({**_facts(done), "seconds": round(seconds, 3)}, as_json=as_json)
    _note_losses(done)


async def _opened(admin: CommandAdmin, path: Path, wanted: Wanted, stack: ExitStack) -> Folder:
    """Continue the backup in a folder, or plan and begin one; the stack closes it."""
    if is_begun(path):
        before = load(path)
        _check_unfinished(before, wanted.topics, wanted.options)
        _note_dry_run(admin, path, before.plan)
        found = stack.enter_context(resumed(path))
        _check_unfinished(found, (), {})  # another run may have ended meanwhile
        return found
    if not wanted.topics and "--all" not in wanted.options:
        raise InvalidArgument("name the topics, or give --all")
    plan = await wanted.planned(admin)
    _note_dry_run(admin, path, plan)
    return stack.enter_context(created(path, plan))


async def _copied(
    admin: CommandAdmin, folder: Folder, rate: float | None, patience_s: float
) -> None:
    copy = Copy(admin, folder, rate=rate, patience_s=patience_s)
    total, begin = folder.plan.offset_count, monotonic()
    before = copy.message_count

    def progress() -> str:
        percent = 100 * copy.done_offsets / (total or 1)
        return f"{percent:.0f} %: {shown_rate(copy.message_count - before, begin)}"

    try:
        async with live(progress):
            await copy.run()
    except BaseException:
        kept = counted(folder.message_count, "message")
        print_notes([f"{kept} are in {folder.path}; repeat the command to go on"])
        raise
    folder.finish(times.shown(wall_ms()) or "")


def _check_unfinished(
    found: Folder, topics: Sequence[str], options: Mapping[str, Sequence[str]]
) -> None:
    """Raise if a backup is complete, or was begun with other options."""
    if found.end is not None:
        raise ClientError(
            f"{found.path} has a complete backup of {found.plan.begun}: name another folder; to"
            f" check this one: {command('backup', str(found.path), options=('--verify',))}"
        )
    begun = found.plan.options
    has = sorted(it.name for it in found.plan.topics)
    other = [name for name, texts in options.items() if begun.get(name) != texts]
    if topics and sorted(set(topics)) != has:
        other.insert(0, "topics")
    if other:
        raise InvalidArgument(
            f"{found.path} has an unfinished backup of {', '.join(has)}, begun with other"
            f" {', '.join(other)}: to go on, leave them out"
        )


def _note_dry_run(admin: CommandAdmin, folder: Path, plan: Plan) -> None:
    """End a dry run with a preview. It shows numbers of offsets, which may exceed those of
    messages.
    """
    if ACCESS.get().is_dry_run:
        admin.preview = {
            "topics": [it.name for it in plan.topics],
            "queues": len(plan.spans),
            "messages_max": plan.offset_count,
            "group_offsets": len(plan.offsets),
        }
        admin.check_dry_run(f"write a backup to {folder}", ())


def _facts(folder: Folder) -> dict[str, Cell]:
    plan = folder.plan
    return {
        "folder": str(folder.path),
        "topics": [it.name for it in plan.topics],
        "queues": len(plan.spans),
        "messages": folder.message_count,
        "damaged": sum(it.damaged for it in folder.segments),
        "missing": sum(it.missing for it in folder.segments),
        "group_offsets": len(plan.offsets),
        "files": len(folder.segments),
        "plain_bytes": sum(it.plain_bytes for it in folder.segments),
    }


def _verified(folder: Folder) -> dict[str, Cell]:
    """Check every byte and line of a backup; return what to print about it."""
    if folder.end is None:
        raise ClientError(
            f"{folder.path} is unfinished: it has {folder.message_count:,} messages; repeat the"
            " command that began it"
        )
    size = 0
    for segment in folder.segments:
        size += check(folder.path, segment)
        for _ in lines_of(folder.path, segment):
            pass
    return {**_facts(folder), "bytes": size, "verified": True, "begun": folder.plan.begun}


def _note_losses(folder: Folder) -> None:
    facts = _facts(folder)
    notes = []
    if facts["damaged"]:
        notes.append(f"{facts['damaged']:,} messages are damaged: restore leaves them out")
    if facts["missing"]:
        notes.append(f"{facts['missing']:,} messages were deleted by brokers before they were read")
    print_notes(notes)
    if notes:
        raise typer.Exit(1)
