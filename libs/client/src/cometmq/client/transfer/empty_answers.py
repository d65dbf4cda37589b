# SPDX-License-Identifier: Apache-2.0
"""Limits how often a broker may answer without messages while a queue is read."""

from typing import Final

from cometmq.client.transfer.pulled import Pulled
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import RemoteProtocolError

EMPTY_MAX: Final = 1_000
"""Answers in a row without a message. RocketMQ's brokers skip about 800 deleted or filtered
messages per answer, so this limit allows 800,000 of them.
"""
FILTERED_MAX: Final = 100_000
"""The limit for reads with a filter, which may accept none of millions of messages."""


class EmptyAnswers:
    """Counts the answers in a row that have no message, during one read of a queue."""

    def __init__(self, queue: MessageQueue, *, is_filtered: bool = False) -> None:
        self._queue = queue
        self._count_max = FILTERED_MAX if is_filtered else EMPTY_MAX
        self._count = 0

    def check(self, pulled: Pulled) -> None:
        """Count an answer; raise RemoteProtocolError if there were too many without a message."""
        self._count = 0 if pulled.messages else self._count + 1
        if self._count > self._count_max:
            queue = self._queue
            raise RemoteProtocolError(
                f"broker {queue.broker_name} answers {self._count:,} pulls in a row of"
                f" {queue.topic}, queue {queue.queue_id}, without a message, up to offset"
                f" {pulled.next_offset}: check this broker"
            )
