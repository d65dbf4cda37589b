# SPDX-License-Identifier: Apache-2.0
"""Finds the offset at which a consumer starts in a newly assigned queue."""

from typing import Final

import msgspec

from cometmq.client.clock import wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.settings import ConsumeFrom, ConsumerOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    SearchOffsetByTimestamp,
)
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.names import RETRY_PREFIX

TIMESTAMP_BACK_MS: Final = 30 * 60_000


class QueueOffsets:
    """Asks brokers for the bounds of queues."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def max(self, queue: MessageQueue) -> int:
        """Return the exclusive end offset of a queue."""
        return await self._ask(
            queue, RequestCode.GET_MAX_OFFSET, GetMaxOffset(queue.topic, queue.queue_id)
        )

    async def min(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._ask(
            queue, RequestCode.GET_MIN_OFFSET, GetMinOffset(queue.topic, queue.queue_id)
        )

    async def at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        return await self._ask(
            queue,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetByTimestamp(queue.topic, queue.queue_id, timestamp_ms),
        )

    async def _ask(self, queue: MessageQueue, code: RequestCode, header: msgspec.Struct) -> int:
        """Send a query to the master or, while there is none, to a slave, as pulls do.

        Raise InvalidArgument for a queue that does not exist.
        """
        instance = self._instance
        await instance.routes.find_queue(queue)
        _, address = instance.routes.any_of(queue.broker_name)
        response = await instance.remoting.invoke(
            instance.channel(address),
            code,
            header,
            timeout_ms=instance.options.api_timeout_ms,
        )
        if not isinstance(response.header, OffsetReply):
            raise RemoteProtocolError("the broker's answer lacks the offset")
        return response.header.offset


async def first_offset(
    queue: MessageQueue,
    store: OffsetStore,
    offsets: QueueOffsets,
    options: ConsumerOptions,
) -> int:
    """Return the committed offset, or the start offset that the options specify.

    Raise CometError if the caller must retry later.

    Compatibility: retry topics are read from their beginning, except by a group that starts at a
    timestamp.
    """
    stored = await store.read(queue)
    if stored is not None and stored >= 0:
        return stored
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if options.consume_from is ConsumeFrom.FIRST_OFFSET:
        return 0
    if options.consume_from is ConsumeFrom.LAST_OFFSET:
        return 0 if is_retry else await offsets.max(queue)
    if is_retry:
        return await offsets.max(queue)
    moment_ms = options.consume_timestamp_ms or wall_ms() - TIMESTAMP_BACK_MS
    return await offsets.at(queue, moment_ms)
