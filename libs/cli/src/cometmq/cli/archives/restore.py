# SPDX-License-Identifier: Apache-2.0
"""`cometmq restore`: sends the messages of a backup to topics, and compares what is stored."""

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives import progress as progresses
from cometmq.cli.archives.backup import Rate, Timeout
from cometmq.cli.archives.copying import broker_of
from cometmq.cli.archives.form import Folder, QueueKey, TopicPlan, load
from cometmq.cli.archives.progress import Head, Progress, Target
from cometmq.cli.archives.segments import check
from cometmq.cli.archives.sending import Sending
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
from cometmq.cli.meter import live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.output import AsJson, Cell, print_notes, print_rows
from cometmq.client import Producer, ProducerOptions
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, InvalidArgument, NoRoute
from cometmq.insight.changes.groups import check_not_reserved
from cometmq.insight.members import members_of
from cometmq.insight.words import counted, listed
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import SEND_FORBIDDEN_TOPICS
from cometmq.remoting.visible import command


class TopicPlace(msgspec.Struct, frozen=True):
    """A topic of a backup, and the topic that receives its messages."""

    plan: TopicPlan
    topic: str
    is_new: bool
    """Whether no broker has the topic yet."""
    notes: Sequence[str] = ()

    @property
    def source(self) -> str:
        """The topic in the backup."""
        return self.plan.name

    async def targets(
        self, admin: CommandAdmin, producer: Producer, patience_s: float
    ) -> list[tuple[QueueKey, Target]]:
        """Create the topic if it is new; return the target of each queue of the backup."""
        if self.is_new:
            await admin.create_topic(
                self.topic, queue_count=self.plan.queue_count, perm=int(Perm.READ | Perm.WRITE)
            )
        queues = await self._queues(admin, producer, patience_s)
        ends: dict[MessageQueue, int] = {}
        found = []
        for key, queue in assigned(self.plan, queues).items():
            if queue not in ends:
                broker = await broker_of(admin, self.topic, queue.broker_name, is_master=True)
                ends[queue] = await broker.max_offset(queue.topic, queue.queue_id)
            target = Target(self.topic, queue.broker_name, queue.queue_id, ends[queue])
            found.append((key, target))
        return found

    async def _queues(
        self, admin: CommandAdmin, producer: Producer, patience_s: float
    ) -> list[MessageQueue]:
        """Return the queues of the topic; if it is new, first wait until the name servers know them
        all.
        """
        wanted = set(await admin.masters()) if self.is_new else set()
        deadline = monotonic() + patience_s
        while True:
            with suppress(NoRoute):
                queues = await producer.queues(self.topic)
                if {it.broker_name for it in queues} >= wanted:
                    return queues
            if monotonic() >= deadline:
                raise ClientError(f"the name servers do not know the new topic {self.topic} yet")
            await asyncio.sleep(0.1)


async def place_of(admin: CommandAdmin, backup: Folder, source: str, topic: str) -> TopicPlace:
    """Return the target of a topic of a backup; raise ClientError if brokers would refuse its
    messages.
    """
    plan = next(it for it in backup.plan.topics if it.name == source)
    try:
        route = await admin.route(topic)
    except NoRoute:
        return TopicPlace(plan, topic, is_new=True)
    queues = [
        MessageQueue(topic, it.broker_name, number)
        for it in route.queue_datas
        if it.perm & Perm.WRITE
        for number in range(it.write_queue_nums)
    ]
    if not queues:
        raise ClientError(
            f"the topic {topic} accepts no messages: see {command('topic route', topic)}; to allow"
            f" it: {command('topic alter', topic, options=('--perm', 'rw'))}"
        )
    notes = []
    if len(queues) != len(plan.queues):
        notes.append(
            f"{topic} has {counted(len(queues), 'queue')}, the backup of {source}"
            f" {len(plan.queues)}: each queue keeps its order, but later messages with the same"
            " sharding key may go to another one"
        )
    return TopicPlace(plan, topic, is_new=False, notes=notes)


