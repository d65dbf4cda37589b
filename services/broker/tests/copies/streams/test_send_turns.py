# SPDX-License-Identifier: Apache-2.0
"""All receivers of the log together take a limited part of each turn of the loop."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.broker.copies.streams.follower_stream import TableStream
from cometmq.broker.copies.streams.rocketmq.frames import encode_report
from cometmq.broker.copies.streams.rocketmq.slave_stream import SlaveStream
from cometmq.broker.copies.streams.served import (
    SENT_BYTES_MIN,
    SLICE_BYTES,
    TURN_BYTES,
    SendTurns,
    ServedStream,
)
from cometmq.broker.copies.tables.feed import TablesPosition
from cometmq.broker.copies.unfit import UnfitLog
from cometmq.remoting.types import Buffer
from cometmq.testing.broker.replicas import Node
from cometmq.testing.store.builders import make_message

END = 5 * SLICE_BYTES


class Log:
    """A log of zeros; as a worker, it completes all reads together."""

    first, file_size, end = 0, 1 << 30, END

    def __init__(self) -> None:
        self.is_cold = False
        self.reads: list[tuple[asyncio.Future[Buffer], Callable[[], Buffer]]] = []

    def read(self, _offset: int, count: int, *, may_block: bool) -> Buffer | None:
        return bytes(count) if may_block or not self.is_cold else None

    def submit(self, job: Callable[[], Buffer]) -> "asyncio.Future[Buffer]":
        future = asyncio.get_running_loop().create_future()
        self.reads.append((future, job))
        return future

    def complete(self) -> None:
        reads, self.reads = self.reads, []
        for future, job in reads:
            future.set_result(job())


class Transport:
    """Records what is written."""

    def __init__(self) -> None:
        self.is_closed = False
        self.writes: list[list[bytes]] = []

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int) -> None: ...

    def writelines(self, parts: Iterable[Buffer]) -> None:
        self.writes.append([bytes(part) for part in parts])

    def write(self, data: Buffer) -> None:
        self.writes.append([bytes(data)])


class Receiver(ServedStream):
    """A receiver of the log."""

    transport: Any

    def __init__(self, log: Any, turns: SendTurns, part_bytes: int = SLICE_BYTES) -> None:
        self.offset = 0
        self._part_bytes = part_bytes
        self.fails = False
        owner: Any = SimpleNamespace(
            store=SimpleNamespace(commit_log=log), send_turns=turns, worker=log, now_ms=int,
            settings=lambda: SimpleNamespace(max_ha_transfer_byte_in_second=0),
        )  # fmt: skip
        transport: Any = Transport()
        super().__init__(owner, transport, "", lambda: log)

    def _take(self, data: bytes) -> None: ...

    def refuse(self, error: UnfitLog) -> None:
        raise error

    def _ended(self) -> None: ...

    def _place(self) -> tuple[int, int] | None:
        return (self.offset, self._part_bytes) if self.offset < END else None

    def _send(self, data: Buffer) -> int:
        if self.fails:
            raise ValueError
        self.offset += len(data)
        return len(data)

    def _failed(self, error: Exception) -> None:
        raise error


async def sent_per_turn(receivers: list[Receiver], each_turn: Callable[[], object]) -> list[int]:
    """Wake all; return how many bytes are sent in each turn until all have the log."""
    sent: list[int] = []
    for receiver in receivers:
        receiver.wake()
    total = 0
    async with asyncio.timeout(60):
        while True:
            sent.append(sum(receiver.offset for receiver in receivers) - total)
            total += sent[-1]
            if all(receiver.offset == END for receiver in receivers):
                return sent
            each_turn()
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_turn_sends_a_bounded_number_of_bytes_to_all(is_cold: bool) -> None:
    log, turns = Log(), SendTurns()
    log.is_cold = is_cold
    receivers = [Receiver(log, turns) for _ in range(64)]
    sent = await sent_per_turn(receivers, log.complete)
    assert max(sent) == TURN_BYTES
    assert sum(sent) == 64 * END


async def test_one_receiver_sends_a_slice_in_each_turn() -> None:
    assert await sent_per_turn([Receiver(Log(), SendTurns())], int) == [SLICE_BYTES] * 5


async def test_small_slices_count_as_larger_ones() -> None:
    log, turns = Log(), SendTurns()
    receivers = [Receiver(log, turns, part_bytes=10) for _ in range(200)]
    for receiver in receivers:
        receiver.wake()
    assert sum(receiver.offset for receiver in receivers) == 10 * TURN_BYTES // SENT_BYTES_MIN


async def test_all_receivers_advance_alike() -> None:
    log, turns = Log(), SendTurns()
    receivers = [Receiver(log, turns) for _ in range(9)]
    for receiver in receivers:
        receiver.wake()
    while not all(receiver.offset == END for receiver in receivers):
        offsets = [receiver.offset for receiver in receivers]
        assert max(offsets) - min(offsets) <= 2 * SLICE_BYTES
        for receiver in receivers:  # the log grows
            receiver.wake()
        await asyncio.sleep(0)


async def test_receivers_that_are_closed_or_fail_do_not_stop_the_others() -> None:
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
    log, turns = Log(), SendTurns()
    receivers = [Receiver(log, turns) for _ in range(9)]
    for receiver in receivers:
        receiver.wake()
    receivers[5].fails = True
    receivers[6].transport.is_closed = True
    others = [receiver for number, receiver in enumerate(receivers) if number not in {5, 6}]
    await sent_per_turn(others, int)
    assert (receivers[5].offset, receivers[6].offset, len(faults)) == (0, 0, 1)


class Feed:
    """Tables in some pieces, which never change."""

    position = TablesPosition(1, 0)
    encoded_count = 0

    def whole(self) -> Iterator[tuple[str, bytes]]:
        for number in range(3):
            self.encoded_count += 1
            yield "t.json", b"%d" % number

    def since(self, _number: int) -> Iterable[tuple[int, bytes]]:
        return ()


async def test_a_turn_encodes_one_piece_of_the_tables_for_all_followers() -> None:
    feed: Any = Feed()
    turns, writes = SendTurns(), list[bytes]()
    streams = [
        TableStream(feed, writes.append, turns=turns, is_paused=lambda: False) for _ in range(9)
    ]

    def send(stream: TableStream) -> None:
        if stream.send():
            turns.later(partial(send, stream))

    for stream in streams:
        send(stream)
    counts = [feed.encoded_count]
    async with asyncio.timeout(60):
        while any(stream.sent < 0 for stream in streams):  # no event
            await asyncio.sleep(0)
            counts.append(feed.encoded_count - sum(counts))
    assert max(counts) == 1
    assert len(writes) == 9 * 4  # with the ends


async def test_the_newest_of_many_reports_counts() -> None:
    async with Node() as node:
        for _ in range(3):
            node.put(make_message())
        await asyncio.sleep(0)
        transport: Any = Transport()
        stream = SlaveStream(node.server, transport, "a:1")
        taken: list[int] = []
        take: Any = partial(SlaveStream._take_report, stream)
        vars(stream)["_take_report"] = lambda offset: (taken.append(offset), take(offset))
        stream.data_received(encode_report(0) + encode_report(0) * 30_000 + encode_report(node.end))
        assert taken == [0, node.end]
        assert stream.slave.acked_offset == node.end
