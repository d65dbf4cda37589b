# SPDX-License-Identifier: Apache-2.0

from collections import Counter
from typing import Any, NamedTuple

from cometmq.broker.statistics.lag_times import STEP_GROUPS_MAX, STEP_SEARCHES_MAX, LagTimes
from cometmq.broker.tables.offsets import Offsets


class Queue(NamedTuple):
    queues: Any
    key: tuple[str, int]

    @property
    def min_offset(self):
        return self.queues.firsts.get(self.key, 0)

    @property
    def max_offset(self):
        return self.queues.max_offset(*self.key)


class Queues:
    """Queues in memory; the message at offset n was stored at 1000 + n."""

    def __init__(self, ends, firsts=None):
        self.ends = ends
        self.firsts = firsts or {}
        self.made = {}
        self.began_ms = 1000
        self.searches: Counter[tuple[str, int, int]] = Counter()

    @property
    def bounds(self):
        return sum(self.firsts.values()), sum(self.ends.values())

    def queue(self, topic, queue_id):
        return self.made.setdefault((topic, queue_id), Queue(self, (topic, queue_id)))

    def queue_count(self, topic):
        return max((queue_id + 1 for name, queue_id in self.ends if name == topic), default=0)

    def max_offset(self, topic, queue_id):
        return self.ends.get((topic, queue_id), 0)

    def store_time(self, topic, queue_id, offset):
        yield from ()
        self.searches[topic, queue_id, offset] += 1
        return self.began_ms + offset if 0 <= offset < self.max_offset(topic, queue_id) else -1


def run_at_once(lookup, done, _failed):
    try:
        next(lookup)
    except StopIteration as end:
        done(end.value)
    else:
        raise AssertionError("these queues never wait for a disk")


def step(times, offsets, queues, count=4, groups=()):
    for _ in range(count):
        times.step(offsets, groups, queues, run_at_once)


def offsets_of(*committed):
    offsets = Offsets()
    for group, topic, queue_id, offset in committed:
        offsets.commit(group, topic, queue_id, offset)
    return offsets


def test_the_oldest_unread_message_of_all_queues_counts():
    queues = Queues({("T", 0): 50, ("T", 1): 50, ("U", 0): 7})
    offsets = offsets_of(("G", "T", 0, 40), ("G", "T", 1, 20), ("G", "U", 0, 7))
    times = LagTimes()
    step(times, offsets, queues)
    assert times.oldest_ms == {("T", "G"): 1020}


def test_queues_without_an_offset_of_the_group_count():
    """Their messages are in its lag: of a queue that it has not reached, and of its retry topic."""
    queues = Queues({("T", 0): 50, ("T", 1): 3, ("%RETRY%G", 0): 2, ("%RETRY%H", 1): 3})
    offsets = offsets_of(("G", "T", 0, 40))
    times = LagTimes()
    step(times, offsets, queues, groups=["H"])
    assert times.oldest_ms == {("T", "G"): 1000, ("%RETRY%G", "G"): 1000, ("%RETRY%H", "H"): 1000}
    offsets.commit("H", "%RETRY%H", 1, 2)
    offsets.drop_group("G")
    step(times, offsets, queues, groups=["H"])
    assert times.oldest_ms == {("%RETRY%H", "H"): 1002}
    queues.ends.clear()
    step(times, offsets, queues, groups=["H"])
    assert times.oldest_ms == {}


def test_a_message_is_searched_once_while_it_is_the_next():
    queues = Queues({("T", 0): 50})
    offsets = offsets_of(("G", "T", 0, 40))
    times = LagTimes()
    step(times, offsets, queues, 10)
    assert queues.searches == {("T", 0, 40): 1}
    offsets.commit("G", "T", 0, 45)
    step(times, offsets, queues)
    assert times.oldest_ms == {("T", "G"): 1045}


def test_a_group_that_has_read_all_or_is_gone_is_forgotten():
    queues = Queues({("T", 0): 50, ("U", 0): 50})
    offsets = offsets_of(("G", "T", 0, 40), ("H", "U", 0, 1))
    times = LagTimes()
    step(times, offsets, queues)
    assert len(times.oldest_ms) == 2
    offsets.commit("G", "T", 0, 50)
    offsets.drop_group("H")
    step(times, offsets, queues)
    assert times.oldest_ms == {}