def assigned(plan: TopicPlan, queues: Sequence[MessageQueue]) -> dict[QueueKey, MessageQueue]:
    """Return the target of each queue of the backup: the queue with the same broker and number if
    all of these exist, else the queues in turn.
    """
    by_name = {(it.broker_name, it.queue_id): it for it in queues}
    sources = sorted((it.broker, it.queue) for it in plan.queues)
    if all(it in by_name for it in sources):
        return {(plan.name, *it): by_name[it] for it in sources}
    ordered = sorted(queues)
    return {(plan.name, *it): ordered[index % len(ordered)] for index, it in enumerate(sources)}


class Manner(NamedTuple):
    """Options that apply to all topics of a restore."""

    rate: float | None
    """Messages per second."""
    patience_s: float
    has_proof: bool
    """Whether everything is read back and compared."""
    has_groups: bool
    """Whether the saved offsets of groups are committed."""


class Work:
    """The restore of one topic, which continues where an earlier run ended."""

    def __init__(
        self,
        backup: Folder,
        place: TopicPlace,
        file: Path | None,
        cluster: Sequence[str],
        *,
        is_again: bool,
    ) -> None:
        self.backup = Folder(
            backup.path,
            backup.plan,
            [it for it in backup.segments if it.topic == place.source],
            backup.end,
        )
        self.place = place
        self._path = file or _default_path(backup, place, cluster)
        self._is_again = is_again
        self._found = self._earlier()

    @property
    def message_count(self) -> int:
        """Number of messages of the topic in the backup."""
        return self.backup.message_count

    @property
    def group_offset_count(self) -> int:
        """Number of saved offsets of groups in the topic."""
        return sum(it.topic == self.place.source for it in self.backup.plan.offsets)

    @property
    def done_count(self) -> int:
        """Number of messages that earlier runs have restored."""
        return 0 if self._progress is None else self._progress.stored_count

    @property
    def done_text(self) -> str:
        """A sentence for a topic that was restored completely before; empty for any other."""
        if self._progress is None or not self._progress.is_done:
            return ""
        return (
            f"{self.place.source} was restored to {self.place.topic} before ({self._path}); to"
            " store its messages once more: --again"
        )

    @property
    def _progress(self) -> Progress | None:
        """The progress of the run to continue; None if the restore begins."""
        is_ignored = self._is_again and self._found is not None and self._found.is_done
        return None if is_ignored else self._found

    def _earlier(self) -> Progress | None:
        found = progresses.load(self._path, self.backup)
        own = self.backup.plan.id, self.place.topic
        if found is not None and (found.head.backup, found.head.topic) != own:
            raise InvalidArgument(
                f"{self._path} belongs to another restore: name another file with --progress"
            )
        return found

    def begin_again(self) -> None:
        """Empty the progress file of a complete restore, if the user wants it repeated."""
        if self._found is not None and self._progress is None:
            with progresses.claim(self._path, self._found.size):
                progresses.forget(self._path)
            self._found = None

    async def run(self, admin: CommandAdmin, producer: Producer, manner: Manner) -> list[Cell]:
        """Restore the topic; return its row in the table of results."""
        with progresses.claim(self._path, 0 if self._found is None else self._found.size):
            return await self._run(admin, producer, manner)

    async def _run(self, admin: CommandAdmin, producer: Producer, manner: Manner) -> list[Cell]:
        progress = self._progress
        if progress is None:
            targets = await self.place.targets(admin, producer, manner.patience_s)
            head = Head(backup=self.backup.plan.id, topic=self.place.topic, targets=targets)
            progress = progresses.begin(self._path, head, self.backup)
        try:
            await self._send(admin, producer, progress, manner)
        except BaseException:
            count = counted(progress.stored_count, "message")
            how = " without --again" if self._is_again else ""
            text = f"{count} of {self.place.source} restored; repeat the command{how} to go on"
            print_notes([text])
            raise
        moved = await move_groups(admin, progress) if manner.has_groups else 0
        if not progress.differing_count:
            progress.finish()
        proof = [progress.verified_count, progress.differing_count]
        counts = [self.message_count, progress.stored_count, progress.left_out_count]
        proven = proof if manner.has_proof else [None, None]
        return [self.place.source, self.place.topic, *counts, *proven, moved]

    async def _send(
        self, admin: CommandAdmin, producer: Producer, progress: Progress, manner: Manner
    ) -> None:
        before, begin = progress.stored_count, monotonic()
        sending = Sending(
            admin, producer, self.backup, progress, rate=manner.rate,
            patience_s=manner.patience_s, has_proof=manner.has_proof,
        )  # fmt: skip

        def shown() -> str:
            percent = 100 * progress.stored_count / (self.message_count or 1)
            return f"{percent:.0f} %: {shown_rate(progress.stored_count - before, begin)}"

        async with live(shown):
            await sending.run()
        if sending.repeated_count:
            count = counted(sending.repeated_count, "message")
            text = f"{count} may be stored twice, with the same ids: a broker had not answered"
            print_notes([text])


