# SPDX-License-Identifier: Apache-2.0
"""The driver of a store: confirmation by replicas, and truncation while the broker is running."""

import asyncio
import time
from typing import Any

import pytest

from cometmq.broker.storing.large_puts import LargePuts
from cometmq.broker.storing.store_driver import IDLE_INTERVAL_MS, LONG_COMMIT_S, TICK_INTERVAL_MS
from cometmq.remoting.errors import SystemBusy
from cometmq.store.errors import DiskError
from cometmq.store.index.index import ROWS_MAX
from cometmq.store.reads import Lookup, Read
from cometmq.store.results import PutStatus
from cometmq.testing.broker.replicas import Node
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk


async def test_sends_are_answered_once_their_offset_is_confirmed() -> None:
    async with Node() as node:
        node.store.writer.needs_replicas = True
        node.store.writer.may_replicate = lambda _end: True
        node.store.publisher.confirm(0)
        pending = [node.put(make_message(body=b"%d" % number)) for number in range(2)]
        await asyncio.sleep(0)
        end = node.end
        late = node.put(make_message(body=b"late"))
        await asyncio.sleep(0)
        assert node.store.reader.max_offset("T", 0) == 0
        flushed: list[None] = []
        node.driver.turn.wake.connect(lambda: flushed.append(None))
        node.driver.confirm(end)
        assert [result.status for one in pending for result in one] == [PutStatus.PUT_OK] * 2
        assert flushed
        assert not late
        assert node.driver.sends.waiting_count == 1
        assert node.store.reader.max_offset("T", 0) == 2


async def test_ticks_are_rare_while_nothing_is_written() -> None:
    async with Node(flush_commit_log_least_pages=1) as node:
        node.driver.tick()
        await node.driver.drain()
        node.driver.tick_interval_ms()
        assert node.driver.tick_interval_ms() == IDLE_INTERVAL_MS
        node.put(make_message())
        await asyncio.sleep(0)
        assert node.driver.tick_interval_ms() == TICK_INTERVAL_MS
        assert node.driver.tick_interval_ms() == IDLE_INTERVAL_MS  # the sync of less may wait
        for _ in range(50):
            node.put(make_message(body=bytes(100)))
        await asyncio.sleep(0)
        for _ in range(2):
            assert node.driver.tick_interval_ms() == TICK_INTERVAL_MS
        await node.driver.settle()
        assert node.driver.tick_interval_ms() == IDLE_INTERVAL_MS


async def test_many_keys_are_indexed_in_later_turns() -> None:
    async with Node(mapped_file_size_commit_log=1 << 20, max_index_num=20_000) as node:
        keys = " ".join(f"{number:x}" for number in range(6_700))
        pending = node.put(make_message(keys=keys))
        await asyncio.sleep(0)
        assert pending
        assert node.store.upkeep.index.is_behind
        turn_count = 0
        while node.store.upkeep.index.is_behind:
            turn_count += 1
            await asyncio.sleep(0)
        assert 1 < turn_count < 10

        node.put(make_message(keys=keys))
        await node.driver.drain()  # the store may be closed on a thread now
        assert not node.store.upkeep.index.is_behind


async def test_puts_that_waited_for_a_large_batch_have_a_turn_of_their_own() -> None:
    """Both in one turn took twice as long as the batch alone."""
    async with Node(mapped_file_size_commit_log=8 << 20) as node:
        messages = [make_message(body=b"%d" % number) for number in range(5_000)]
        steps = node.driver.put_large(messages, lambda _: None)
        next(steps)
        node.put(make_message(body=b"waits"))
        await asyncio.sleep(0)
        for _ in steps:
            pass
        assert node.store.reader.max_offset("T", 0) == 5_000
        await asyncio.sleep(0)
        assert node.store.reader.max_offset("T", 0) == 5_001


