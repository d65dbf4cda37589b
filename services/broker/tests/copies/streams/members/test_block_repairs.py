# SPDX-License-Identifier: Apache-2.0
"""Damaged blocks of a member's log are replaced by the bytes of another member."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams import block_exchange, frames
from cometmq.remoting.message.record import decode_record
from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES
from cometmq.store.os_disk import OsDisk
from cometmq.store.upkeep.withheld import load_state
from cometmq.testing.broker.member_nodes import MemberNode, is_equal
from cometmq.testing.broker.replicas import DEADLINE_S
from cometmq.testing.store.builders import make_message, settled
from cometmq.testing.store.memory_disk import MemoryDisk

FILE_BYTES = 3 * BLOCK_BYTES + 4096
COUNT = 120
PLACE = BLOCK_BYTES + 5_000


def node(folder: Path, ordinal: int, **options: Any) -> MemberNode:
    return MemberNode(folder, ordinal, mapped_file_size_commit_log=FILE_BYTES, **options)


async def fill(master: MemberNode) -> None:
    random = Random(1)
    for number in range(COUNT):
        body = random.randbytes(random.randrange(BLOCK_BYTES // 15))
        master.put(make_message(queue_id=number % 2, body=body))
    await asyncio.sleep(0)


async def work(*nodes: MemberNode) -> None:
    """Run one round of everything that is due.

    The clock waits for the threads that compare and write blocks: beside a busy machine, a stream
    would else time out, and the next one would ask for the block again.
    """
    for one in nodes:
        one.clock.advance(200)
        one.driver.tick()
        one.server.tick()
    await asyncio.sleep(0.005)
    for one in nodes:
        for worker in (one.workers.scrub, one.workers.replicate):
            await worker.submit(bool)


async def until(condition: Any, *nodes: MemberNode) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await work(*nodes)


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[MemberNode, MemberNode]]:
    async with node(folder, 0) as master, node(folder, 1) as slave:
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await fill(master)
        await until(lambda: is_equal(slave, master) and slave.visible_count == COUNT, master, slave)
        await until(lambda: all(map(is_sealed, (master, slave))), master, slave)
        yield master, slave


def is_sealed(one: MemberNode) -> bool:
    return one.store.commit_log.verified.end == one.end


def flip(one: MemberNode, place: int, *, bits: int = 1) -> None:
    assert isinstance(one.disk, MemoryDisk)
    start = place - place % FILE_BYTES
    one.disk.contents[f"/store/commitlog/{start:020d}"][place - start] ^= bits
    one.store.pulls.forget()


def bodies(one: MemberNode) -> dict[tuple[int, int], bytes]:
    """Return the body of each message that a consumer gets."""
    found = {}
    for queue_id in range(2):
        offset = 0
        while offset < one.store.reader.max_offset("T", queue_id):
            read = partial(one.store.reader.get_messages, "T", queue_id, offset, 32)
            result = settled(one.store, read)
            for data in result.records:
                record = decode_record(data)
                found[queue_id, record.queue_offset] = bytes(record.body)
            assert result.next_offset > offset
            offset = result.next_offset
    return found


def damaged(one: MemberNode) -> int:
    return one.store.stats().damaged_bytes


def repaired(one: MemberNode) -> int:
    return one.store.stats().repaired_block_count


def ranges(one: MemberNode) -> tuple[tuple[int, int], ...]:
    """Return the damage that is recorded on the disk."""
    return tuple(map(tuple, load_state(one.disk, one.store.layout).damage))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_master", [True, False], ids=["master", "follower"])
@pytest.mark.parametrize("at", ["first block", "middle", "end of a file", "last bytes"])
async def test_a_damaged_block_is_replaced(tmp_path: Path, is_master: bool, at: str) -> None:
    async with pair(tmp_path) as (master, slave):
        hurt = master if is_master else slave
        whole, log = bodies(hurt), hurt.log_bytes()
        places = {"first block": 7, "middle": PLACE, "end of a file": FILE_BYTES - 4_000}
        place = places.get(at, hurt.end - 5)
        flip(hurt, place)
        found = bodies(hurt)
        assert len(found) < len(whole)
        assert found.items() <= whole.items()
        await until(lambda: repaired(hurt), master, slave)
        assert damaged(hurt) == hurt.store.stats().damaged_message_count == 0
        assert hurt.log_bytes() == log
        assert bodies(hurt) == whole
        assert ranges(hurt) == ()
        await until(lambda: is_equal(slave, master), master, slave)
        assert slave.state.following.connect_count == 1


async def test_a_block_of_a_file_on_a_disk_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    options: dict[str, Any] = {"disk": OsDisk(), "store_path_root_dir": str(folder)}
    async with node(tmp_path, 0) as master, node(tmp_path, 1, **options) as slave:
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await fill(master)
        await until(lambda: is_sealed(master) and is_sealed(slave), master, slave)
        await until(lambda: slave.visible_count == COUNT, master, slave)
        whole = bodies(slave)
        path = folder / "commitlog" / ("0" * 20)
        data = bytearray(path.read_bytes())
        intact = bytes(data)
        data[PLACE : PLACE + 3_000] = bytes(3_000)
        path.write_bytes(data)
        slave.store.pulls.forget()
        assert len(bodies(slave)) < COUNT
        await until(lambda: repaired(slave), master, slave)
        assert path.read_bytes() == intact
        assert bodies(slave) == whole
        slave.store.close()


async def test_many_damaged_blocks_are_replaced_one_by_one(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        whole, log = bodies(slave), slave.log_bytes()
        for place in range(100, slave.end, PAGE_BYTES // 2):
            flip(slave, place)
        assert bodies(slave) == {}
        await until(lambda: damaged(slave), master, slave)
        await until(lambda: not damaged(slave), master, slave)
        assert slave.log_bytes() == log
        assert bodies(slave) == whole
        assert slave.store.stats().damaged_message_count == 0


async def test_both_repair_what_the_other_has(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        whole, log = bodies(master), master.log_bytes()
        flip(master, PLACE)
        flip(slave, PLACE + BLOCK_BYTES)
        bodies(master), bodies(slave)
        await until(lambda: repaired(master) and repaired(slave), master, slave)
        assert master.log_bytes() == slave.log_bytes() == log
        assert bodies(master) == bodies(slave) == whole


async def test_members_with_the_same_damage_keep_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        flip(master, PLACE)
        flip(slave, PLACE + 1)
        left = bodies(master)
        assert bodies(slave) == left
        await until(lambda: damaged(master) and damaged(slave), master, slave)
        for _ in range(20):
            await work(master, slave)
        assert repaired(master) == repaired(slave) == 0
        assert bodies(master) == bodies(slave) == left


async def test_a_member_with_several_copies_asks_the_next_one(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave), node(tmp_path, 2) as other:
        await other.follow_member(master, 1)
        await until(lambda: is_equal(other, master), master, other)
        flip(master, PLACE)
        flip(slave, PLACE + 1)
        log = other.log_bytes()
        bodies(master), bodies(slave)
        nodes = (master, slave, other)
        await until(lambda: repaired(master) and repaired(slave), *nodes)
        assert master.log_bytes() == slave.log_bytes() == log


async def test_wrong_bytes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, lies = frames.encode_block, [0]

    def lie(offset: int, data: bytes) -> bytes:
        lies[0] += 1
        return encode(offset, bytes([data[0] ^ 1]) + bytes(data[1:]))

    async with pair(tmp_path) as (master, slave):
        # The clock of the nodes may run far ahead of the worker that checks the bytes.
        monkeypatch.setattr(block_exchange, "AGAIN_MS", 1 << 40)
        flip(slave, PLACE)
        left, log = bodies(slave), slave.log_bytes()
        monkeypatch.setattr(frames, "encode_block", lie)
        await until(lambda: slave.log.named("log.unrepaired"), master, slave)
        for _ in range(20):
            await work(master, slave)
        assert lies == [1]
        assert slave.log_bytes() == log
        assert bodies(slave) == left
        assert ranges(slave)
        monkeypatch.setattr(frames, "encode_block", encode)
        monkeypatch.setattr(block_exchange, "AGAIN_MS", 0)
        await until(lambda: repaired(slave), master, slave)


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_follower_with_a_damaged_end_follows_and_is_repaired(
    tmp_path: Path, is_known: bool
) -> None:
    async with pair(tmp_path) as (master, slave):
        whole, log = bodies(slave), slave.log_bytes()
        await slave.depose()
        flip(slave, slave.end - 5)
        if is_known:
            bodies(slave)
            await until(lambda: damaged(slave), slave)
        await slave.follow_member(master, 1)
        await until(lambda: repaired(slave), master, slave)
        assert slave.log_bytes() == log
        assert bodies(slave) == whole


async def test_expired_blocks_are_not_given(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        flip(slave, PLACE)
        flip(slave, FILE_BYTES + 5_000)
        master.store.commit_log.forget_first(1)
        bodies(slave)
        await until(lambda: repaired(slave), master, slave)
        for _ in range(20):
            await work(master, slave)
        page = PLACE - PLACE % PAGE_BYTES
        assert ranges(slave) == ((page, page + PAGE_BYTES),)
        assert slave.state.following.state is FollowState.FOLLOWING


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    async with pair(tmp_path) as (master, slave):
        log = slave.log_bytes()
        flip(slave, PLACE)
        bodies(slave)
        assert isinstance(slave.disk, MemoryDisk)
        slave.disk.fault = lambda name, path: (
            5 if name == operation and "/commitlog/" in path else 0
        )
        await until(lambda: slave.log.named("log.unrepaired"), master, slave)
        assert damaged(slave)
        assert ranges(slave)
        slave.disk.fault = None
        monkeypatch.setattr(block_exchange, "AGAIN_MS", 0)
        await until(lambda: repaired(slave), master, slave)
        assert slave.log_bytes() == log
        assert slave.errors == []


async def test_a_kill_during_the_write_leaves_known_damage(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        whole, log = bodies(slave), slave.log_bytes()
        entries = [slave.rig.entry("T", 0, number) for number in range(COUNT // 2)]
        inside = [
            it for it in entries if BLOCK_BYTES < it.physical_offset < 2 * BLOCK_BYTES - it.size
        ]
        for entry in inside:  # the body of each message, in both halves of the block
            flip(slave, entry.physical_offset + 90)
        for place in range(BLOCK_BYTES + 1, 2 * BLOCK_BYTES, PAGE_BYTES):
            flip(slave, place, bits=2)
        left = bodies(slave)
        assert isinstance(slave.disk, MemoryDisk)
        (known,) = await torn(master, slave)
        assert known == (BLOCK_BYTES, 2 * BLOCK_BYTES)
        await slave.depose()
        await slave.driver.drain()
        disk = slave.disk
        disk.crash()
        disk.fault = None
        async with node(tmp_path, 1, disk=disk, files=slave.files) as again:
            assert damaged(again) == BLOCK_BYTES // 2
            found = bodies(again)
            assert left.items() <= found.items() <= whole.items()
            await again.follow_member(master, 1)
            await until(lambda: is_equal(again, master), master, again)
            await until(lambda: repaired(again), master, again)
            assert again.log_bytes() == log
            assert bodies(again) == whole


async def torn(master: MemberNode, slave: MemberNode) -> tuple[tuple[int, int], ...]:
    """Let the write of a repair end in the middle of the block; return the recorded damage."""
    disk = slave.disk
    assert isinstance(disk, MemoryDisk)
    opened = disk.open

    def tearing(path: str) -> Any:
        file = opened(path)
        if "/commitlog/" in path:
            write = file.write

            def half(offset: int, buffers: Any) -> None:
                write(offset, [bytes(buffers[0])[: BLOCK_BYTES // 2]])
                raise DiskError("write", path, 5)

            file.write = half  # type: ignore[method-assign]
        return file

    disk.open = tearing  # type: ignore[method-assign]
    await until(lambda: slave.log.named("log.unrepaired"), master, slave)
    disk.open = opened  # type: ignore[method-assign]
    return ranges(slave)
