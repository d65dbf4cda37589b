# SPDX-License-Identifier: Apache-2.0
"""Commits the saved offsets of consumer groups in a restored topic."""

from collections.abc import Collection

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives.form import Folder
from cometmq.cli.archives.progress import Progress
from cometmq.cli.archives.proof import restored_offsets
from cometmq.cli.output import print_notes
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError
from cometmq.insight.changes.groups import check_not_reserved
from cometmq.insight.members import members_of
from cometmq.insight.words import listed
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
