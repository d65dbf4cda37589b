# SPDX-License-Identifier: Apache-2.0
"""Maps the queues of a backup to the queues of the topic that receives its messages."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import msgspec

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives.form import Folder, QueueKey, TopicPlan
from cometmq.cli.archives.progress import Target
from cometmq.cli.archives.waiting import master_of
from cometmq.client import Producer
from cometmq.client.errors import ClientError, NoRoute
from cometmq.insight.words import counted
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.message.flags import Perm
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
                broker = await master_of(admin, queue)
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
