# SPDX-License-Identifier: Apache-2.0
"""Reads the half and op queues of one broker into its ledger."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.txn_checker.broker_link import BrokerLink, Pulled, ended_by, half_of
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import NO_HALF, HalfTable, OpTable

TOPIC_WAIT_S: Final = 1.0


class FollowerStats:
    """Counters for one followed broker."""

    def __init__(self) -> None:
        self.asked_count = 0
        self.unasked_count = 0
        self.aside_count = 0
        self.gone_count = 0
        self.round_count = 0
        self.failed_count = 0
        self.refused_count = 0
        self.half_behind = 0
        self.op_behind = 0
        self.is_following = False


class QueueReader:
    """Reads one broker's half and op queues.

    Call `adjust` first; then run `read_halves` and `read_ops` concurrently until one of them fails.
    """

    def __init__(
        self,
        name: str,
        link: BrokerLink,
        settings: TxnCheckerSettings,
        ledger: Ledger,
        *,
        log: Log,
        stats: FollowerStats,
    ) -> None:
        self._name = name
        self._link = link
        self._settings = settings
        self._ledger = ledger
        self._log = log
        self._stats = stats
        self._halves_moved = asyncio.Event()
        self._ops_moved = asyncio.Event()

    async def adjust(self) -> None:
        """Bring the ledger up to date with changes of the queues while they were not followed.

        If the ledger is new or the broker has lost messages, begin a new one. If another checker
        has committed progress, drop the half messages below it.
        """
        link, ledger = self._link, self._ledger
        if ledger.is_new:
            ledger.begin(await link.examined(HALF_TOPIC), await link.examined(OP_HALF_TOPIC))
        elif await self._is_replaced():
            self._log.error(
                "queues.replaced", broker=self._name, half=ledger.halves.next, op=ledger.ops.next
            )
            oldest = await link.oldest(HALF_TOPIC), await link.oldest(OP_HALF_TOPIC)
            ledger.reset()
            ledger.begin(*oldest)
        else:
            # Meanwhile, another checker may have continued, or a RocketMQ broker, which stores open
            # half messages again without an op message for the old ones.
            examined = await link.examined(HALF_TOPIC)
            if examined > ledger.halves.low_water:
                ledger.halves_gone(examined)

    async def _is_replaced(self) -> bool:
        """Return whether the broker has lost messages that are already in the ledger.

        A broker loses either the tail of its log or everything, so only the newest half message is
        compared.
        """
        link, ledger = self._link, self._ledger
        known = ledger.halves.newest
        if ledger.halves.next > await link.end(HALF_TOPIC) or ledger.ops.next > await link.end(
            OP_HALF_TOPIC
        ):
            return True
        pulled = None if known is None else await link.pull(HALF_TOPIC, ledger.halves.next - 1)
        record = None if pulled is None else next(pulled.in_order(ledger.halves.next - 1), None)
        if known is None or record is None:
            return False
        half = half_of(record)
        return (half.physical_offset, half.stored_s) != (known.physical_offset, known.stored_s)

    async def read_halves(self) -> None:
        ledger = self._ledger
        async for pulled in self._pulls(HALF_TOPIC, ledger.halves):
            ledger.halves_gone(pulled.min_offset)
            records = pulled.in_order(ledger.halves.next)
            ledger.add_halves(
                [NO_HALF if record is None else half_of(record) for record in records]
            )
            self._stats.half_behind = max(0, pulled.max_offset - ledger.halves.next)
            self._halves_moved.set()

    async def read_ops(self) -> None:
        ledger = self._ledger
        async for pulled in self._pulls(OP_HALF_TOPIC, ledger.ops):
            ledger.ops_gone(pulled.min_offset)
            records = pulled.in_order(ledger.ops.next)
            await self._take_ops([[] if record is None else ended_by(record) for record in records])
            self._stats.op_behind = max(0, pulled.max_offset - ledger.ops.next)
            self._ops_moved.set()

    async def _pulls(self, topic: str, queue: HalfTable | OpTable) -> AsyncIterator[Pulled]:
        """Pull a queue from `queue.next` on, which the caller advances; pause after each sweep.

        A sweep ends where the queue ended at the sweep's first pull; messages that arrive meanwhile
        are left for the next sweep. Checks are due only seconds later, and reading messages one by
        one costs the broker more than storing them.

        Raise RemoteProtocolError if the queue is shorter than the part already read; `adjust` of
        the next attempt finds out what is lost.
        """
        sweep_end = 0
        while True:
            pulled = await self._link.pull(topic, queue.next)
            if pulled is None:
                await asyncio.sleep(TOPIC_WAIT_S)
                continue
            if pulled.max_offset < queue.next:
                text = f"{topic} ends at {pulled.max_offset}, but was read up to {queue.next}"
                raise RemoteProtocolError(text)
            yield pulled
            sweep_end = sweep_end or pulled.max_offset
            if queue.next >= sweep_end:
                sweep_end = 0
                await asyncio.sleep(self._settings.pull_pause / 1_000)

    async def _take_ops(self, ops: list[list[int]]) -> None:
        """Apply op messages; wait for `read_halves` where they end half messages not yet read."""
        ledger = self._ledger
        taken = ledger.read_ops(ops)
        while taken < len(ops):
            end = await self._link.end(HALF_TOPIC)
            ops = [[half for half in halves if half < end] for halves in ops[taken:]]
            self._halves_moved.clear()
            taken = ledger.read_ops(ops)
            if taken < len(ops):
                await self._halves_moved.wait()

    async def ops_read(self) -> None:
        """Wait until every op message that the broker has now is applied."""
        op_end = await self._link.end(OP_HALF_TOPIC)
        while self._ledger.ops.next < op_end:
            self._ops_moved.clear()
            await self._ops_moved.wait()