@pytest.mark.parametrize("is_slave", [False, True])
async def test_the_log_is_written_back_as_it_grows(
    is_slave: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.store.upkeep.flush.WRITEBACK_BYTES", 4_096)
    disk = MemoryDisk()
    size = 1 << 16
    async with (
        Node(disk, mapped_file_size_commit_log=size) as node,
        Node(mapped_file_size_commit_log=size) as master,
    ):
        source = master if is_slave else node
        for _ in range(12):
            source.put(make_message(body=bytes(900)))
            await asyncio.sleep(0)
        if is_slave:
            log = master.store.commit_log
            data = log.view_to_end().read(0, log.end, may_block=True)
            assert data is not None
            node.driver.append(0, data)
        await node.driver.drain()
        assert disk.writebacks
        assert all((offset + size) % 4_096 == 0 for _, offset, size in disk.writebacks)


async def test_commits_that_take_processor_time_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time during which other programs run does not count."""

    def work() -> None:
        end = time.thread_time() + 2 * LONG_COMMIT_S
        while time.thread_time() < end:
            pass

    def wait() -> None:
        time.sleep(2 * LONG_COMMIT_S)

    async with Node() as node:
        delay, commit, reported = wait, node.store.writer.commit, list[float]()

        def slow_commit(*given: Any) -> Any:
            delay()
            return commit(*given)

        monkeypatch.setattr(node.store.writer, "commit", slow_commit)
        node.driver.turn.took_long.connect(reported.append)
        for kind, count in ((wait, 0), (work, 2)):
            delay = kind
            for _ in range(3):
                node.put(make_message())
                await asyncio.sleep(0)
            assert len(reported) >= count
            assert bool(reported) == bool(count)
        assert min(reported) > LONG_COMMIT_S


async def test_a_turn_commits_a_lone_request() -> None:
    async with Node() as node:
        node.driver.begin_turn()
        mine = node.put(make_message())
        assert not mine
        node.driver.end_turn()
        assert [one.status for one in mine] == [PutStatus.PUT_OK]
        await asyncio.sleep(0)
        assert node.driver.commit_count == 1

        node.driver.begin_turn()
        node.driver.end_turn()
        assert node.driver.commit_count == 1
        later = node.put(make_message())
        await asyncio.sleep(0)
        assert [one.status for one in later] == [PutStatus.PUT_OK]


async def test_a_turn_with_several_requests_leaves_them_to_the_next() -> None:
    async with Node() as node:
        node.driver.begin_turn()
        pending = [node.put(make_message()) for _ in range(2)]
        node.driver.end_turn()
        assert node.driver.commit_count == 0
        await asyncio.sleep(0)
        assert [one.status for each in pending for one in each] == [PutStatus.PUT_OK] * 2
        assert node.driver.commit_count == 1


async def test_a_turn_leaves_its_messages_to_a_commit_that_is_scheduled() -> None:
    async with Node() as node:
        earlier = node.put(make_message())
        node.driver.begin_turn()
        mine = node.put(make_message())
        node.driver.end_turn()
        assert not mine
        await asyncio.sleep(0)
        assert [one.status for one in earlier + mine] == [PutStatus.PUT_OK] * 2
        assert node.driver.commit_count == 1


async def test_a_turn_that_stages_too_much_commits_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.broker.storing.store_driver.STAGED_BYTES_MAX", 100)
    async with Node() as node:
        node.driver.begin_turn()
        first = node.put(make_message(body=b"x" * 101))
        assert [one.status for one in first] == [PutStatus.PUT_OK]
        second = node.put(make_message())
        node.driver.end_turn()
        await asyncio.sleep(0)
        assert [one.status for one in second] == [PutStatus.PUT_OK]


async def test_what_answers_stage_waits_for_the_next_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.broker.storing.store_driver.STAGED_BYTES_MAX", 100)
    async with Node() as node:
        seen: list[int] = []

        def stage_more(_: object) -> None:
            for _ in range(3):
                node.driver.put(make_message(body=b"x" * 101), lambda _: None)
            seen.append(node.store.reader.max_offset("T", 0))

        node.driver.put(make_message(), stage_more)
        node.driver.commit()
        assert seen == [0]
        assert node.store.reader.max_offset("T", 0) == 1
        await asyncio.sleep(0)
        assert node.store.reader.max_offset("T", 0) == 4


async def test_a_running_broker_truncates_its_log() -> None:
    async with Node() as node:
        for number in range(50):
            node.put(make_message(body=b"%d" % number))
        await asyncio.sleep(0)
        node.driver.tick()  # a sync is running
        border = node.rig.entry("T", 0, 20).physical_offset
        node.store.writer.needs_replicas = True
        node.store.writer.may_replicate = lambda _end: True
        waiting = node.put(make_message(body=b"unreplicated"))
        await asyncio.sleep(0)
        assert not waiting
        truncated: list[int] = []
        node.driver.turn.cut.connect(lambda: truncated.append(node.end))
        node.store.write_state.role_writable = False
        truncation = asyncio.get_running_loop().create_task(node.driver.truncate(border))
        await asyncio.sleep(0)
        node.driver.tick()  # starts no job in between
        errors: list[Exception] = []
        node.driver.reads.look_up(_one_read(node), _unexpected, errors.append)
        assert [type(error) for error in errors] == [SystemBusy]
        with pytest.raises(SystemBusy, match="truncated"):
            node.driver.reads.read(None, pytest.fail, pytest.fail)  # type: ignore[arg-type]
        await truncation
        assert truncated == [border]
        assert [result.status for result in waiting] == [PutStatus.SERVICE_NOT_AVAILABLE]
        assert node.store.reader.max_offset("T", 0) == 20
        node.store.write_state.role_writable = True
        node.store.writer.needs_replicas = False
        (stored,) = await _stored(node)
        assert stored.queue_offset == 20


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_a_truncation_waits_for_a_large_put_and_its_keys(turns: int) -> None:
    sizes: dict[str, Any] = {"max_hash_slot_num": 1_000, "max_index_num": 100_000}
    async with Node(**sizes, mapped_file_size_commit_log=1 << 20) as node:
        node.put(make_message())
        await asyncio.sleep(0)
        border = node.end
        keys = " ".join(f"{number}" for number in range(2 * ROWS_MAX))
        puts = LargePuts(node.driver)
        puts.put([make_message(keys=keys)] * 10, lambda _: None)
        async with asyncio.timeout(60):
            while node.end == border:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        index = node.store.upkeep.index
        node.store.write_state.role_writable = False
        truncate, calls, catch_up = node.store.truncate, list[str](), index.catch_up

        def noted(rows_max: int = 1 << 30) -> bool:
            calls.append("index")
            return catch_up(rows_max)

        def slow(offset: int) -> None:
            calls.append("truncate")
            time.sleep(0.1)  # the loop runs meanwhile
            calls.append("truncated")
            truncate(offset)

        index.catch_up, node.store.truncate = noted, slow  # type: ignore[method-assign]
        await node.driver.truncate(border)
        assert "index" in calls
        assert calls[calls.index("truncate") + 1] == "truncated"
        await puts.drain()


async def test_a_truncation_that_fails_is_final() -> None:
    async with Node() as node:
        node.put(make_message())
        await asyncio.sleep(0)
        node.store.write_state.role_writable = False
        disk: Any = node.disk
        disk.fault = lambda operation, _path: 5 if operation == "sync" else 0
        with pytest.raises(DiskError):
            await node.driver.truncate(0)
        disk.fault = None
        assert "sync-failed" in node.store.write_state.refusals


def _unexpected(found: int) -> None:
    raise AssertionError(found)


def _one_read(node: Node) -> Lookup[int]:
    file = node.store.commit_log.files.files[0]
    return len((yield Read(file, 0, 1)))


async def _stored(node: Node) -> list[Any]:
    results = node.put(make_message())
    await asyncio.sleep(0)
    return results
