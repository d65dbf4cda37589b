# SPDX-License-Identifier: Apache-2.0
"""Queue locks on the brokers, which let only one member of an orderly group read a queue.

Invariants
    A lock counts as valid for 30 s from the moment of our request; brokers keep it for 60 s. So no
    other member can hold the lock when ours expires, however long the answer was delayed. An
    expired lock is valid again only if the committed offset has not changed, because another
    member may have locked the queue, consumed from it and unlocked it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.client.application_calls import Failures
from cometmq.client.clock import ClockMs, monotonic_ms, wall_ms
from cometmq.client.cluster.heartbeats import RETRY_SOON_MS
from cometmq.client.cluster.routes import names_former_master
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.turns import APART_MS, Wakeup, decode_answer
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CometError
from cometmq.remoting.signature import FORWARDED

if TYPE_CHECKING:
    from cometmq.client.consume.queues.reader import ProcessQueue

RENEW_MS: Final = 20_000
VALID_MS: Final = 30_000
CALL_TIMEOUT_MS: Final = 1_000
REFUSED_WARNED_MS: Final = 5_000
REFUSALS_APART_MS: Final = 10_000
"""Refusals further apart belong to different waits; members retry every second."""

_REFUSED_ADVICE: Final = (
    "no action is needed: a different member of the group holds these locks. It releases them when"
    " it stops or finishes its messages; if it was killed, the broker frees them 60 s after their"
    " last renewal"
)

Lost = Callable[[Collection[MessageQueue]], None]
"""Called with queues that another member has locked, or had locked while our lock was expired.
"""


class LockTimes(msgspec.Struct, frozen=True, gc=False):
    """When a lock was last granted, according to two clocks."""

    asked_ms: int
    wall_ms: int


class Refusals(msgspec.Struct, gc=False):
    """Consecutive refusals of one queue's lock."""

    first_ms: int
    latest_ms: int
    is_logged: bool = False


