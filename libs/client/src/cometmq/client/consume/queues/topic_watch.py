# SPDX-License-Identifier: Apache-2.0
"""Watches the queues of topics for changes, like Java's TopicMessageQueueChangeListener."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from cometmq.client.application_calls import calling, outlive
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.listener import called
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.transport.tasks import describe

QueuesChanged = Callable[[str, list[MessageQueue]], Awaitable[None] | None]
"""Called with a topic and all its queues; a plain function is called on a thread."""


class QueueWatch:
    """Compares the queues of some topics between two checks."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        callbacks: Mapping[str, QueuesChanged],
        *,
        client: object = None,
    ) -> None:
        """Watch the topics in `callbacks`, whose keys are full names.

        The callbacks cannot close `client`.
        """
        self._client = client
        self._group = group
        self._instance = instance
        self._callbacks = callbacks
        self._known: dict[str, list[MessageQueue]] = {}

    async def run(self, *, interval_ms: int) -> None:
        """Check at intervals; the first check reports no change."""
        while True:
            await self._instance.routes.refresh_all(self._callbacks)
            for topic, callback in tuple(self._callbacks.items()):
                await self._compare(topic, callback)
            await asyncio.sleep(interval_ms / 1000)

    async def _compare(self, topic: str, callback: QueuesChanged) -> None:
        route = self._instance.routes.get(topic)
        if route is None:
            return
        namespace = self._instance.namespace
        queues = [namespace.unwrap_queue(queue) for queue in sorted(route.subscribe_queues)]
        before, self._known[topic] = self._known.get(topic), queues
        if before is None or before == queues:
            return
        work = self._call(callback, topic, list(queues))
        log = self._instance.log
        await outlive(work, callback="on_queues_changed", group=self._group, log=log)

    async def _call(self, callback: QueuesChanged, topic: str, queues: list[MessageQueue]) -> None:
        try:
            with calling(self._client, "on_queues_changed"):
                await called(callback, self._instance.namespace.unwrap(topic), queues)
        except Exception as error:  # application code: later changes are still reported
            self._instance.log.warning(
                "callback.failed",
                group=self._group,
                callback="on_queues_changed",
                topic=topic,
                error=describe(error),
                exc_info=error,
            )
