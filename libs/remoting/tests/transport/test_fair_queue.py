# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester


def test_owners_are_served_in_turn():
    queue = FairQueue[str](100)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.put(Requester(item[0]), item)
    assert [queue.pop() for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    assert queue.put(Requester("b"), "b2")
    assert [queue.pop() for _ in range(3)] == ["c2", "a3", "b2"]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.pop()


def test_more_connections_get_no_more_turns():
    queue = FairQueue[str](100)
    for item in ("a1", "a2", "a3", "a4"):
        queue.put(Requester("a", item), item)
    queue.put(Requester("a", "a1"), "a1 again")
    queue.put(Requester("b", "b1"), "b1")
    queue.put(Requester("b", "b1"), "b1 again")
    served = [queue.pop() for _ in range(len(queue))]
    assert served == ["a1", "b1", "a2", "b1 again", "a3", "a4", "a1 again"]


def test_an_owner_leaves_room_for_others():
    queue = FairQueue[int](120)
    for name, count in (("a", 60), ("b", 30), ("c", 15)):
        owner = Requester(name)
        assert [queue.put(owner, number) for number in range(count + 1)] == [True] * count + [False]
    assert queue.put(Requester("d"), 1)
    for _ in range(100):
        queue.pop()
    assert queue.put(Requester("a"), 1)


def test_a_connection_leaves_room_for_others_of_its_owner():
    queue = FairQueue[int](120)
    for name, count in (("a1", 40), ("a2", 14), ("a3", 4)):
        requester = Requester("a", name)
        added = [queue.put(requester, number) for number in range(count + 1)]
        assert added == [True] * count + [False]
    assert queue.put(Requester("a", "a4"), 1)
    other = Requester("b", "b1")
    assert [queue.put(other, number) for number in range(22)] == [True] * 21 + [False]


def test_the_items_of_a_connection_may_be_taken():
    queue = FairQueue[int](100)
    for number in range(6):
        queue.put(Requester("a", number % 2), number)
    queue.put(Requester("b", 0), 6)
    assert queue.take(0) == [0, 2, 4, 6]
    assert queue.take(0) == []
    assert len(queue) == 3
    assert [queue.pop() for _ in range(3)] == [1, 3, 5]
    assert queue.take(1) == []
    with pytest.raises(IndexError):
        queue.pop()


def test_the_items_of_one_requester_are_taken_without_those_of_others() -> None:
    queue = FairQueue[int]()
    queue.put(Requester("a", 1), 1)
    queue.put(Requester("a", 2), 2)
    queue.put(Requester("b", 1), 3)
    assert queue.take_of(Requester("a", 1)) == [1]
    assert queue.take_of(Requester("a", 1)) == []
    assert queue.take_of(Requester("c", 1)) == []
    assert [queue.pop(), queue.pop()] == [2, 3]
    assert not queue


def test_an_item_may_come_before_the_others_of_its_connection():
    queue = FairQueue[str](100)
    for item in ("a1", "a2", "b1"):
        queue.put(Requester(item[0], item[0]), item)
    assert queue.put(Requester("a", "a"), "a0", is_first=True)
    assert [queue.pop() for _ in range(len(queue))] == ["a0", "b1", "a1", "a2"]


def test_the_first_items_that_are_over_are_removed():
    queue = FairQueue[str](100)
    for item in ("a1", "a2", "a3 over", "b1"):
        queue.put(Requester(item[0], "connection"), item)
    owner = Requester("a", "connection")
    queue.discard_first(owner, lambda item: item != "a2")
    assert len(queue) == 3
    queue.discard_first(Requester("c"), lambda _: True)
    queue.discard_first(owner, lambda _: True)
    assert [queue.pop() for _ in range(len(queue))] == ["b1"]