class QueueLocks:
    """Acquires, renews and releases the locks of one member."""

    def __init__(
        self,
        parts: ConsumerParts,
        *,
        lost: Lost,
        renew_ms: int = RENEW_MS,
        retry_ms: int = RETRY_SOON_MS,
        clock_ms: ClockMs = monotonic_ms,
    ) -> None:
        """`lost` is called with queues that must restart at their committed offsets."""
        self._instance = parts.instance
        self._group = parts.group
        self._offsets = parts.offsets
        self._lost = lost
        self._renew_ms = renew_ms
        self._retry_ms = retry_ms
        self._clock_ms = clock_ms
        self._held: dict[MessageQueue, LockTimes] = {}
        # Locks that brokers may attribute to us: requested, and not refused.
        self._asked: set[MessageQueue] = set()
        self._refused: dict[MessageQueue, Refusals] = {}
        self._due = Wakeup(apart_ms=APART_MS)
        # Brokers may process two requests in a different order from the one in which they were
        # sent.
        self._calling = asyncio.Lock()

    def is_valid(self, queue: MessageQueue) -> bool:
        times = self._held.get(queue)
        return times is not None and self._clock_ms() - times.asked_ms <= VALID_MS

    def is_held(self, queue: MessageQueue) -> bool:
        """Return whether a broker has granted the lock, even if it has expired."""
        return queue in self._held

    def granted_ms(self, queue: MessageQueue) -> int:
        """Return when the lock was last granted, in wall clock ms; 0 if it is not held."""
        times = self._held.get(queue)
        return times.wall_ms if times is not None else 0

    def renew_now(self) -> None:
        """Make `run` renew now instead of at its next interval."""
        self._due.set()

    async def run(self) -> None:
        """Renew at intervals, and sooner after a failure."""
        delay_ms = self._renew_ms
        while True:
            await self._due.wait(delay_ms)
            delay_ms = self._renew_ms if await self.renew() else RETRY_SOON_MS

    async def renew(self) -> bool:
        """Renew all held locks; return False if a broker did not answer."""
        lost: list[MessageQueue] = []
        regained: dict[MessageQueue, LockTimes] = {}
        is_complete = True
        async with self._calling:
            for queues in _by_broker(self._held):
                # Checked before the request: once a lock has expired, a different member may have
                # had it, even if it is ours again.
                valid = set(filter(self.is_valid, queues))
                granted = await self._ask(queues)
                if granted is None:
                    is_complete = False
                    continue
                lost += [queue for queue in queues if queue not in granted]
                for queue, times in granted.items():
                    (self._held if queue in valid else regained)[queue] = times
        for queue, times in regained.items():
            is_ours = await self._regain(queue, times)
            is_complete = is_complete and is_ours is not None
            if is_ours is False:
                lost.append(queue)
        for queue in lost:
            self._held.pop(queue, None)
        if lost:
            self._lost(lost)
        return is_complete

    async def acquire(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        mine: list[MessageQueue] = []
        async with self._calling:
            for asked in _by_broker(queues):
                granted = await self._ask(asked)
                if granted is not None:
                    self._held.update(granted)
                    mine += [queue for queue in asked if queue in granted]
                    self._note_refusals(asked, granted)
        return mine

    def _note_refusals(self, asked: list[MessageQueue], granted: Collection[MessageQueue]) -> None:
        """Warn once about queues that another member has locked for some time."""
        now_ms = self._clock_ms()
        late: dict[str, list[int]] = {}
        for queue in asked:
            refusals = self._refused.pop(queue, None)
            if queue in granted:
                continue
            if refusals is None or now_ms - refusals.latest_ms > REFUSALS_APART_MS:
                refusals = Refusals(now_ms, now_ms)
            self._refused[queue] = refusals
            refusals.latest_ms = now_ms
            if not refusals.is_logged and now_ms - refusals.first_ms >= REFUSED_WARNED_MS:
                refusals.is_logged = True
                late.setdefault(queue.topic, []).append(queue.queue_id)
        for topic, queue_ids in late.items():
            self._instance.log.warning(
                "queues.locked_elsewhere",
                group=self._group,
                topic=self._instance.namespace.unwrap(topic),
                broker=asked[0].broker_name,
                queue_ids=queue_ids,
                advice=_REFUSED_ADVICE,
            )

    async def recover(self, queue: MessageQueue) -> bool | None:
        """Lock a queue whose lock has expired; return whether it is ours, None if unknown."""
        async with self._calling:
            granted = await self._ask([queue])
        if granted is None:
            return None
        if queue not in granted:
            return False
        return await self._regain(queue, granted[queue])

    async def recovers(self, held: "ProcessQueue") -> bool:
        """Retry until an expired lock is valid again, without a time limit.

        Return False if the queue is left meanwhile, or another member has locked it since.
        """
        while not (held.is_dropped or held.is_leaving):
            is_ours = await self.recover(held.queue)
            if is_ours:
                return True
            if is_ours is not None:
                if not held.is_dropped:
                    self._lost([held.queue])
                return False
            await asyncio.sleep(self._retry_ms / 1000)
        return False

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks, so that other members need not wait until they expire."""
        async with self._calling:
            ours = self._asked.intersection(queues)
            self._asked -= ours
            for queue in ours:
                self._held.pop(queue, None)
            async with asyncio.TaskGroup() as group:
                for asked in _by_broker(ours):
                    group.create_task(self._release(asked))

    async def release_all(self) -> None:
        """Release all locks, including those whose requests went unanswered."""
        await self.release(tuple(self._asked))

    async def _regain(self, queue: MessageQueue, times: LockTimes) -> bool | None:
        """Revalidate an expired lock unless another member has committed; None if unknown."""
        try:
            with Failures():
                stored = await self._offsets.read(queue)
        except Exception as error:  # noqa: BLE001  # an offset store may be application code
            self._instance.outages.failed(
                "offset.unknown", error, topic=queue.topic, queue_id=queue.queue_id
            )
            return None
        if queue not in self._asked:
            return None  # released during the request
        position = self._offsets.position(queue)
        # Another member consumed beyond our position, so our results no longer count.
        if stored is not None and position is not None and stored > position:
            return False
        self._held[queue] = times
        return True

    async def _ask(self, queues: list[MessageQueue]) -> dict[MessageQueue, LockTimes] | None:
        """Lock queues of one broker; return those granted, None without an answer."""
        # Taken before the request: the broker counts from its arrival, so our view expires first.
        instance, asked_ms = self._instance, self._clock_ms()
        self._asked.update(queues)
        try:
            address = instance.master(queues[0].broker_name)
            response = await instance.remoting.invoke(
                address,
                RequestCode.LOCK_BATCH_MQ,
                None,
                self._body(queues),
                timeout_ms=CALL_TIMEOUT_MS,
            )
            if FORWARDED in response.ext:
                instance.forwarded(address, queues[0].broker_name, queues[0].topic)
            answer = await decode_answer(LockBatchReply, response.body)
        except CometError as error:
            if names_former_master(error):
                instance.refreshes.outdated(queues[0].topic)
            # The broker may have granted the locks nevertheless; they are kept in `_asked`
            # for `release`.
            instance.outages.failed(
                "lock.failed", error, group=self._group, broker=queues[0].broker_name
            )
            return None
        # A broker cannot grant what it was not asked for, such as a queue of another broker.
        found = frozenset(answer.lock_ok_mq_set)
        granted = [queue for queue in queues if queue in found]
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
            instance.outages.failed(
                "unlock.failed", error, group=self._group, broker=queues[0].broker_name
            )

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return encode_json(LockBatch(self._instance.client_id, self._group, queues))


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return [*brokers.values()]
