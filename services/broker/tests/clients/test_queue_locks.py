# SPDX-License-Identifier: Apache-2.0


from cometmq.broker.clients.queue_locks import LOCK_LIFE_MS, QueueLocks
from cometmq.remoting.bodies.queues import MessageQueue

Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


def test_a_held_queue_is_refused_to_other_clients_of_the_group() -> None:
    locks = QueueLocks()

    assert locks.lock("G", "one", [Q0], now_ms=0) == [Q0]
    assert locks.lock("G", "two", [Q0, Q1], now_ms=1) == [Q1]
    assert locks.lock("G", "one", [Q0, Q1], now_ms=2) == [Q0]


def test_groups_lock_independently() -> None:
    locks = QueueLocks()

    assert locks.lock("G", "one", [Q0], now_ms=0) == [Q0]
    assert locks.lock("H", "two", [Q0], now_ms=0) == [Q0]


def test_a_lock_is_taken_over_only_after_it_expires() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", [Q0], now_ms=0)

    assert locks.lock("G", "two", [Q0], now_ms=LOCK_LIFE_MS) == []
    assert locks.lock("G", "two", [Q0], now_ms=LOCK_LIFE_MS + 1) == [Q0]
    assert locks.lock("G", "one", [Q0], now_ms=LOCK_LIFE_MS + 2) == []


def test_locking_again_renews() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", [Q0], now_ms=0)
    locks.lock("G", "one", [Q0], now_ms=LOCK_LIFE_MS)

    assert locks.lock("G", "two", [Q0], now_ms=LOCK_LIFE_MS + 1) == []


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", [Q0], now_ms=0)

    locks.unlock("G", "two", [Q0])
    assert locks.lock("G", "two", [Q0], now_ms=1) == []

    locks.unlock("G", "one", [Q0])
    assert locks.lock("G", "two", [Q0], now_ms=1) == [Q0]


def test_expired_locks_take_no_memory() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", [Q0, Q1], now_ms=0)
    locks.lock("H", "one", [Q0], now_ms=LOCK_LIFE_MS)

    assert locks.expire(now_ms=LOCK_LIFE_MS + 1) == 2
    assert locks.count == 1


def test_cleared_locks_are_free():
    locks = QueueLocks()
    locks.lock("g", "a", [MessageQueue("T", "b", 0)], now_ms=0)

    locks.clear()

    assert locks.count == 0
    assert locks.lock("g", "b", [MessageQueue("T", "b", 0)], now_ms=1)


def test_the_version_changes_with_the_holders_but_not_with_renewals() -> None:
    locks = QueueLocks()
    versions = [locks.version]

    def has_changed() -> bool:
        versions.append(locks.version)
        return versions[-1] != versions[-2]

    locks.lock("G", "one", [Q0], now_ms=0)
    assert has_changed()
    locks.lock("G", "one", [Q0], now_ms=1)
    locks.lock("G", "two", [Q0], now_ms=2)
    locks.renew(locks.held("G", "one", [Q0]).values(), now_ms=3)
    locks.unlock("G", "two", [Q0])
    locks.expire(now_ms=3 + LOCK_LIFE_MS)
    assert not has_changed()
    locks.lock("G", "two", [Q0], now_ms=4 + LOCK_LIFE_MS)
    assert has_changed()
    locks.unlock("G", "two", [Q0])
    assert has_changed()
    locks.lock("G", "one", [Q0], now_ms=0)
    assert has_changed()
    locks.expire(now_ms=LOCK_LIFE_MS + 1)
    assert has_changed()
    locks.clear()
    assert has_changed()
