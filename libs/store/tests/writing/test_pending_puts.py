# SPDX-License-Identifier: Apache-2.0
from itertools import product

import pytest

from cometmq.store.results import PutResult, PutStatus
from cometmq.store.writing.pending_puts import Condition, Conditions, PendingPuts

FLUSHED = (Condition.FLUSHED,)
REPLICATED = (Condition.REPLICATED,)
BOTH = FLUSHED + REPLICATED


class Puts:
    """Pending puts, and the statuses of the answered ones in order."""

    def __init__(self) -> None:
        self.pending = PendingPuts({Condition.FLUSHED: 0, Condition.REPLICATED: 0})
        self.answered: list[tuple[int, PutStatus]] = []

    def add(self, offset: int, needs: Conditions, now_ms: int = 0) -> None:
        def done(result: PutResult) -> None:
            self.answered.append((offset, result.status))

        self.pending.add(offset, needs, now_ms, done, PutResult(PutStatus.PUT_OK))


@pytest.fixture
def puts() -> Puts:
    return Puts()


@pytest.mark.parametrize(
    ("needs", "flushed", "replicated"),
    list(product([FLUSHED, REPLICATED, BOTH], [9, 10], [9, 10])),
)
def test_a_put_is_answered_when_all_its_conditions_hold(
    puts: Puts, needs: Conditions, flushed: int, replicated: int
) -> None:
    puts.add(10, needs)
    puts.pending.advance(Condition.FLUSHED, flushed)
    puts.pending.advance(Condition.REPLICATED, replicated)
    holds = (flushed >= 10 or Condition.FLUSHED not in needs) and (
        replicated >= 10 or Condition.REPLICATED not in needs
    )
    assert puts.answered == ([(10, PutStatus.PUT_OK)] if holds else [])
    assert len(puts.pending) == (not holds)


def test_puts_are_answered_in_the_order_of_the_log(puts: Puts) -> None:
    puts.add(10, BOTH)
    puts.add(20, REPLICATED)
    puts.pending.advance(Condition.REPLICATED, 20)
    assert puts.answered == []
    puts.pending.advance(Condition.FLUSHED, 10)
    assert puts.answered == [(10, PutStatus.PUT_OK), (20, PutStatus.PUT_OK)]


@pytest.mark.parametrize(
    ("needs", "met", "at_ms", "status"),
    [
        (FLUSHED, (), 6_000, PutStatus.FLUSH_DISK_TIMEOUT),
        (REPLICATED, (), 4_000, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (BOTH, (), 6_000, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (BOTH, FLUSHED, 4_000, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (BOTH, REPLICATED, 6_000, PutStatus.FLUSH_DISK_TIMEOUT),
    ],
)
def test_a_put_that_times_out_names_the_last_unmet_condition(
    puts: Puts, needs: Conditions, met: Conditions, at_ms: int, status: PutStatus
) -> None:
    puts.add(10, needs, now_ms=1_000)
    for condition in met:
        puts.pending.advance(condition, 10)
    puts.pending.expire(at_ms - 1, (5_000, 3_000))
    assert puts.answered == []
    puts.pending.expire(at_ms, (5_000, 3_000))
    assert puts.answered == [(10, status)]


def test_a_status_that_was_set_before_is_kept_unless_the_put_fails(puts: Puts) -> None:
    answered = []

    def done(result: PutResult) -> None:
        answered.append(result.status)

    for _ in range(2):
        result = PutResult(PutStatus.SLAVE_NOT_AVAILABLE)
        puts.pending.add(10, FLUSHED, 0, done, result)
        puts.pending.add(20, FLUSHED, 0, done, PutResult(PutStatus.SLAVE_NOT_AVAILABLE))
        puts.pending.advance(Condition.FLUSHED, 10)
        puts.pending.fail()
        puts.pending.retreat(0)
    assert answered == [PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.SERVICE_NOT_AVAILABLE] * 2


def test_offsets_of_a_truncated_log_count_no_more(puts: Puts) -> None:
    puts.pending.advance(Condition.REPLICATED, 50)
    puts.pending.retreat(20)
    puts.add(30, REPLICATED)
    assert puts.pending.is_needed(Condition.REPLICATED)
    puts.pending.advance(Condition.REPLICATED, 30)
    assert puts.answered == [(30, PutStatus.PUT_OK)]


def test_a_put_counts_as_many_as_the_requests_that_it_answers(puts: Puts) -> None:
    puts.add(10, FLUSHED)
    result = PutResult(PutStatus.PUT_OK, request_count=32)
    puts.pending.add(20, FLUSHED, 0, lambda _: None, result)
    assert len(puts.pending) == 33
    puts.pending.advance(Condition.FLUSHED, 10)
    assert len(puts.pending) == 32
    puts.pending.fail()
    assert len(puts.pending) == 0
