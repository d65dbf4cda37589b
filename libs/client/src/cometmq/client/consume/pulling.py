# SPDX-License-Identifier: Apache-2.0
"""A running pull consumer, which reads only on request."""

from cometmq.client.consume.delivery.send_back import SendBack
from cometmq.client.consume.membership import Membership
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.consume.queues.shares import RecordedOffsets, Shares
from cometmq.client.errors import no_route
from cometmq.client.settings import PullOptions
from cometmq.client.transfer.pulled import Pulled
from cometmq.client.transfer.puller import Puller, PullStyle
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import TopicNotExist


class Pulling:
    """Assembles the parts of a running pull consumer, and serves its pulls."""

    def __init__(
        self, parts: ConsumerParts, options: PullOptions, strategy: AllocateStrategy
    ) -> None:
        self._parts = parts
        self.offsets = RecordedOffsets(parts)
        self._shares = Shares(parts, self.offsets)
        self.member = Membership(parts, self._shares, strategy)
        self.failed = SendBack.of_group(parts.instance, parts.group, options)
        self._puller = self._puller_of(options, 0, options.plain_pull_timeout_ms)
        self._waiting_puller = self._puller_of(options, options.suspend_ms, options.pull_timeout_ms)

    def _puller_of(self, options: PullOptions, suspend_ms: int, timeout_ms: int) -> Puller:
        style = PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=suspend_ms,
            timeout_ms=timeout_ms,
            has_subscription=True,
            is_lite=False,
        )
        return Puller(self._parts.instance, self._parts.group, style)

    async def start(self) -> None:
        """Start rebalancing and storing offsets."""
        await self.member.begin()
        interval_ms = self._parts.options.persist_offset_interval_ms
        self._parts.background.keep(lambda: self.offsets.keep(interval_ms), name="persist-offsets")

    async def stop(self) -> None:
        """Revoke the queues, then store the offsets."""
        await self.member.end()
        await self._shares.revoke()
        await self._parts.background.close()
        for puller in (self._puller, self._waiting_puller):
            puller.close()
        await self.offsets.store()

    async def share_of(self, topic: str) -> list[MessageQueue]:
        """Return our share of a registered topic, rebalancing first if it is not known yet."""
        if self._shares.get(topic) is None and topic in self._parts.subscriptions:
            await self._parts.instance.routes.find(topic)
            await self.member.share()
        return sorted(self._shares.get(topic) or ())

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
        routes = self._parts.instance.routes
        await routes.find_queue(queue)
        puller = self._waiting_puller if is_waiting else self._puller
        try:
            pulled = await puller.pull(
                queue, offset, wanted, commit_offset=None, count_max=count_max
            )
        except TopicNotExist as error:
            self._parts.instance.refreshes.outdated(queue.topic)
            raise no_route(queue.topic, refused_by=[queue.broker_name]) from error
        self.offsets.ends[queue] = pulled.max_offset
        return pulled
