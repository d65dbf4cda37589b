# SPDX-License-Identifier: Apache-2.0
"""The group member of a pull consumer, which reads only on request."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from cometmq.client.consume.delivery.send_back import SENT_BACK, SendBack
from cometmq.client.consume.member import CONSUME_ACTIVELY, GroupMember, MemberParts
from cometmq.client.consume.queues.first_offsets import QueueOffsets
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.errors import InvalidArgument, no_route
from cometmq.client.identity import unique_ids
from cometmq.client.message import MessageExt
from cometmq.client.settings import PullOptions, producer_options
from cometmq.client.transfer.puller import Pulled, Puller, PullStyle
from cometmq.client.transfer.sender import MessageSender
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.errors import CometError, ServerError, TopicNotExist
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import INNER_PRODUCER_GROUP


class PlainPullGroup(GroupMember[PullOptions]):
    """A member that tracks its share of the queues, pulls on request, and keeps offsets."""

    CONSUME_TYPE = CONSUME_ACTIVELY
    """Taking a queue only calls the application, which may call `queues_in_balance`."""

    def __init__(self, parts: MemberParts[PullOptions]) -> None:
        super().__init__(parts)
        self._shares: dict[str, frozenset[MessageQueue]] = {}
        self._noted: set[MessageQueue] = set()
        self._refusals: dict[MessageQueue, InvalidArgument] = {}
        """The errors for offsets dropped since the last `commit`; the next `commit` raises one."""
        self._logged: set[MessageQueue] = set()
        """The queues whose refusals have been logged."""
        self._ends: dict[MessageQueue, int] = {}
        """The last known end of each queue."""
        options = self._options
        self._puller = Puller(self._instance, self._group, self._style())
        self._waiting_puller = Puller(
            self._instance,
            self._group,
            PullStyle(
                count_max=options.pull_count_max,
                suspend_ms=options.suspend_ms,
                timeout_ms=options.pull_timeout_ms,
                has_subscription=True,
                is_lite=False,
            ),
        )
        sender = MessageSender(
            self._instance, INNER_PRODUCER_GROUP, producer_options(options), ids=unique_ids(options)
        )
        self._send_back = SendBack(
            self._instance, self._group, sender, max_reconsume_times=options.max_reconsume_times
        )

    @property
    def queue_offsets(self) -> QueueOffsets:
        """Queries for the bounds of queues."""
        return self._queue_offsets

    async def start(self) -> None:
        """Start rebalancing and storing offsets."""
        await self._begin_sharing()
        self._background.keep(self._keep_offsets, name="persist-offsets")

    async def stop(self) -> None:
        """Revoke the queues, so that the application can record its last offsets, then store
        them.
        """
        await self._end_sharing()
        await self._ownership.told_revoked(self.queues)
        await self._background.close()
        for puller in (self._puller, self._waiting_puller):
            puller.close()
        await self._store_offsets()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues of all registered topics that are assigned to this member."""
        return [queue for share in self._shares.values() for queue in share]

    async def share_of(self, topic: str) -> list[MessageQueue]:
        """Return our share of a registered topic, rebalancing first if it is not known yet."""
        if topic not in self._shares and topic in self._subscriptions:
            await self._instance.routes.find(topic)
            await self._assigner.share()
        return sorted(self._shares.get(topic, ()))

    async def unsubscribed(self, topic: str) -> None:
        """Release the share of a topic."""
        await self._take({topic: []})
        self._shares.pop(topic, None)

    async def _take(self, shares: Mapping[str, Collection[MessageQueue]]) -> bool:
        for topic, queues in shares.items():
            await self._note_share(topic, queues)
        return True

    async def _note_share(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Record our share of a topic, and report the changes to the application."""
        before, now = self._shares.get(topic, frozenset()), frozenset(queues)
        self._shares[topic] = now
        if lost := before - now:
            await self._ownership.told_revoked(lost)
            await self._drop_refused(lost & self._noted)
            self._log_refusals()
            await self._ownership.commit(lost & self._noted)
            for queue in lost:
                self._offsets.forget(queue)
            self._noted -= lost
        if fresh := now - before:
            await self._ownership.taken(fresh)

    # -- on request ---------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: SubscriptionData,
        count_max: int,
        *,
        is_waiting: bool,
    ) -> Pulled:
        """Read a queue from an offset; raise InvalidArgument if the queue does not exist, and
        NoRoute if its topic does not, even if the route was found before the topic was deleted.
        """
        routes = self._instance.routes
        await routes.find_queue(queue)
        puller = self._waiting_puller if is_waiting else self._puller
        try:
            pulled = await puller.pull(
                queue, offset, wanted, commit_offset=None, count_max=count_max
            )
        except TopicNotExist as error:
            routes.outdated(queue.topic)
            raise no_route(queue.topic, refused_by=[queue.broker_name]) from error
        self._ends[queue] = pulled.max_offset
        return pulled

    async def send_back(self, message: MessageExt, delay_level: int) -> bool:
        """Return a message to its broker."""
        return await self._send_back.send_back(message, delay_level, SENT_BACK)

    async def offset_of(self, queue: MessageQueue, *, from_store: bool) -> int | None:
        """Return the group's offset or None; read it from memory unless `from_store` is set."""
        position = None if from_store else self._offsets.position(queue)
        if position is not None:
            return position
        await self._instance.routes.find_queue(queue)
        return await self._offsets.read(queue)

    def note_offset(self, queue: MessageQueue, offset: int) -> None:
        """Record the consumed offset of the group."""
        self._noted.add(queue)
        self._refusals.pop(queue, None)
        self._logged.discard(queue)
        self._offsets.update(queue, offset, is_reset=True)

    async def commit(self) -> None:
        """Store all recorded offsets that may be stored; raise InvalidArgument for the others."""
        await self._store()
        refusals, self._refusals = self._refusals, {}
        for error in refusals.values():
            raise error

    async def _store(self) -> None:
        for topic in {queue.topic for queue in self._noted}:
            with suppress(CometError):  # queues whose broker remains unknown fail below
                await self._instance.routes.find(topic)
        await self._drop_refused(self._noted)
        await self._offsets.commit(self._noted)

    async def _drop_refused(self, queues: Iterable[MessageQueue]) -> None:
        """Drop the recorded offsets that must not be stored.

        A broker accepts an offset beyond the end of a queue, and any queue number; the group would
        then skip messages. For the same reason, such an offset must not be kept until the queue
        has grown.
        """
        for queue in sorted(queues):
            try:
                await self._check_offset(queue)
            except InvalidArgument as error:
                self._offsets.forget(queue)
                self._noted.discard(queue)
                self._refusals[queue] = error
            except CometError:  # the commit that follows reports it
                continue

    async def _check_offset(self, queue: MessageQueue) -> None:
        offset = self._offsets.unsaved(queue)
        if offset is None or offset <= self._ends.get(queue, -1):
            return
        end = self._ends[queue] = await self._queue_offsets.max(queue)
        if offset > end and self._offsets.unsaved(queue) == offset:
            raise InvalidArgument(
                f"the offset {offset} is beyond the end of queue {queue.queue_id} of {queue.topic} "
                f"at {queue.broker_name}, and is not stored: give one of at most {end}, the end"
            )

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the recorded offsets of a topic."""
        noted = ((queue, self._offsets.position(queue)) for queue in self._noted)
        return {
            queue: offset for queue, offset in noted if queue.topic == topic and offset is not None
        }

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Refuse, because there is no listener."""
        raise ServerError(f"the consumer group {self._group} pulls: it has no listener")

    # -- inside -------------------------------------------------------------------------------

    async def _keep_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._options.persist_offset_interval_ms / 1000)
            await self._store_offsets()

    async def _store_progress(self) -> None:
        await self._store_offsets()

    async def _store_offsets(self) -> None:
        try:
            await self._store()
        except (CometError, OSError) as error:
            self._instance.outages.failed("offset.unsaved", error, group=self._group)
        self._log_refusals()

    def _log_refusals(self) -> None:
        """Log each dropped offset once, because there may be no further call to raise its error."""
        for queue in self._refusals.keys() - self._logged:
            error = self._refusals[queue]
            self._instance.outages.failed("offset.unsaved", error, group=self._group)
        self._logged = set(self._refusals)

    def _style(self) -> PullStyle:
        options = self._options
        return PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=0,
            timeout_ms=options.plain_pull_timeout_ms,
            has_subscription=True,
            is_lite=False,
        )

    def _sink(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        raise AssertionError("a pull consumer has no readers")

    def _may_read(self) -> bool:
        return False
