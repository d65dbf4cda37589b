# SPDX-License-Identifier: Apache-2.0
"""One client process of `cometmq bench`: it sends, reads, or measures the way of messages.

At a given rate, the latency of a message counts from the moment at which it was due, not from the
moment at which the client came to send it. A pause of the broker therefore delays all messages that
were due meanwhile, as it would delay their users ("coordinated omission" is avoided).
"""

import asyncio
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import accumulate
from math import inf
from time import monotonic, monotonic_ns, process_time
from typing import Any, Final

import msgspec

from cometmq.client import (
    ClientOptions,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.admin import AdminClient
from cometmq.client.transfer.pulled import PullStatus
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import TOOLS_GROUP
from cometmq.runtime.service import new_event_loop

EXACT_BITS: Final = 11
"""Values below 2 ** EXACT_BITS are exact; above, this number of leading bits counts."""
VALUE_MAX: Final = (1 << 32) - 1
"""About 71 minutes in microseconds; longer latencies count as this."""
PERCENTILES: Final = (50.0, 75.0, 90.0, 99.0, 99.9, 99.99)


class Histogram(msgspec.Struct):
    """Counts of values in microseconds."""

    counts: dict[int, int] = {}
    """By rounded value; at most 23,000 of these exist."""
    count: int = 0
    total: int = 0
    most: int = 0

    def add(self, value: int) -> None:
        """Count a value; negative ones, of clocks that went back, count as 0."""
        value = min(max(value, 0), VALUE_MAX)
        bucket = rounded(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.most = max(self.most, value)

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)

    def percentiles(self, wanted: Iterable[float] = PERCENTILES) -> Mapping[float, int]:
        """Return, for each wanted percentage, the value that this share of all values does not
        exceed.
        """
        values = sorted(self.counts)
        sums = list(accumulate(self.counts[it] for it in values))
        ranks = {share: max(1, -(-self.count * share // 100)) for share in wanted if sums}
        return {
            share: min(values[bisect_left(sums, rank)], self.most) for share, rank in ranks.items()
        }


def rounded(value: int) -> int:
    """Return the largest value that has the same leading bits."""
    rest = max(0, value.bit_length() - EXACT_BITS)
    return value | ((1 << rest) - 1)


GROUP: Final = "CLI_BENCH"
MARK: Final = struct.Struct(">8sqq")
"""The first bytes of a body of `bench latency`: the id of the run, and when the message was due."""
WAITING_MAX: Final = 10_000
"""The most sends in flight at a given rate. Further ones wait, which counts as latency."""
REPORT_S: Final = 0.25
ERRORS_MAX: Final = 5
DRAIN_S: Final = 5.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a measurement that one process carries out."""

    kind: str
    namesrv: str
    topic: str
    options: ClientOptions
    size: int = 1024
    rate: float | None = None
    """Messages per second of this process."""
    duration_s: float | None = None
    count: int | None = None
    in_flight: int = 64
    queues: tuple[MessageQueue, ...] = ()
    delay_level: int = 0
    delay_ms: int = 0
    """The delay of `delay_level`; latencies count from its end."""
    run: bytes = b""
    """Distinguishes the messages of this run from others in the topic."""


class Outcome(msgspec.Struct):
    """The counts and latencies that one process has measured."""

    messages: int = 0
    bytes: int = 0
    failures: int = 0
    errors: list[str] = []
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Processor time of the same span: starting and connecting take longer than a short run."""
    late_max: int = 0
    """The highest number of messages that were due but not sent."""
    latencies: Histogram = msgspec.field(default_factory=Histogram)


def client(task: Task, pipe: Any) -> None:
    """Run a task, and report to the parent; the entry point of a process."""
    outcome = Outcome()
    span = _Span()
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(task, outcome, pipe))
    if not outcome.seconds:
        span.end(outcome)
    pipe.send(outcome)
    pipe.close()


class _Span:
    """The time that a measurement takes, from now."""

    def __init__(self) -> None:
        self.begin_ns = monotonic_ns()
        self._cpu = process_time()

    def end(self, outcome: Outcome) -> None:
        outcome.seconds = (monotonic_ns() - self.begin_ns) / 1e9
        outcome.cpu_s = process_time() - self._cpu


async def _run(task: Task, outcome: Outcome, pipe: Any) -> None:
    work = WORK[task.kind]

    async def report() -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            pipe.send(outcome.messages)

    async with asyncio.TaskGroup() as tasks:
        reporting = tasks.create_task(report())
        try:
            await work(task, outcome)
        except* CometError as errors:  # of a queue or of the whole task
            for error in errors.exceptions:
                _failed(outcome, error)
        finally:
            reporting.cancel()


def _failed(outcome: Outcome, error: Exception) -> None:
    outcome.failures += 1
    if len(outcome.errors) < ERRORS_MAX and str(error) not in outcome.errors:
        outcome.errors.append(str(error))


async def _send(task: Task, outcome: Outcome) -> None:
    body = bytes(task.size)
    await _produce(task, outcome, lambda _due_ns: body, outcome.latencies.add)


async def _produce(
    task: Task, outcome: Outcome, body_at: Callable[[int], bytes], took_us: Callable[[int], None]
) -> None:
    """Send until the time or the count is reached; latencies count from when a message was due."""
    room = asyncio.Semaphore(WAITING_MAX if task.rate else task.in_flight)
    async with _producer(task) as producer:
        stored = producer.send
        if isinstance(producer, TransactionProducer):
            stored = partial(producer.send_in_transaction, execute=_committed)
        span = _Span()
        begin_ns = span.begin_ns
        end_ns = begin_ns + (task.duration_s or inf) * 1e9

        async def one(due_ns: int) -> None:
            try:
                await stored(Message(task.topic, body_at(due_ns), delay_level=task.delay_level))
            except CometError as error:
                _failed(outcome, error)
            else:
                took_us((monotonic_ns() - due_ns) // 1000)
                outcome.messages += 1
                outcome.bytes += task.size
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            number = 0
            while task.count is None or number < task.count:
                due_ns = _due(task, begin_ns, number)
                if due_ns >= end_ns:
                    if task.rate:  # the last message's interval counts, as all others do
                        await _until(end_ns)
                    break
                late_s = await _until(due_ns)
                if task.rate:
                    outcome.late_max = max(outcome.late_max, int(late_s * task.rate))
                await room.acquire()
                tasks.create_task(one(due_ns if task.rate else monotonic_ns()))
                number += 1
                if number % task.in_flight == 0 or not task.rate:
                    await asyncio.sleep(0)
        span.end(outcome)


def _producer(task: Task) -> Producer:
    """Return the producer of a task; a transactional one answers every check with COMMIT."""
    fields = {name: getattr(task.options, name) for name in ClientOptions.__struct_fields__}
    if task.kind == "txn":
        options = TransactionOptions(**fields, retry_times=0)
        return TransactionProducer(
            GROUP, task.namesrv, check=_committed, options=options, log=NO_LOG
        )
    return Producer(
        GROUP, task.namesrv, options=ProducerOptions(**fields, retry_times=0), log=NO_LOG
    )


async def _committed(*_: object) -> TransactionState:
    return TransactionState.COMMIT


async def _until(moment_ns: float) -> float:
    """Wait until a moment, and return by how many seconds it was over before."""
    wait_s = (moment_ns - monotonic_ns()) / 1e9
    if wait_s > 0:
        await asyncio.sleep(wait_s)
    return max(0, -wait_s)


def _due(task: Task, begin_ns: int, number: int) -> int:
    """Return when a message should be sent: by the rate, or now."""
    return begin_ns + int(number * 1e9 / task.rate) if task.rate else monotonic_ns()


async def _consume(task: Task, outcome: Outcome) -> None:
    """Read the queues from their beginnings, without committing anything."""
    async with AdminClient(task.namesrv, options=task.options, log=NO_LOG) as admin:
        masters = {it.name: it for it in await admin.masters_of(task.topic)}
        span, begin = _Span(), monotonic()

        def is_over() -> bool:
            is_late = task.duration_s is not None and monotonic() - begin >= task.duration_s
            return is_late or (task.count is not None and outcome.messages >= task.count)

        async def read(queue: MessageQueue) -> None:
            broker = masters[queue.broker_name]
            at = await broker.min_offset(queue.topic, queue.queue_id)
            while not is_over():
                asked_ns = monotonic_ns()
                found = await broker.pull(queue.topic, queue.queue_id, at)
                if found.status is PullStatus.NO_NEW or found.next_offset <= at:
                    return
                outcome.latencies.add((monotonic_ns() - asked_ns) // 1000)
                outcome.messages += len(found.messages)
                outcome.bytes += sum(len(it.body) for it in found.messages)
                at = found.next_offset

        async with asyncio.TaskGroup() as tasks:
            for queue in task.queues:
                if queue.broker_name in masters:
                    tasks.create_task(read(queue))
        span.end(outcome)


async def _latency(task: Task, outcome: Outcome) -> None:
    """Send at a rate, and read the same messages; the latency is from due to received."""
    sent = Outcome()
    rest = bytes(max(0, task.size - MARK.size))
    sequence = 0

    def body(due_ns: int) -> bytes:
        nonlocal sequence
        sequence += 1
        return MARK.pack(task.run, sequence, due_ns) + rest

    fields = {name: getattr(task.options, name) for name in ClientOptions.__struct_fields__}
    options = LitePullOptions(**fields, auto_commit=False)
    async with AdminClient(task.namesrv, options=task.options, log=NO_LOG) as admin:
        queues = await admin.queues(task.topic)
        ends = {queue: await admin.max_offset(queue) for queue in queues}
    consumer = LitePullConsumer(TOOLS_GROUP, task.namesrv, options=options, log=NO_LOG)
    consumer.assign(queues)
    async with consumer:
        for queue, end in ends.items():
            await consumer.seek(queue, end)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_receive(consumer, task, outcome))
            try:
                await _produce(task, sent, body, lambda _us: None)
                deadline = monotonic() + DRAIN_S + task.delay_ms / 1_000
                while outcome.messages < sent.messages and monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            finally:
                reading.cancel()
    outcome.seconds, outcome.cpu_s, outcome.late_max = sent.seconds, sent.cpu_s, sent.late_max
    outcome.failures += sent.failures + max(0, sent.messages - outcome.messages)
    outcome.errors += sent.errors
    if sent.messages > outcome.messages:
        outcome.errors.append(f"{sent.messages - outcome.messages:,} messages were not received")


async def _receive(consumer: LitePullConsumer, task: Task, outcome: Outcome) -> None:
    while True:
        for message in await consumer.poll():
            now_ns = monotonic_ns()
            if len(message.body) >= MARK.size:
                run, _, due_ns = MARK.unpack_from(message.body)
                if run == task.run:
                    outcome.latencies.add((now_ns - due_ns) // 1000 - task.delay_ms * 1000)
                    outcome.messages += 1
                    outcome.bytes += len(message.body)


WORK: Final[Mapping[str, Callable[[Task, Outcome], Awaitable[None]]]] = {
    "send": _send,
    "txn": _send,
    "consume": _consume,
    "latency": _latency,
}