def _default_path(backup: Folder, place: TopicPlace, cluster: Sequence[str]) -> Path:
    """Return the default path of the progress file, which depends on the topic and the cluster."""
    text = "\n".join([place.source, place.topic, *sorted(cluster)])
    return backup.path / f"restore-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"


async def check_groups(admin: CommandAdmin, backup: Folder, topics: Collection[str]) -> None:
    """Raise ClientError, before anything is sent, if a saved group has members: they would commit
    their own offsets again.
    """
    names = sorted({it.group for it in backup.plan.offsets if it.topic in topics})
    if not names:
        raise ClientError(f"{backup.path} has no offsets of groups in these topics")
    known = await admin.groups()
    for name in names:
        check_not_reserved(name)
        if name in known and (count := (await members_of(admin, name, known[name])).count):
            raise ClientError(
                f"the consumer group {name} has {count} connected members, which would commit their"
                f" own offsets again: stop them first ({command('group describe', name)})"
            )


async def move_groups(admin: CommandAdmin, progress: Progress) -> int:
    """Commit the offsets of the saved groups; return how many.

    A group keeps its offset in a queue if it has unread messages before the restored ones, because
    the saved offset would skip them.
    """
    wanted = progress.group_offsets()
    begins = {it.place: it.begin for it in progress.targets.values()}
    known = await admin.groups()
    for name in sorted({group for group, _ in wanted} - known.keys()):
        await admin.create_group(SubscriptionGroupConfig(group_name=name))
    kept: list[str] = []
    count = 0
    masters = {it.name: it for it in await admin.masters_to_change_of(progress.head.topic)}

    async def move(broker: BrokerAdmin) -> None:
        nonlocal count
        for (group, place), offset in wanted.items():
            if place.broker_name != broker.name:
                continue
            before = await broker.committed_offset(group, place.topic, place.queue_id)
            if before is not None and before < begins[place]:
                kept.append(f"{group} in {place.broker_name}:{place.queue_id}")
                continue
            await broker.commit_offset(group, place.topic, place.queue_id, offset)
            count += 1

    names = {place.broker_name for _, place in wanted}
    brokers = [broker for name, broker in masters.items() if name in names]
    await admin.change_each(brokers, move, f"place the groups in {progress.head.topic}")
    if kept:
        print_notes([f"not moved, because messages before are unread: {listed(kept)}"])
    return count


GROUP: Final = "CLI_RESTORER"
END_S: Final = 1.0
"""Time limit for closing the client; by then all sends have ended."""
COLUMNS: Final = (
    "Topic", "To", "Messages", "Restored", "Left out", "Verified", "Differ", "Group offsets",
)  # fmt: skip

app = App()


@app.command()
def restore(  # noqa: PLR0913  # one parameter per option
    folder: Annotated[Path, arg("Folder of the backup.")],
    topic: Annotated[list[str] | None, arg("Only these topics of it.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    target: Annotated[
        str | None, opt("--to", "Another topic for the messages of one topic.")
    ] = None,
    groups: Annotated[bool, opt("--groups", "Place the saved groups where they were.")] = False,
    rate: Rate = None,
    timeout: Timeout = 30,
    progress: Annotated[
        Path | None, opt("--progress", "File that remembers how far; or in the folder.")
    ] = None,
    verify: Annotated[bool, opt("--verify/--no-verify", "Read all back, and compare.")] = True,
    again: Annotated[bool, opt("--again", "Restore once more what was restored before.")] = False,
    unfinished: Annotated[
        bool, opt("--unfinished", "Restore what an unfinished backup has.")
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
