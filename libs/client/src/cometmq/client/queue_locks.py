# SPDX-License-Identifier: Apache-2.0
"""Locks at the brokers on the queues of an orderly consumer: one member reads a queue at a time.

Invariants
    A lock counts as ours only for 30 s from the moment we asked for it; brokers keep it for 60 s.
    So when ours runs out nobody else can have it yet, whatever was late in between. One that ran
    out is not renewed in silence: others may have had it, and given it back, so it counts again
    only when the queue is seen to be as it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec

from cometmq.client.background import Signal, described
from cometmq.client.clock import ClockMs, monotonic_ms, wall_ms
from cometmq.client.instance import RETRY_SOON_MS, ClientInstance
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CometError

RENEW_MS: Final = 20_000
VALID_MS: Final = 30_000
CALL_TIMEOUT_MS: Final = 1_000

Lost = Callable[[Collection[MessageQueue]], None]
"""Called with queues that another member has locked now."""


class LockTimes(msgspec.Struct, frozen=True, gc=False):
    """When a lock was last granted, by two clocks."""

    asked_ms: int
    wall_ms: int


class QueueLocks:
    """Takes, renews and gives back the locks of one member."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        lost: Lost,
        renew_ms: int = RENEW_MS,
        clock_ms: ClockMs = monotonic_ms,
    ) -> None:
        """Start without locks; `lost` hears of those that a renewal did not get."""
        self._instance = instance
        self._group = group
        self._lost = lost
        self._renew_ms = renew_ms
        self._clock_ms = clock_ms
        self._held: dict[MessageQueue, LockTimes] = {}
        # What brokers may believe to be ours: asked for, and not refused.
        self._asked: set[MessageQueue] = set()
        self._due = Signal()
        # Brokers may serve two calls in another order than that in which they were sent.
        self._calling = asyncio.Lock()

    def is_valid(self, queue: MessageQueue) -> bool:
        """Whether the queue is certainly ours."""
        times = self._held.get(queue)
        return times is not None and self._clock_ms() - times.asked_ms <= VALID_MS

    def granted_ms(self, queue: MessageQueue) -> int:
        """Return when the lock was last granted, by the wall clock; 0 if it is not held."""
        times = self._held.get(queue)
        return times.wall_ms if times is not None else 0

    def renew_soon(self) -> None:
        """Renew at once: a broker may have been restarted, and knows no locks then."""
        self._due.set()

    async def run(self) -> None:
        """Renew at intervals, sooner when a broker did not answer."""
        delay_ms = self._renew_ms
        while True:
            await self._due.wait(delay_ms)
            delay_ms = self._renew_ms if await self.renew() else RETRY_SOON_MS

    async def renew(self) -> bool:
        """Ask for all held locks again; False if a broker did not answer."""
        refused: list[MessageQueue] = []
        is_complete = True
        async with self._calling:
            for queues in _by_broker(filter(self.is_valid, self._held)):
                granted = await self._ask(queues)
                if granted is None:
                    is_complete = False
                    continue
                self._held.update(granted)
                refused += [queue for queue in queues if queue not in granted]
        for queue in refused:
            self._held.pop(queue, None)
        if refused:
            self._lost(refused)
        return is_complete

    async def acquire(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock queues; return those that are ours now."""
        mine: list[MessageQueue] = []
        async with self._calling:
            for asked in _by_broker(queues):
                granted = await self._ask(asked) or {}
                self._held.update(granted)
                mine += [queue for queue in asked if queue in granted]
        return mine

    async def recover(
        self, queue: MessageQueue, is_unchanged: Callable[[], Awaitable[bool | None]]
    ) -> bool | None:
        """Lock a queue whose lock ran out; it is ours if it `is_unchanged` then.

        None: nobody can say now.
        """
        async with self._calling:
            granted = await self._ask([queue])
        if granted is None:
            return None
        if queue not in granted:
            return False
        answer = await is_unchanged()
        if answer:
            self._held.update(granted)
        return answer

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back, so that others need not wait until they run out."""
        async with self._calling:
            ours = self._asked.intersection(queues)
            self._asked -= ours
            for queue in ours:
                self._held.pop(queue, None)
            async with asyncio.TaskGroup() as group:
                for asked in _by_broker(ours):
                    group.create_task(self._release(asked))

    async def release_all(self) -> None:
        """Give all locks back, those too that nobody has told us of."""
        await self.release(tuple(self._asked))

    async def _ask(self, queues: list[MessageQueue]) -> dict[MessageQueue, LockTimes] | None:
        """Lock queues of one broker, return those that it grants; None if it does not answer."""
        instance, asked_ms = self._instance, self._clock_ms()
        self._asked.update(queues)
        try:
            response = await instance.remoting.invoke(
                instance.master(queues[0].broker_name),
                RequestCode.LOCK_BATCH_MQ,
                None,
                self._body(queues),
                timeout_ms=CALL_TIMEOUT_MS,
            )
            granted = decode_json(LockBatchReply, response.body).lock_ok_mq_set
        except CometError as error:
            instance.log.warning(
                "lock.failed",
                group=self._group,
                broker=queues[0].broker_name,
                error=described(error),
            )
            return None
        self._asked.difference_update(queues)
        self._asked.update(granted)
        return dict.fromkeys(granted, LockTimes(asked_ms, wall_ms()))

    async def _release(self, queues: list[MessageQueue]) -> None:
        instance = self._instance
        try:
            await instance.remoting.invoke(
                instance.master(queues[0].broker_name),
                RequestCode.UNLOCK_BATCH_MQ,
                None,
                self._body(queues),
                timeout_ms=CALL_TIMEOUT_MS,
            )
        except CometError as error:
            instance.log.warning(
                "unlock.failed",
                group=self._group,
                broker=queues[0].broker_name,
                error=described(error),
            )

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return encode_json(LockBatch(self._instance.client_id, self._group, queues))


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """Return queues in lists of one broker each."""
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return list(brokers.values())
