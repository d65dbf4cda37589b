# SPDX-License-Identifier: Apache-2.0
"""Watches the queues of topics for changes, like Java's TopicMessageQueueChangeListener."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from cometmq.client.application_calls import calling, original, outlive
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.listener import called
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.transport.tasks import describe

QueuesChanged = Callable[[str, list[MessageQueue]], Awaitable[None] | None]
"""Called with a topic and all its queues; a plain function is called on a thread."""


class QueueWatch:
    """Compares the queues of some topics between two checks."""

    def __init__(self, parts: ConsumerParts, callbacks: Mapping[str, QueuesChanged]) -> None:
        """Watch the topics in `callbacks`, whose keys are full names."""
        self._client = parts.callbacks.client
        self._group = parts.group
        self._instance = parts.instance
        self._callbacks = callbacks
        self._known: dict[str, list[MessageQueue]] = {}

    async def run(self, *, interval_ms: int) -> None:
        """Check at intervals, after `begin`."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self._instance.routes.refresh_all(self._callbacks)
            for topic, callback in tuple(self._callbacks.items()):
                await self._compare(topic, callback)

    async def begin(self) -> None:
        """Record the current queues; later changes are reported, even if a topic has none now."""
        await self._instance.routes.refresh_all(self._callbacks)
        for topic in self._callbacks:
            self._known[topic] = self._queues(topic) or []

    def _queues(self, topic: str) -> list[MessageQueue] | None:
        route = self._instance.routes.get(topic)
        if route is None:
            return None
        namespace = self._instance.namespace
        return [namespace.unwrap_queue(queue) for queue in sorted(route.subscribe_queues)]

    async def _compare(self, topic: str, callback: QueuesChanged) -> None:
        queues = self._queues(topic)
        if queues is None or queues == self._known[topic]:
            return
        self._known[topic] = queues
        work = self._call(callback, topic, list(queues))
        log = self._instance.log
        await outlive(work, callback="on_queues_changed", group=self._group, log=log)

    async def _call(self, callback: QueuesChanged, topic: str, queues: list[MessageQueue]) -> None:
        try:
            with calling(self._client, "on_queues_changed"):
                await called(callback, self._instance.namespace.unwrap(topic), queues)
        except Exception as error:  # application code: later changes are still reported
            cause = original(error)
            self._instance.log.warning(
                "callback.failed",
                group=self._group,
                callback="on_queues_changed",
                topic=topic,
                error=describe(cause),
                exc_info=cause,
            )
