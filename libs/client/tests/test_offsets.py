# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from cometmq.client.offsets import LocalOffsets, Positions
from cometmq.remoting.bodies.queues import MessageQueue

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def test_an_offset_goes_back_only_on_request() -> None:
    positions = Positions()
    positions.update(A, 5, is_reset=False)
    positions.update(A, 3, is_reset=False)
    assert positions.offsets == {A: 5}
    positions.update(A, 3, is_reset=True)
    assert positions.offsets == {A: 3}


def test_only_what_moved_is_unsaved() -> None:
    positions = Positions()
    positions.update(A, 5, is_reset=False)
    positions.unsaved.clear()
    positions.update(A, 5, is_reset=False)
    assert not positions.unsaved
    positions.update(A, 6, is_reset=False)
    positions.forget(A)
    assert not positions.unsaved
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


async def test_a_file_of_the_java_client_is_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:12\n}\n}')
    assert await LocalOffsets(path).read(A) == 12


async def test_nothing_is_written_when_nothing_moved(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    store.update(A, 7)
    await store.persist([B])
    assert not path.exists()