def test_a_deleted_message_has_no_age():
    """The oldest message that still exists is the group's next one."""
    queues = Queues({("T", 0): 50}, {("T", 0): 30})
    times = LagTimes()
    step(times, offsets_of(("G", "T", 0, 3)), queues)
    assert times.oldest_ms == {("T", "G"): 1030}
    queues.firsts["T", 0] = 40
    step(times, offsets_of(("G", "T", 0, 3)), queues)
    assert times.oldest_ms == {("T", "G"): 1040}
    queues.firsts["T", 0] = 50
    step(times, offsets_of(("G", "T", 0, 3)), queues)
    assert times.oldest_ms == {}


def test_a_topic_that_was_created_again_has_ages_of_its_own():
    """Its messages have the offsets of the old ones, and groups keep their offsets."""
    queues = Queues({("T", 0): 50})
    offsets, times = offsets_of(("G", "T", 0, 3)), LagTimes()
    step(times, offsets, queues)
    assert times.oldest_ms == {("T", "G"): 1003}
    queues.made.clear()
    queues.began_ms, queues.ends["T", 0] = 7000, 60
    step(times, offsets, queues)
    assert times.oldest_ms == {("T", "G"): 7003}


def test_a_step_has_a_bound_and_the_next_continues():
    count = 2 * STEP_SEARCHES_MAX + 1
    queues = Queues({(f"T{n}", 0): 9 for n in range(count)})
    offsets = offsets_of(*(("G", f"T{n}", 0, 1) for n in range(count)))
    times = LagTimes()
    step(times, offsets, queues, 2)  # the first step only begins the round
    assert sum(queues.searches.values()) == STEP_SEARCHES_MAX
    step(times, offsets, queues, 3)
    assert len(times.oldest_ms) == count


def test_a_step_visits_a_bounded_number_of_groups_even_if_none_lags():
    class Ends(Queues):
        asked = 0

        def max_offset(self, topic, queue_id):
            self.asked += 1
            return super().max_offset(topic, queue_id)

    queues = Ends({("T", 0): 9})
    offsets = offsets_of(*((f"G{n}", "T", 0, 9) for n in range(2 * STEP_GROUPS_MAX)))
    times = LagTimes()
    step(times, offsets, queues, 2)  # the first step only begins the round
    assert queues.asked == STEP_GROUPS_MAX
    step(times, offsets, queues, 1)
    assert queues.asked == 2 * STEP_GROUPS_MAX


def test_nothing_is_visited_while_nothing_changes():
    class Counted(Queues):
        visits = 0

        def queue(self, topic, queue_id):
            self.visits += 1
            return super().queue(topic, queue_id)

    queues = Counted({("T", 0): 50, ("U", 0): 50})
    offsets = offsets_of(("G", "T", 0, 40), ("H", "U", 0, 50))
    times = LagTimes()
    step(times, offsets, queues, 9)
    done = queues.visits
    assert done
    step(times, offsets, queues, 9)
    assert queues.visits == done
    offsets.commit("G", "T", 0, 45)
    step(times, offsets, queues)
    assert times.oldest_ms == {("T", "G"): 1045}
    queues.ends["U", 0] = 51
    step(times, offsets, queues)
    assert times.oldest_ms == {("T", "G"): 1045, ("U", "H"): 1050}
    queues.firsts["T", 0] = 47
    step(times, offsets, queues)
    assert times.oldest_ms[("T", "G")] == 1047
    offsets.drop_group("G")
    step(times, offsets, queues)
    assert times.oldest_ms == {("U", "H"): 1050}


def test_a_failed_search_does_not_end_the_measurement():
    queues = Queues({("T", 0): 50, ("U", 0): 50})
    offsets = offsets_of(("G", "T", 0, 40), ("G", "U", 0, 1))
    times: Any = LagTimes()

    def fail(lookup, _done, failed):
        lookup.close()
        failed(OSError())

    times.step(offsets, (), queues, fail)
    step(times, offsets, queues)
    assert len(times.oldest_ms) == 2


def test_no_step_begins_while_one_waits_for_the_disk():
    begun = []
    times: Any = LagTimes()
    for _ in range(2):
        times.step(Offsets(), (), Queues({}), lambda lookup, *_: begun.append(lookup))
    assert len(begun) == 1
    begun[0].close()
