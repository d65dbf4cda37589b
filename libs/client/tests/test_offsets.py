# SPDX-License-Identifier: Apache-2.0
import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.consume.queues.offset_file import OffsetFile
from cometmq.client.consume.queues.offsets import LocalOffsets, Positions, RemoteOffsets
from cometmq.client.testing import eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.commands.offsets import (
    QueryConsumerOffset,
    QueryConsumerOffsetReply,
    UpdateConsumerOffset,
)
from cometmq.remoting.errors import CommandError, QueryNotFound, SystemBusy
from cometmq.remoting.log import NO_LOG

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def test_an_offset_goes_back_only_on_request() -> None:
    positions = Positions()
    positions.update(A, 5, is_reset=False)
    positions.update(A, 3, is_reset=False)
    assert positions.offsets == {A: 5}
    positions.update(A, 3, is_reset=True)
    assert positions.offsets == {A: 3}


def test_only_moved_offsets_are_unsaved() -> None:
    positions = Positions()
    positions.update(A, 5, is_reset=False)
    positions.unsaved_queues.clear()
    positions.update(A, 5, is_reset=False)
    assert not positions.unsaved_queues
    positions.update(A, 6, is_reset=False)
    positions.forget(A)
    assert not positions.unsaved_queues
    assert not positions.offsets


async def test_a_file_keeps_offsets(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "offsets.json"
    store = LocalOffsets(path)
    assert await store.read(A) is None
    store.update(A, 7)
    store.update(B, 9)
    await store.persist([A, B])
    again = LocalOffsets(path)
    assert [await again.read(queue) for queue in (A, B)] == [7, 9]


async def test_a_torn_file_is_replaced_by_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    for offset in (7, 8):
        store.update(A, offset)
        await store.persist([A])
    path.write_bytes(path.read_bytes()[:10])
    assert await LocalOffsets(path).read(A) == 7


async def test_a_damaged_file_does_not_replace_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two renames of one save must leave a readable file."""
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    for offset in (7, 8):
        store.update(A, offset)
        await store.persist([A])
    path.write_bytes(b"")
    again = LocalOffsets(path)
    assert await again.read(A) == 7
    again.update(A, 9)

    replace = Path.replace

    def crash(source: Path, target: Path) -> Path:
        if target == path:
            raise OSError(f"crash before {target}")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", crash)
    await again.persist([A])
    monkeypatch.undo()
    assert await LocalOffsets(path).read(A) == 7
    await again.persist([A])
    assert await LocalOffsets(path).read(A) == 9


async def test_a_file_of_the_java_client_is_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:12\n}\n}')
    assert await LocalOffsets(path).read(A) == 12


async def test_the_file_is_written_only_after_a_move(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    store.update(A, 7)
    await store.persist([B])
    assert not path.exists()


async def test_a_file_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    (tmp_path / "deep").write_bytes(b"no folder")
    path = tmp_path / "deep" / "offsets.json"
    store = LocalOffsets(path)
    store.update(A, 7)
    await store.persist([A])
    (tmp_path / "deep").unlink()
    await store.persist([A])
    assert await LocalOffsets(path).read(A) == 7


async def test_an_awaited_commit_raises_if_the_file_is_not_writable(
    tmp_path: Path,
) -> None:
    (tmp_path / "deep").write_bytes(b"no folder")
    store = LocalOffsets(tmp_path / "deep" / "offsets.json")
    store.update(A, 7)
    with pytest.raises(OSError, match="deep"):
        await store.commit([A])


async def test_moves_during_a_write_are_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    replace = Path.replace

    def replace_late(source: Path, target: Path) -> Path:
        store.update(A, 8)
        return replace(source, target)

    store.update(A, 7)
    monkeypatch.setattr(Path, "replace", replace_late)
    await store.persist([A])
    monkeypatch.undo()
    await store.persist([A])
    assert await LocalOffsets(path).read(A) == 8


async def test_a_write_waits_for_the_thread_of_a_cancelled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    steps: list[tuple[str, int]] = []
    gate, save = threading.Event(), OffsetFile.save

    def save_late(file: OffsetFile, table: Mapping[MessageQueue, int]) -> None:
        steps.append(("begins", table[A]))
        assert gate.wait(60)
        save(file, table)
        steps.append(("ended", table[A]))

    monkeypatch.setattr(OffsetFile, "save", save_late)
    store.update(A, 7)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(store.commit([A]))
        await eventually(lambda: steps == [("begins", 7)])
        first.cancel()
        await asyncio.wait({first})
        store.update(A, 8)
        second = group.create_task(store.commit([A]))
        await asyncio.wait({second}, timeout=0.2)  # time for an error
        gate.set()
    assert steps == [("begins", 7), ("ended", 7), ("begins", 8), ("ended", 8)]
    assert await LocalOffsets(path).read(A) == 8


class FakeInstance:
    """A client instance with a broker that refuses or disturbs commits on request."""

    def __init__(self) -> None:
        self.log = NO_LOG
        self.remoting = self.routes = self.brokers = self
        self.commits: list[tuple[int, int]] = []
        self.answered: list[int] = []
        self.refusal: CommandError | None = None
        self.stored = 0
        self.masters: dict[str, str] = {}
        self.meanwhile = lambda: None

    def any_of(self, broker_name: str) -> tuple[int, str]:
        return 0, self.masters.get(broker_name, broker_name)

    def channel(self, address: str) -> str:
        return address

    async def invoke_oneway(self, _address: str, _code: int, header: Any, **_: Any) -> None:
        self.commits.append((header.queue_id, header.commit_offset))
        self.meanwhile()

    async def invoke(
        self, _address: str, _code: int, header: Any, *_: Any, ok: Any = (), **__: Any
    ) -> Any:
        if self.refusal is not None and self.refusal.code not in ok:
            raise self.refusal
        if isinstance(header, UpdateConsumerOffset):
            self.answered.append(header.commit_offset)
        code = 0 if self.refusal is None else self.refusal.code
        return SimpleNamespace(code=code, header=QueryConsumerOffsetReply(self.stored))


async def test_a_queue_that_is_lost_while_others_are_stored_is_left_out() -> None:
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, 7)
    store.update(B, 9)
    instance.meanwhile = lambda: (store.forget(A), store.forget(B))  # type: ignore[assignment]
    await store.persist([A, B])
    assert len(instance.commits) == 1


async def test_an_unmoved_offset_is_not_written_back() -> None:
    """The previous owner of the queue may have stored a higher offset since we read it."""
    instance = FakeInstance()
    instance.stored = 7
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, await store.read(A) or 0)
    await store.persist([A])
    assert instance.commits == []
    assert (store.position(A), store.unsaved(A)) == (7, None)
    store.update(A, 8)
    assert store.unsaved(A) == 8
    await store.persist([A])
    store.update(A, 7, is_reset=True)
    await store.persist([A])
    assert [offset for _, offset in instance.commits] == [8, 7]


async def test_an_unconfirmed_offset_is_sent_twice() -> None:
    """After the commit, Java's broker may still handle an earlier pull, which carries an older
    offset.
    """
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, 7)
    for _ in range(4):
        await store.persist([A])
    store.update(A, 8)
    await store.persist([A])
    store.update(A, 9)
    for _ in range(3):
        await store.persist([A])
    assert [offset for _, offset in instance.commits] == [7, 7, 8, 9, 9]
    assert store.unsaved(A) is None


async def test_an_unconfirmed_offset_is_committed_again() -> None:
    """Either oneway commit may be lost, with the connection or in a broker's queue."""
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, 7)
    for _ in range(3):
        await store.persist([A])
    assert instance.answered == []
    for _ in range(2):
        await store.commit([A])
    assert [offset for _, offset in instance.commits] == [7, 7]
    assert instance.answered == [7]


