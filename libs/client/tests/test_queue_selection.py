# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.errors import InvalidArgument
from cometmq.client.transfer.queue_selection import (
    LatencyFaults,
    RoundRobin,
    back_off_ms,
    by_hash,
    by_random,
    java_hash_code,
)
from cometmq.remoting.bodies.queues import MessageQueue

QUEUES = [MessageQueue("T", name, number) for name in ("a", "b") for number in range(2)]


def test_round_robin_visits_every_queue_in_turn() -> None:
    robin = RoundRobin(start=1)
    assert [robin.choose(QUEUES) for _ in range(4)] == [QUEUES[1], QUEUES[2], QUEUES[3], QUEUES[0]]


def test_a_retry_goes_to_another_broker() -> None:
    robin = RoundRobin()
    chosen = {robin.choose(QUEUES, not_broker="a").broker_name for _ in range(20)}
    assert chosen == {"b"}


def test_the_only_broker_is_tried_again() -> None:
    assert RoundRobin().choose(QUEUES[:2], not_broker="a").broker_name == "a"


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [(0, 0), (99, 0), (549, 0), (550, 2000), (1800, 5000), (14999, 10000), (15000, 30000)],
)
def test_slow_brokers_are_left_out_for_longer(latency_ms: int, expected: int) -> None:
    assert back_off_ms(latency_ms) == expected


def test_a_failed_broker_is_left_out_until_its_time_is_over() -> None:
    faults, robin = LatencyFaults(), RoundRobin()
    faults.note("a", 3, now_ms=1000, failed=True)
    early = {faults.choose(robin, QUEUES, now_ms=30_999).broker_name for _ in range(10)}
    late = {faults.choose(robin, QUEUES, now_ms=31_000).broker_name for _ in range(10)}
    assert (early, late) == ({"b"}, {"a", "b"})


def test_when_all_are_left_out_the_better_half_serves() -> None:
    faults, robin = LatencyFaults(), RoundRobin()
    faults.note("a", 20_000, now_ms=0)
    faults.note("b", 2000, now_ms=0)
    assert {faults.choose(robin, QUEUES, now_ms=1).broker_name for _ in range(10)} == {"b"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("TagA", 2598919), (17, 17), (-5, -5), (True, 1231), (1 << 32, 1), (-(1 << 33), -2)],
)
def test_hash_codes_equal_java(value: object, expected: int) -> None:
    assert java_hash_code(value) == expected


@given(st.text() | st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_one_key_always_meets_one_queue(key: object) -> None:
    assert by_hash(QUEUES, None, key) is by_hash(QUEUES, None, key)


def test_a_key_without_java_hash_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"not 1\.5"):
        by_hash(QUEUES, None, 1.5)


def test_a_random_queue_is_any_of_them() -> None:
    assert {by_random(QUEUES, None, None) for _ in range(200)} == set(QUEUES)
