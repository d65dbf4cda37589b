# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.runtime.fair_queue import FairQueue


def test_keys_are_served_in_turn():
    queue = FairQueue[str](100)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.put(item[0], item)
    assert [queue.pop() for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    assert queue.put("b", "b2")
    assert [queue.pop() for _ in range(3)] == ["c2", "a3", "b2"]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.pop()


def test_a_key_leaves_room_for_others():
    queue = FairQueue[int](120)
    for key, count in (("a", 60), ("b", 30), ("c", 15)):
        assert [queue.put(key, number) for number in range(count + 1)] == [True] * count + [False]
    assert queue.put("d", 1)
    for _ in range(100):
        queue.pop()
    assert queue.put("a", 1)


def test_the_items_of_a_key_may_be_taken():
    queue = FairQueue[int](100)
    for number in range(6):
        queue.put(number % 2, number)
    assert list(queue.take(0)) == [0, 2, 4]
    assert list(queue.take(0)) == []
    assert len(queue) == 3
    assert [queue.pop() for _ in range(3)] == [1, 3, 5]
