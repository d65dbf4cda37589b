# SPDX-License-Identifier: Apache-2.0
"""Holds the pulled messages of a lite pull consumer until they are polled."""

from collections import deque

from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.message import MessageExt
from cometmq.client.wakeup import Wakeup


class Buffer:
    """The messages that wait for a poll, in the order of their pulls."""

    takes_unreadable = False

    def __init__(self, count_max: int) -> None:
        """Refuse further pulls once `count_max` messages wait."""
        self.arrived = Wakeup()
        self._count_max = count_max
        self._count = 0
        self._waiting: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no more messages may be pulled."""
        return self._count >= self._count_max

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Add the messages of a pull."""
        self._waiting.append((process_queue, messages))
        self._count += len(messages)
        self.arrived.set()

    def put_back(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Put messages that were taken before all others."""
        self._waiting.appendleft((process_queue, messages))
        self._count += len(messages)
        self.arrived.set()

    def take(self, count_max: int | None) -> tuple[ProcessQueue, list[MessageExt]] | None:
        """Take the messages of one pull, or the first `count_max` of them; return None if there are
        none.
        """
        while self._waiting:
            process_queue, messages = self._waiting.popleft()
            self._count -= len(messages)
            if process_queue.is_dropped:
                continue
            if count_max is not None and len(messages) > count_max:
                self.put_back(process_queue, messages[count_max:])
                messages = messages[:count_max]
            return process_queue, messages
        return None
