# SPDX-License-Identifier: Apache-2.0
"""A master whose slaves are played by the test, byte by byte."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.broker.copies.streams.records import HEAD_BYTES, is_border
from cometmq.broker.copies.streams.rocketmq.frames import BODY_BYTES_MAX, Transfer
from cometmq.broker.copies.streams.served import SLICE_BYTES, UNSENT_BYTES_MAX
from cometmq.broker.copies.unfit import ACTIONS, Unfit
from cometmq.store.log.damage import DamagedRange
from cometmq.store.results import PutStatus
from cometmq.store.settings import BrokerRole, FlushDiskType
from cometmq.testing.broker.replicas import Node, RawSlave, until
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk


@asynccontextmanager
async def slave_of(node: Node, report: int | None = 0) -> AsyncIterator[RawSlave]:
    slave = await RawSlave.connect(node.address)
    try:
        if report is not None:
            slave.report(report)
        yield slave
    finally:
        await slave.close()


async def filled(node: Node, count: int, body: bytes = b"Hello") -> None:
    for number in range(count):
        node.put(make_message(queue_id=number % 2, body=body, keys=f"k{number}"))
    await asyncio.sleep(0)
    assert node.store.counters.put_count >= count


def joined(transfers: list[Transfer]) -> bytes:
    """Join the bytes of transfers, which must follow one another without a gap."""
    for one, following in itertools.pairwise(transfers):
        assert one.offset + len(one.data) == following.offset
    return b"".join(transfer.data for transfer in transfers)


async def test_an_empty_slave_gets_the_whole_log() -> None:
    async with Node() as node:
        await filled(node, 100)
        assert len(node.store.commit_log.files.files) > 2
        async with slave_of(node) as slave:
            transfers = await slave.receive(node.end)
            assert transfers[0].offset == 0
            assert joined(transfers) == node.log_bytes()


async def test_a_slave_continues_at_its_report_and_gets_what_is_stored_later() -> None:
    async with Node() as node:
        await filled(node, 3)
        half = node.end
        await filled(node, 3)
        async with slave_of(node, half) as slave:
            transfers = await slave.receive(node.end - half)
            assert joined(transfers) == node.log_bytes()[half:]
            end = node.end
            await filled(node, 1)
            assert (await slave.receive(1))[0] == Transfer(end, node.log_bytes()[end:])


async def test_transfers_end_at_record_borders_and_files() -> None:
    """A Java slave that loses its connection can then continue from any master."""
    async with Node(ha_transfer_batch_size=300) as node:
        await filled(node, 100)
        log = node.log_bytes()
        async with slave_of(node) as slave:
            transfers = await slave.receive(node.end)
        for transfer in transfers:
            end = transfer.offset + len(transfer.data)
            assert len(transfer.data) <= 300
            assert end == node.end or is_border(log[end : end + HEAD_BYTES], end, 4096)
        assert len(transfers) > 30


@pytest.mark.parametrize("body_bytes", [SLICE_BYTES + 1, BODY_BYTES_MAX - 200, BODY_BYTES_MAX + 9])
async def test_large_records_pass(body_bytes: int) -> None:
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": 16 << 20,
        "max_message_size": 8 << 20,
    }
    async with Node(**settings) as node:
        await filled(node, 2)
        await filled(node, 1, bytes(body_bytes))
        await filled(node, 2)
        async with slave_of(node) as slave:
            transfers = await slave.receive(node.end)
            assert joined(transfers) == node.log_bytes()
            assert max(len(transfer.data) for transfer in transfers) <= BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (1 << 40, Unfit.AHEAD),
        (50, Unfit.NOT_A_RECORD),
        (-1, Unfit.PROTOCOL),
        (-(1 << 63), Unfit.PROTOCOL),
    ],
)
async def test_a_log_that_does_not_fit_is_refused_in_words(report: int, reason: Unfit) -> None:
    async with Node() as node:
        await filled(node, 10)
        for _ in range(2):
            async with slave_of(node, report) as slave:
                assert await slave.is_closed()
        (fact,) = node.log.named("slave.refused")  # logged once, even though the slave reconnects
        assert fact["reason"] == reason.value
        assert fact["action"]
        assert node.state.slaves.refused_counts[reason] == 2
        assert not node.state.slaves.connected


async def test_a_slave_whose_next_messages_are_deleted_is_refused() -> None:
    async with Node() as node:
        await filled(node, 100)
        node.store.commit_log.forget_first(1)
        async with slave_of(node, node.rig.entry("T", 0, 1).physical_offset) as slave:
            assert await slave.is_closed()
        assert node.log.named("slave.refused")[0]["reason"] == Unfit.EXPIRED.value
        async with slave_of(node, 0) as slave:
            assert (await slave.receive(1))[0].offset == 4096


async def test_an_acknowledgement_of_bytes_that_were_not_sent_closes_the_connection() -> None:
    async with Node(broker_role=BrokerRole.SYNC_MASTER) as node:
        async with slave_of(node) as slave:
            await until(node.state.slaves.following)
            results = node.put(make_message())
            await slave.receive(node.end)
            slave.report(1 << 40)
            assert await slave.is_closed()
        assert results == []
        assert node.state.slaves.acked_offset() == 0
        assert node.log.named("slave.refused")[0]["reason"] == Unfit.ACK.value
        node.store.upkeep.flusher.job(node.rig.clock.advance(3_001))
        assert [result.status for result in results] == [PutStatus.FLUSH_SLAVE_TIMEOUT]
        late = node.put(make_message())
        await asyncio.sleep(0)
        assert [result.status for result in late] == [PutStatus.SLAVE_NOT_AVAILABLE]


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_sync_master_answers_when_a_slave_has_the_message(flush: FlushDiskType) -> None:
    changes: dict[str, Any] = {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": flush}
    async with Node(**changes) as node, slave_of(node) as slave:
        await until(node.state.slaves.following)
        results = node.put(make_message())
        ignored = node.put(make_message(wait=False))
        await slave.receive(1)
        assert [result.status for result in ignored] == [PutStatus.PUT_OK]
        assert results == []
        slave.report(node.end)
        await until(lambda: results)
        assert results[0].status is PutStatus.PUT_OK
        assert node.driver.sends.waiting_count == 0


async def test_a_sync_master_does_not_wait_for_slaves_far_behind() -> None:
    changes: dict[str, Any] = {
        "broker_role": BrokerRole.SYNC_MASTER,
        "ha_slave_fallbehind_max": 1000,
    }
    async with Node(**changes) as node, slave_of(node) as slave:
        await until(node.state.slaves.following)
        waiting = node.put(make_message())
        await asyncio.sleep(0)
        assert waiting == []
        answered = node.put(make_message(body=bytes(2000)))
        await until(lambda: node.store.counters.put_count == 2)
        assert len(node.store.upkeep.pending) == 1
        await slave.receive(node.end)
        slave.report(node.end)
        await until(lambda: waiting)
        assert [result.status for result in waiting] == [PutStatus.PUT_OK]
        assert [result.status for result in answered] == [PutStatus.SLAVE_NOT_AVAILABLE]


async def test_an_async_master_never_waits() -> None:
    async with Node() as node, slave_of(node):
        await until(node.state.slaves.following)
        results = node.put(make_message())
        await asyncio.sleep(0)
        assert [result.status for result in results] == [PutStatus.PUT_OK]


async def test_any_one_slave_is_enough() -> None:
    async with (
        Node(broker_role=BrokerRole.SYNC_MASTER) as node,
        slave_of(node) as slow,
        slave_of(node) as fast,
    ):
        await until(lambda: len(node.state.slaves.following()) == 2)
        results = node.put(make_message())
        for slave in (slow, fast):
            await slave.receive(1)
        fast.report(node.end)
        await until(lambda: results)
        assert results[0].status is PutStatus.PUT_OK
        lags = dict(node.state.slaves.lags(node.end))
        assert sorted(lags.values()) == [0, node.end]


async def test_a_slow_slave_costs_a_bounded_buffer_and_delays_nobody() -> None:
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 8 << 20}
    async with Node(**settings) as node, slave_of(node):
        await until(node.state.slaves.following)
        (slave,) = node.state.slaves.connected
        for _ in range(20):
            await filled(node, 10, bytes(100_000))
            for _ in range(20):
                await asyncio.sleep(0)
        assert node.end > 16 << 20
        (stream,) = node.server._streams
        unsent = stream.transport.get_write_buffer_size()
        assert 0 < unsent <= UNSENT_BYTES_MAX + 2 * SLICE_BYTES
        assert slave.sent_offset < node.end


async def test_records_outside_the_page_cache_are_read_on_a_thread() -> None:
    disk = MemoryDisk()
    async with Node(disk) as node:
        await filled(node, 100)
        disk.is_cold = True
        async with slave_of(node) as slave:
            assert joined(await slave.receive(node.end)) == node.log_bytes()
        half = node.rig.entry("T", 0, 20).physical_offset
        async with slave_of(node, half) as slave:
            assert joined(await slave.receive(node.end - half)) == node.log_bytes()[half:]
        assert node.workers.replicate.stats().done_count > 2


async def test_a_log_that_cannot_be_read_ends_the_connection_with_an_error() -> None:
    disk = MemoryDisk()
    async with Node(disk) as node:
        await filled(node, 10)
        disk.is_cold = True
        disk.fault = lambda operation, _path: 5 if operation == "read" else 0
        async with slave_of(node) as slave:
            assert await slave.is_closed()
        assert "DiskError" in str(node.log.named("slave.log_unreadable")[0]["error"])


async def test_bytes_that_changed_on_the_disk_are_not_sent() -> None:
    disk = MemoryDisk()
    async with Node(disk=disk) as node:
        await filled(node, 100)
        node.rig.work(3)
        log = disk.contents[node.store.layout.commit_log + f"/{4096:020d}"]
        log[100] ^= 1
        async with slave_of(node) as slave:
            transfers = await slave.receive(4096)
            assert joined(transfers) == node.log_bytes()[:4096]
            assert await slave.is_closed()
        (fact,) = node.log.named("slave.refused")
        assert (fact["reason"], fact["action"]) == (Unfit.DAMAGED.value, ACTIONS[Unfit.DAMAGED])
        log[100] ^= 1
        node.store.pulls.forget()
        node.store.commit_log.verified.settle((DamagedRange(4096, 8192),))
        async with slave_of(node, 4096) as slave:
            assert joined(await slave.receive(node.end - 4096)) == node.log_bytes()[4096:]


async def test_the_rate_limit_spreads_a_catch_up() -> None:
    settings: dict[str, Any] = {
        "mapped_file_size_commit_log": 8 << 20,
        "max_ha_transfer_byte_in_second": 1 << 20,
    }
    async with Node(**settings) as node:
        await filled(node, 20, bytes(100_000))
        async with slave_of(node) as slave:
            first = await slave.receive(1)
            sent = -1
            async with asyncio.timeout(60):
                while node.state.slaves.sent_bytes != sent:  # the share of this moment
                    sent = node.state.slaves.sent_bytes
                    await asyncio.sleep(0.05)
            assert 0 < sent < 1 << 20  # the clock stands still
            node.clock.advance(1_000)
            received = len(joined(first))
            await until(lambda: node.state.slaves.sent_bytes > sent)
            assert received <= sent


async def test_heartbeats_name_the_next_offset() -> None:
    async with Node() as node:
        await filled(node, 1)
        async with slave_of(node, node.end) as slave:
            assert await slave.receive(0) == [Transfer(node.end, b"")]  # the log matches
            node.server.tick()
            node.clock.advance(5_000)
            node.server.tick()
            assert await slave.receive(0) == [Transfer(node.end, b"")]


async def test_silent_connections_are_closed() -> None:
    async with Node() as node, slave_of(node) as slave, slave_of(node, None) as mute:
        await until(node.state.slaves.following)
        await until(lambda: len(node.server.openings))
        node.clock.advance(20_001)
        node.server.tick()
        assert await slave.is_closed()
        assert await mute.is_closed()
        assert not node.state.slaves.connected


async def test_the_number_of_connections_is_bounded() -> None:
    async with Node(ha_connections_max=2) as node, slave_of(node), slave_of(node):
        await until(lambda: len(node.state.slaves.connected) == 2)
        async with slave_of(node) as third:
            assert await third.is_closed()
        assert node.log.named("slave.turned_away")


async def test_acknowledgements_end_with_their_connection() -> None:
    async with Node(broker_role=BrokerRole.SYNC_MASTER) as node:
        await filled(node, 1)
        async with slave_of(node, node.end):
            await until(node.state.slaves.following)
            assert node.state.slaves.acked_offset() == node.end
        await until(lambda: not node.state.slaves.connected)
        assert node.state.slaves.acked_offset() == 0
        assert not node.store.writer.may_replicate(node.end)


async def test_a_report_in_pieces_is_understood() -> None:
    async with Node() as node, slave_of(node, None) as slave:
        await filled(node, 1)
        for byte in bytes(8):
            slave.writer.write(bytes([byte]))
            await slave.writer.drain()
        assert joined(await slave.receive(node.end)) == node.log_bytes()
