# SPDX-License-Identifier: Apache-2.0
"""A slave that follows a master, either a real one or one simulated by the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams.rocketmq.frames import ReportReader, encode_header
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.message.record import decode_record
from cometmq.store.results import GetStatus
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker.replicas import HOST, Node, until
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk


class RawMaster:
    """Accepts slaves one after another; `serve` decides which bytes each one gets."""

    def __init__(self) -> None:
        self.reports: list[int] = []
        self.connect_count = 0
        self.address = ""
        self.writer: asyncio.StreamWriter | None = None
        self.first_answer: Callable[[int], bytes] = lambda _offset: b""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connect_count += 1
        self.writer = writer
        reports, is_first = ReportReader(), True
        try:
            while data := await reader.read(1 << 16):
                for offset in reports.feed(data):
                    self.reports.append(offset)
                    if is_first:
                        is_first = False
                        writer.write(self.first_answer(offset))
        except ConnectionError:
            pass
        finally:
            writer.close()

    def send(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


@asynccontextmanager
async def raw_master() -> AsyncIterator[RawMaster]:
    master = RawMaster()
    server = await asyncio.start_server(master.accept, HOST, 0)
    master.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield master
    finally:
        server.close()
        if master.writer is not None:
            master.writer.close()
        await asyncio.sleep(0.01)


def bodies(node: Node) -> list[bytes]:
    found: list[bytes] = []
    while True:
        result = node.store.reader.get_messages("T", 0, len(found), 32)
        if result.status is not GetStatus.FOUND:
            return found
        found += [decode_record(record).body for record in result.records]


async def fill(node: Node, count: int, start: int = 0) -> list[bytes]:
    sent = [b"%d" % number for number in range(start, start + count)]
    for body in sent:
        node.put(make_message(body=body, keys="k"))
        await asyncio.sleep(0)
    return sent


async def test_a_slave_catches_up_and_stays_equal() -> None:
    async with Node() as master, Node() as slave:
        sent = await fill(master, 200)
        slave.store.write_state.role_writable = False
        slave.follow(master.address)
        await until(lambda: slave.end == master.end)
        sent += await fill(master, 50, 200)
        await until(lambda: slave.end == master.end)
        assert slave.log_bytes() == master.log_bytes()
        assert bodies(slave) == sent
        assert slave.state.following.state is FollowState.FOLLOWING
        await until(lambda: master.state.slaves.acked_offset() == master.end)


async def test_a_slave_continues_after_its_restart() -> None:
    disk = MemoryDisk()
    async with Node() as master:
        sent = await fill(master, 60)
        async with Node(disk) as slave:
            slave.follow(master.address)
            await until(lambda: slave.end == master.end)
        disk.crash()
        sent += await fill(master, 60, 60)
        async with Node(disk) as slave:
            assert slave.end < master.end
            slave.follow(master.address)
            await until(lambda: slave.end == master.end)
            assert slave.log_bytes() == master.log_bytes()
            assert bodies(slave) == sent


async def test_slaves_may_follow_slaves() -> None:
    async with Node() as master, Node() as middle, Node() as last:
        middle.follow(master.address)
        last.follow(middle.address)
        sent = await fill(master, 30)
        await until(lambda: last.end == master.end)
        assert bodies(last) == sent


async def test_a_slave_reports_at_once_and_after_each_write() -> None:
    async with Node() as source, raw_master() as master, Node() as slave:
        await fill(source, 3)
        log = source.log_bytes()
        slave.follow(master.address)
        await until(lambda: master.reports == [0])
        master.send(encode_header(0, len(log)) + log)
        await until(lambda: master.reports == [0, len(log)])


async def test_a_slave_takes_frames_that_cut_records_anywhere() -> None:
    """RocketMQ's master sends such frames; the slave's own log still ends at a record boundary."""
    async with Node() as source, raw_master() as master, Node() as slave:
        sent = await fill(source, 9)
        log = source.log_bytes()
        slave.follow(master.address)
        await until(lambda: master.reports)
        for start in range(0, len(log), 7):
            piece = log[start : start + 7]
            master.send(encode_header(start, len(piece)) + piece)
        await until(lambda: slave.end == len(log))
        assert bodies(slave) == sent
        assert slave.store.commit_log.confirm_offset == slave.end


async def test_a_record_that_was_cut_by_a_lost_connection_is_asked_for_again() -> None:
    async with Node() as source, raw_master() as master, Node() as slave:
        await fill(source, 2)
        log, border = source.log_bytes(), source.rig.entry("T", 0, 1).physical_offset
        slave.follow(master.address)
        await until(lambda: master.reports)
        master.send(encode_header(0, border + 5) + log[: border + 5])
        await until(lambda: slave.end == border)
        await until(lambda: master.reports == [0, border])
        assert master.writer is not None
        master.writer.close()
        await until(lambda: master.connect_count == 2)
        await until(lambda: len(master.reports) == 3)
        assert master.reports == [0, border, border]


async def test_an_empty_slave_begins_where_the_master_sends() -> None:
    """A Java master sends an empty slave only its last file."""
    async with Node() as source, raw_master() as master, Node() as slave:
        await fill(source, 60)
        log = source.log_bytes()
        assert len(log) > 4096
        slave.follow(master.address)
        await until(lambda: master.reports)
        tail = log[4096:]
        master.send(encode_header(4096, len(tail)) + tail)
        await until(lambda: slave.end == len(log))
        assert slave.store.commit_log.min_offset == 4096


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (encode_header(999, 0), Unfit.FILE_SIZE),
        (encode_header(0, 40) + bytes(40), Unfit.NOT_A_RECORD),
        (encode_header(0, 40) + b"\x7f\xff\xff\xff\xda\xa3\x20\xa7" + bytes(32), Unfit.FILE_SIZE),
    ],
)
async def test_bytes_that_do_not_fit_are_reported_once(answer: bytes, reason: Unfit) -> None:
    async with raw_master() as master, Node() as slave:
        master.first_answer = lambda _offset: answer
        slave.follow(master.address)
        await until(lambda: master.connect_count > 1)
        assert slave.state.following.unfit is reason
        assert slave.state.following.state is FollowState.UNFIT
        (fact,) = slave.log.named("replica.unfit")
        assert fact["action"]
        assert slave.end == 0


async def test_a_master_at_another_offset_is_reported() -> None:
    async with raw_master() as master, Node() as slave:
        await fill(slave, 1)
        master.first_answer = lambda offset: encode_header(offset + 1, 0)
        slave.follow(master.address)
        await until(lambda: slave.state.following.unfit is Unfit.OFFSET)
        assert str(slave.end) in slave.state.following.unfit_detail


async def test_a_master_that_closes_without_a_word_is_reported() -> None:
    async with Node() as master, Node() as slave:
        await fill(slave, 2)
        slave.follow(master.address)
        await until(lambda: slave.state.following.unfit is Unfit.REFUSED)
        assert master.log.named("slave.refused")[0]["reason"] == Unfit.AHEAD.value
        await fill(master, 2)
        await until(lambda: slave.state.following.state is FollowState.FOLLOWING)
        assert slave.state.following.unfit is None


async def test_a_log_ahead_of_its_master_is_not_followed_until_a_restart() -> None:
    """The master's log may become longer than the slave's at any time, with different bytes."""
    async with raw_master() as master, Node() as slave:
        slave.follow(master.address)
        master.first_answer = lambda offset: encode_header(offset, 0)
        await until(lambda: slave.state.following.state is FollowState.FOLLOWING)
        ahead = UnfitLog(Unfit.AHEAD, "this log ends at 10, the master's at 5")
        slave.follower.note_unfit(ahead)

        async def inspect() -> None:
            if slave.state.following.unfit is Unfit.AHEAD:
                raise ahead

        slave.inspect = inspect
        await until(lambda: not slave.state.following.ha_address)
        await asyncio.sleep(0.5)
        assert master.connect_count == 1
        assert slave.state.following.state is FollowState.UNFIT


async def test_hostile_frames_end_the_connection_and_nothing_else() -> None:
    async with raw_master() as master, Node() as slave:
        master.first_answer = lambda _offset: b"\xff" * 12
        slave.follow(master.address)
        await until(lambda: master.connect_count > 1)
        assert slave.end == 0
        assert slave.log.named("replica.failed")


async def test_a_full_disk_is_tried_again() -> None:
    disk = MemoryDisk()
    async with Node() as master, Node(disk) as slave:
        await fill(master, 5)
        disk.fault = lambda operation, _path: 28 if operation in {"write", "create"} else 0
        slave.follow(master.address)
        await until(lambda: slave.log.named("replica.failed"))
        assert slave.end == 0
        assert slave.state.following.state is FollowState.FAILED
        disk.fault = None
        await until(lambda: slave.end == master.end)


async def test_a_slave_that_could_not_read_what_it_appended_shows_it_later() -> None:
    disk = MemoryDisk()
    async with Node() as master, Node(disk) as slave:
        sent = await fill(master, 20)
        disk.fault = lambda operation, path: (
            5 if operation == "read" and "/commitlog/" in path else 0
        )
        slave.follow(master.address)
        await until(lambda: slave.log.named("replica.failed"))
        await until(lambda: slave.state.following.state is FollowState.FAILED)
        assert slave.end > 0
        assert slave.store.commit_log.confirm_offset == 0
        disk.fault = None
        await until(lambda: slave.store.commit_log.confirm_offset == master.end)
        assert not slave.log.named("replica.unfit")
        assert bodies(slave) == sent


async def test_a_store_whose_sync_failed_follows_no_more() -> None:
    async with Node() as master, Node() as slave:
        await fill(master, 1)
        slave.follow(master.address)
        await until(lambda: slave.end == master.end)
        slave.store.write_state.set(Refusal.SYNC_FAILED, holds=True)
        slave.follower.tick()
        await until(lambda: slave.state.following.state is FollowState.IDLE)
        end = slave.end
        await fill(master, 1)
        await asyncio.sleep(0.1)
        assert slave.end == end


async def test_a_silent_master_is_given_up() -> None:
    async with raw_master() as master, Node() as slave:
        slave.follow(master.address)
        await until(lambda: master.reports == [0])
        slave.clock.advance(5_000)
        slave.follower.tick()
        await until(lambda: master.reports == [0, 0])
        slave.clock.advance(15_001)
        slave.follower.tick()
        await until(lambda: master.connect_count == 2)


async def test_an_unreachable_master_is_logged_once() -> None:
    async with Node() as slave:
        slave.follow(f"{HOST}:9")
        await until(lambda: slave.log.named("replica.failed"))
        await asyncio.sleep(0.5)
        assert len(slave.log.named("replica.failed")) == 1
