# SPDX-License-Identifier: Apache-2.0
"""One broker: its two queues are followed, its open transactions asked about.

Whatever fails (the broker, the network, our disk) ends all that is done for this broker for a
while; then it goes on from the ledger. Other brokers are not affected.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.message.record import MessageRecord
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import describe
from cometmq.runtime.worker import Worker
from cometmq.txnchecker.broker_link import HALF_TOPIC, OP_TOPIC, BrokerLink, ended_by, half_of
from cometmq.txnchecker.entry import NO_HALF
from cometmq.txnchecker.ledger import CHUNK, Ledger, OpenHalf
from cometmq.txnchecker.rounds import Due, due
from cometmq.txnchecker.settings import TxnCheckerSettings

TOPIC_WAIT_S: Final = 1.0
OTHER_MAKER_WAIT_S: Final = 60.0
_FIRST_BACK_OFF_MS: Final = 100
_QUESTIONS_AT_ONCE: Final = 64


class FollowerStats:
    """What is counted for one broker."""

    def __init__(self) -> None:
        """Start at zero."""
        self.asked_count = 0
        self.unasked_count = 0
        self.aside_count = 0
        self.gone_count = 0
        self.round_count = 0
        self.failed_count = 0
        self.half_behind = 0
        self.op_behind = 0
        self.is_following = False


class Follower:
    """Looks after the transactions of one broker."""

    def __init__(
        self,
        name: str,
        link: BrokerLink,
        settings: TxnCheckerSettings,
        *,
        open_ledger: Callable[[], Ledger],
        worker: Worker,
        clock: Clock,
        log: Log,
    ) -> None:
        """Do nothing before `run`; the worker is for what may wait for the disk."""
        self.name = name
        self.stats = FollowerStats()
        self._link = link
        self._settings = settings
        self._open_ledger = open_ledger
        self._worker = worker
        self._clock = clock
        self._log = log
        self._ledger: Ledger | None = None
        self._committed: tuple[int, int] | None = None
        self._halves_moved = asyncio.Event()

    @property
    def ledger(self) -> Ledger | None:
        """What is known; None before the first recovery."""
        return self._ledger

    async def run(self) -> None:
        """Follow the broker until cancelled."""
        back_off_ms = _FIRST_BACK_OFF_MS
        while True:
            try:
                await self._follow()
            except* Exception as group:  # noqa: BLE001  # others are looked after whatever it is
                if self.stats.is_following:
                    back_off_ms = _FIRST_BACK_OFF_MS
                self._note_failed(group)
            await asyncio.sleep(back_off_ms / 1_000)
            back_off_ms = min(back_off_ms * 2, self._settings.back_off_max)

    def _note_failed(self, group: BaseExceptionGroup[Exception]) -> None:
        self.stats.failed_count += 1
        self.stats.is_following = False
        errors = sorted({describe(error) for error in _leaves(group)})
        self._log.warning("broker.unfollowed", broker=self.name, errors=errors)

    async def close(self) -> None:
        """Tell the broker how far we are, and leave the ledger so that the next start is short."""
        if self._ledger is None or self._ledger.is_new:
            return
        try:
            await self._persist(self._ledger)
        except CometError as error:
            self._log.warning("progress.uncommitted", broker=self.name, error=describe(error))
        await self._checkpoint(self._ledger)

    async def _follow(self) -> None:
        ledger = self._ledger
        if ledger is None:
            ledger = self._ledger = await self._worker.submit(self._open_ledger)
        while not await self._link.leaves_checks_to_us():
            self._log.info("broker.checks_itself", broker=self.name)
            await asyncio.sleep(OTHER_MAKER_WAIT_S)
        if ledger.is_new:
            await self._begin(ledger)
        self._log.info(
            "broker.followed", broker=self.name, open=ledger.open_count, half=ledger.half_next,
            op=ledger.op_next,
        )  # fmt: skip
        self.stats.is_following = True
        settings = self._settings
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_halves(ledger))
            group.create_task(self._read_ops(ledger))
            group.create_task(self._again(settings.transaction_check_interval, self._round, ledger))
            group.create_task(self._again(settings.persist_interval, self._persist, ledger))
            group.create_task(self._again(settings.checkpoint_interval, self._checkpoint, ledger))

    async def _begin(self, ledger: Ledger) -> None:
        """Begin where the broker says that everything before is examined."""
        half, op = await self._link.committed(HALF_TOPIC), await self._link.committed(OP_TOPIC)
        ledger.begin(half, op)
        self._log.info("ledger.begun", broker=self.name, half=half, op=op)

    async def _again(
        self, interval_ms: int, step: Callable[[Ledger], Awaitable[None]], ledger: Ledger
    ) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            await step(ledger)

    # Reading

    async def _read_halves(self, ledger: Ledger) -> None:
        while True:
            pulled = await self._link.pull(HALF_TOPIC, ledger.half_next)
            if pulled is None:
                await asyncio.sleep(TOPIC_WAIT_S)
                continue
            if pulled.max_offset < ledger.half_next:
                await self._start_over(ledger, pulled.max_offset)
                continue
            ledger.halves_gone(pulled.min_offset)
            halves = [
                NO_HALF if record is None else half_of(record)
                for record in _following(pulled.records, ledger.half_next)
            ]
            missing = pulled.next_offset - ledger.half_next - len(halves)
            ledger.add_halves([*halves, *(NO_HALF for _ in range(max(0, missing)))])
            behind = self.stats.half_behind = max(0, pulled.max_offset - ledger.half_next)
            self._halves_moved.set()
            await self._rest(behind)

    async def _rest(self, behind: int) -> None:
        """Let messages gather: reading each alone would cost the broker more than storing it."""
        if not behind:
            await asyncio.sleep(self._settings.pull_pause / 1_000)

    async def _start_over(self, ledger: Ledger, end: int) -> None:
        """Read everything again: the broker has lost messages that we have seen."""
        self._log.error("queue.shrunk", broker=self.name, known=ledger.half_next, end=end)
        ledger.reset()
        self._committed = None
        half = min(await self._link.committed(HALF_TOPIC), end)
        ledger.begin(half, await self._link.committed(OP_TOPIC))

    async def _read_ops(self, ledger: Ledger) -> None:
        while True:
            pulled = await self._link.pull(OP_TOPIC, ledger.op_next)
            if pulled is None:
                await asyncio.sleep(TOPIC_WAIT_S)
                continue
            if pulled.max_offset < ledger.op_next:
                await self._start_over(ledger, await self._link.end_of_halves())
                continue
            ledger.ops_gone(pulled.min_offset)
            records = _following(pulled.records, ledger.op_next)
            ops = [[] if record is None else ended_by(record) for record in records]
            missing = pulled.next_offset - ledger.op_next - len(ops)
            await self._take_ops(ledger, [*ops, *([] for _ in range(max(0, missing)))])
            behind = self.stats.op_behind = max(0, pulled.max_offset - ledger.op_next)
            await self._rest(behind)

    async def _take_ops(self, ledger: Ledger, ops: list[list[int]]) -> None:
        """Take op messages; those of half messages that are not read yet wait for them."""
        position = ledger.op_next
        taken = ledger.read_ops(ops)
        while taken < len(ops):
            end = await self._link.end_of_halves()
            ops = [[half for half in halves if half < end] for halves in ops[taken:]]
            position += taken
            self._halves_moved.clear()
            taken = ledger.read_ops(ops)
            if taken < len(ops):
                await self._halves_moved.wait()
            if ledger.op_next != position + taken:
                return  # started over meanwhile

    # Asking

    async def _round(self, ledger: Ledger) -> None:
        """Look at every open transaction once."""
        absent: set[int] = set()
        for halves in ledger.open_halves():
            now_s = self._clock.now_ms() // 1_000
            wanted: dict[Due, list[OpenHalf]] = {one: [] for one in Due}
            for half in halves:
                wanted[due(half, now_s, self._settings)].append(half)
            for some in _batches(wanted[Due.SET_ASIDE], _QUESTIONS_AT_ONCE):
                await self._set_aside(ledger, some)
            for some in _batches(wanted[Due.ASK], _QUESTIONS_AT_ONCE):
                await self._ask(ledger, some, absent, now_s)
            await asyncio.sleep(0)
        self.stats.round_count += 1

    async def _set_aside(self, ledger: Ledger, halves: Sequence[OpenHalf]) -> None:
        link = self._link
        async with asyncio.TaskGroup() as group:
            for half in halves:
                group.create_task(link.set_aside(half.offset, half.entry.physical_offset))
        ledger.close(half.offset for half in halves)
        self.stats.aside_count += len(halves)
        for half in halves:
            self._log.warning(
                "transaction.set_aside",
                broker=self.name,
                half=half.offset,
                asked=half.check.asked_count,
            )

    async def _ask(
        self, ledger: Ledger, halves: Sequence[OpenHalf], absent: set[int], now_s: int
    ) -> None:
        """Ask about these, but not again for groups that have nobody connected."""
        stats, link = self.stats, self._link
        wanted = [half for half in halves if half.entry.group_hash not in absent]
        stats.unasked_count += len(halves) - len(wanted)
        begin = self._clock.monotonic_ms()
        async with asyncio.TaskGroup() as group:
            answers = [
                group.create_task(link.ask(half.offset, half.entry.physical_offset))
                for half in wanted
            ]
        asked: list[OpenHalf] = []
        gone: list[int] = []
        for half, task in zip(wanted, answers, strict=True):
            answer = task.result()
            if not answer.is_open:
                gone.append(half.offset)
            elif answer.producer is None:
                absent.add(half.entry.group_hash)
                stats.unasked_count += 1
            elif answer.producer:
                asked.append(half)
        ledger.note_asked(asked, now_s)
        ledger.close(gone)
        stats.asked_count += len(asked)
        stats.gone_count += len(gone)
        least_ms = len(wanted) * 1_000 / self._settings.questions_per_second
        await asyncio.sleep(max(0.0, begin + least_ms - self._clock.monotonic_ms()) / 1_000)

    # Progress

    async def _persist(self, ledger: Ledger) -> None:
        """Tell the broker below which offsets everything is ended."""
        low_water = ledger.low_water
        marks = (low_water, ledger.op_mark(low_water))
        if marks != self._committed:
            await self._link.commit(HALF_TOPIC, marks[0])
            await self._link.commit(OP_TOPIC, marks[1])
            self._committed = marks

    async def _checkpoint(self, ledger: Ledger) -> None:
        if not ledger.is_changed:
            return
        checkpoint = ledger.checkpoint()
        await self._worker.submit(checkpoint.sync)
        ledger.note_synced(checkpoint)


def _following(records: Iterable[MessageRecord], offset: int) -> Iterable[MessageRecord | None]:
    """Yield the records from a queue offset on; None in the place of one that is missing."""
    for record in records:
        if record.queue_offset < offset:
            continue
        for _ in range(min(record.queue_offset - offset, CHUNK)):
            yield None
        yield record
        offset = record.queue_offset + 1


def _batches(halves: Sequence[OpenHalf], size: int) -> Iterable[Sequence[OpenHalf]]:
    return (halves[start : start + size] for start in range(0, len(halves), size))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