async def test_an_unconfirmed_offset_is_sent_again_to_another_master() -> None:
    """The former master may have refused it, which a oneway request cannot report."""
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, 7)
    store.update(B, 9)
    await store.commit([B])
    for _ in range(3):
        await store.persist([A, B])
    instance.masters["a"] = "another"
    await store.persist([B])  # a queue of another member is left alone
    assert [offset for _, offset in instance.commits] == [7, 7]
    for _ in range(3):
        await store.persist([A, B])
    assert [offset for _, offset in instance.commits] == [7, 7, 7, 7]


async def test_a_confirmed_offset_is_sent_once() -> None:
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, 7)
    await store.commit([A])
    await store.persist([A])
    assert instance.commits == []


class ForgetfulBroker(FakeInstance):
    """Like Java's broker, loses concurrent first commits, because each replaces the other's
    table.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, dict[int, int]] = {}

    async def invoke(self, _address: str, _code: int, header: Any, *_: Any, **__: Any) -> Any:
        table = self.tables.get(header.topic)
        await asyncio.sleep(0)
        if isinstance(header, QueryConsumerOffset):
            stored = (table or {}).get(header.queue_id, 0)
            return SimpleNamespace(code=0, header=QueryConsumerOffsetReply(stored))
        if table is None:
            table = self.tables[header.topic] = {}
        table[header.queue_id] = header.commit_offset
        return SimpleNamespace()


async def test_of_a_groups_first_offsets_none_is_forgotten() -> None:
    broker = ForgetfulBroker()
    store = RemoteOffsets(broker, "g")  # type: ignore[arg-type]
    queues = [MessageQueue(topic, "a", number) for topic in "TU" for number in range(4)]
    for offset in (7, 8):
        for queue in queues:
            store.update(queue, offset)
        await store.commit(queues)
        assert broker.tables == dict.fromkeys("TU", dict.fromkeys(range(4), offset))


async def test_a_beginning_that_the_broker_does_not_know_is_stored() -> None:
    """Brokers also answer 0 for young queues, so a 0 may mean that nothing is stored."""
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    store.update(A, await store.read(A) or 0)
    store.update(B, 5)
    await store.persist([A, B])
    assert sorted(offset for _, offset in instance.commits) == [0, 5]


async def test_only_the_answer_that_there_is_no_offset_means_that_there_is_none() -> None:
    """A busy broker must not send the group to the end of the queue."""
    instance = FakeInstance()
    store = RemoteOffsets(instance, "g")  # type: ignore[arg-type]
    instance.refusal = QueryNotFound("not found")
    assert await store.read(A) is None
    instance.refusal = SystemBusy("busy")
    with pytest.raises(SystemBusy):
        await store.read(A)
