# SPDX-License-Identifier: Apache-2.0
"""Reads restored messages back and compares each with the backup, in bounded memory."""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives.copying import master_of
from cometmq.cli.archives.form import Folder, GroupOffset, QueueKey
from cometmq.cli.archives.progress import Batch, Progress, Target
from cometmq.cli.archives.segments import lines_of
from cometmq.cli.archives.sending import item_of
from cometmq.cli.output import print_notes
from cometmq.client import Message, MessageExt
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError
from cometmq.client.message import DamagedMessage
from cometmq.insight.changes.groups import check_not_reserved
from cometmq.insight.members import members_of
from cometmq.insight.words import listed
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.visible import command


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


async def move_groups(admin: CommandAdmin, backup: Folder, progress: Progress) -> int:
    """Commit the offsets of the saved groups; return how many.

    A group keeps its offset in a queue if it has unread messages before the restored ones, because
    the saved offset would skip them.
    """
    wanted = restored_offsets(backup, progress)
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


DIFFERENCES_MAX: Final = 20
"""Number of differences that are described."""


class Proof:
    """Compares a backup with the queues to which it was restored."""

    def __init__(self, admin: AdminClient, folder: Folder, progress: Progress) -> None:
        self._admin, self._folder, self._progress = admin, folder, progress
        self._segments = {it.file: it for it in folder.segments}
        self._lines: dict[str, Iterator[bytes]] = {}
        self._brokers: dict[str, BrokerAdmin] = {}
        self.checked_count = 0
        self.differing_count = 0
        self.differences: list[str] = []
        """Descriptions of the first DIFFERENCES_MAX differences."""

    async def run(self) -> None:
        """Compare all batches."""
        for batch, target in self._progress.batches():
            lines = self._next_lines(batch)
            if batch.offset < 0:
                continue
            wanted = [
                item_of(batch.line + index, line, target.topic).message
                for index, line in enumerate(lines)
            ]
            found = await self._stored(target.place, batch.offset, batch.count)
            for index, message in enumerate(wanted):
                self._compare(
                    message, found.get(batch.offset + index), target, batch.offset + index
                )

    def _next_lines(self, batch: Batch) -> list[bytes]:
        """Return the lines of a batch. Several files may be open, because batches of different
        queues alternate.
        """
        if batch.file not in self._lines:
            segment = self._segments[batch.file]
            self._lines[batch.file] = lines_of(self._folder.path, segment)
        found = list(islice(self._lines[batch.file], batch.count))
        if batch.line + batch.count >= self._segments[batch.file].messages:
            del self._lines[batch.file]
        return found

    async def _stored(self, place: MessageQueue, offset: int, count: int) -> dict[int, MessageExt]:
        """Return the messages of a queue by offset."""
        if place.broker_name not in self._brokers:
            self._brokers[place.broker_name] = await master_of(self._admin, place)
        broker = self._brokers[place.broker_name]
        found: dict[int, MessageExt] = {}
        at = offset
        while at < offset + count:
            answer = await broker.pull(place.topic, place.queue_id, at)
            found |= {it.queue_offset: it for it in answer.messages}
            if answer.next_offset <= at:
                break
            at = answer.next_offset
        return found

    def _compare(
        self, wanted: Message | None, found: MessageExt | None, target: Target, offset: int
    ) -> None:
        self.checked_count += 1
        if wanted is None:
            return
        where = f"{target.topic}, queue {target.broker}:{target.queue}, offset {offset}"
        difference = difference_of(wanted, found)
        if difference:
            self.differing_count += 1
            if len(self.differences) < DIFFERENCES_MAX:
                self.differences.append(f"{where}: {difference}")


def difference_of(wanted: Message, found: MessageExt | None) -> str:
    """Return how a stored message differs from the one in the backup; empty if it does not."""
    if found is None:
        return f"the message {wanted.message_id} is not there"
    if isinstance(found, DamagedMessage):
        return f"the message {found.message_id} is damaged"
    own = tuple(key for key in found.keys if key != found.message_id)
    parts = {
        "id": (wanted.message_id, found.message_id),
        "body": (wanted.body, found.body),
        "tag": (wanted.tag or None, found.tag),
        "keys": (tuple(wanted.keys), own),
        "properties": (dict(wanted.properties), found.user_properties),
        "flag": (wanted.flag, found.flag),
    }
    names = [name for name, (one, other) in parts.items() if one != other]
    return f"{' and '.join(names)} of {wanted.message_id} differ" if names else ""


def restored_offsets(folder: Folder, progress: Progress) -> dict[tuple[str, MessageQueue], int]:
    """Return the offsets at which groups continue in the target queues, by group and queue.

    A group skips no message that was unread in the backup: if several queues were restored to one,
    it gets the smallest of their offsets.
    """
    keys = {it.file: it.key for it in folder.segments}
    waiting: dict[QueueKey, list[GroupOffset]] = {}
    for it in sorted(folder.plan.offsets, key=lambda it: -it.offset):
        waiting.setdefault(it.key, []).append(it)
    places: list[tuple[GroupOffset, int]] = []
    ends: dict[QueueKey, int] = {}
    for batch, _ in progress.batches():  # those of a queue in the order of its offsets
        key = keys[batch.file]
        if batch.offset < 0:
            continue
        ends[key] = batch.offset + batch.count
        left = waiting.get(key, [])
        while left and left[-1].offset <= batch.first:
            places.append((left.pop(), batch.offset))
    targets = progress.targets
    for key, left in waiting.items():  # these have read everything
        if key in targets:
            places += [(it, ends.get(key, targets[key].begin)) for it in left]
    found: dict[tuple[str, MessageQueue], int] = {}
    for it, offset in places:
        place = it.group, targets[it.key].place
        found[place] = min(offset, found.get(place, offset))
    return found
