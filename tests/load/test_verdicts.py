# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the churn test find each kind of fault, and raise no false alarms."""

import pytest
from tests.load.journal import Delivery, Handover
from tests.load.verdicts import (
    COMMIT_NS,
    SECOND_NS,
    SETTLE_NS,
    Cause,
    End,
    Explainer,
    Life,
    Repeat,
    judge_keys,
    judge_order,
)

QUEUE = ("ordered", "broker-a", 0)
FOREVER_NS = 1000 * SECOND_NS


def delivered(
    offset: int, member: str, begin_s: float, *, period: int = 1, ends: bool = True
) -> Delivery:
    begin_ns = int(begin_s * SECOND_NS)
    end_ns = begin_ns + 1000 if ends else None
    return Delivery(QUEUE, offset, f"key-{offset}", member, period, begin_ns, end_ns)


def lives(**ends: tuple[float, End]) -> dict[str, Life]:
    found = {name: Life(name, 0, int(at * SECOND_NS), end) for name, (at, end) in ends.items()}
    return {"a": Life("a", 0, FOREVER_NS, End.AT_WORK), **found}


def test_a_queue_that_moves_and_repeats_its_end_is_in_order() -> None:
    deliveries = [
        delivered(0, "a", 1),
        delivered(1, "a", 2, ends=False),
        delivered(0, "b", 4),
        delivered(1, "b", 5),
        delivered(2, "b", 6),
        delivered(3, "a", 7, period=2),
    ]
    found = lives(a=(3, End.KILLED), b=(90, End.AT_WORK))
    assert judge_order(deliveries, found) == []
    assert judge_keys(deliveries) == []


@pytest.mark.parametrize(
    ("deliveries", "text"),
    [
        ([delivered(1, "a", 1)], "leaves out"),
        ([delivered(0, "a", 1), delivered(2, "a", 2)], "follows 0"),
        ([delivered(0, "a", 1), delivered(0, "a", 2)], "follows 0"),
        ([delivered(0, "a", 1), delivered(2, "b", 2)], "leaves out"),
        ([delivered(0, "a", 1, ends=False), delivered(1, "b", 2)], "while a was at 0"),
        ([delivered(0, "a", 1), delivered(1, "a", 1)], "while a was at 0"),
    ],
)
def test_disorder_is_found(deliveries: list[Delivery], text: str) -> None:
    (wrong, *_) = judge_order(deliveries, lives(b=(90, End.AT_WORK)))
    assert text in wrong


def test_a_key_that_comes_in_another_order_is_found() -> None:
    assert judge_keys([delivered(0, "a", 2), delivered(1, "a", 1)]) == [
        "ordered: key-1 came where 0 was expected",
        "ordered: key-0 came where 2 was expected",
    ]


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ((2.0, End.KILLED), Cause.KILL),
        ((2.0, End.LEFT), Cause.LEAVE),
        ((90.0, End.AT_WORK), Cause.MOVE),
    ],
)
def test_a_repeat_has_the_cause_that_took_the_queue_away(
    end: tuple[float, End], cause: Cause
) -> None:
    repeat = Repeat(delivered(0, "a", 1), delivered(0, "b", 3))
    found = lives(a=end, b=(90, End.AT_WORK))
    assert Explainer(repeat, found).cause(repeat) is cause


def test_a_repeat_without_a_move_has_no_cause() -> None:
    repeat = Repeat(delivered(0, "a", 1), delivered(0, "a", 3))
    assert Explainer(repeat, lives()).cause(repeat) is None


def test_a_redelivery_long_after_the_commit_has_no_cause() -> None:
    repeat = Repeat(delivered(0, "a", 1), delivered(0, "b", 30))
    later = delivered(9, "a", 1 + COMMIT_NS / SECOND_NS + 1)
    after = delivered(99, "a", 31)
    found = lives(a=(20, End.KILLED), b=(90, End.AT_WORK))
    assert Explainer([*repeat, after], found).cause(repeat) is Cause.KILL
    assert Explainer([*repeat, later], found).cause(repeat) is None


def test_a_move_long_after_the_last_change_has_no_cause() -> None:
    late_s = SETTLE_NS / SECOND_NS + 1
    repeat = Repeat(delivered(0, "a", late_s), delivered(0, "b", late_s + 1))
    found = {name: Life(name, 0, FOREVER_NS, End.AT_WORK) for name in ("a", "b")}
    assert Explainer(repeat, found).cause(repeat) is None


@pytest.mark.parametrize(
    ("offset", "stored_s", "is_last", "cause"),
    [
        (0, 1.001, True, Cause.EARLY),
        (0, 0.999, True, Cause.EARLY),
        (1, 1.001, True, Cause.MOVE),
        (0, 3.1, True, Cause.MOVE),
        (0, -0.1, True, Cause.MOVE),
        (0, 1.001, False, Cause.MOVE),
    ],
    ids=["stored while in work", "just before", "consumed", "too late", "too early", "not last"],
)
def test_java_repeats_the_message_in_process_when_it_stored_its_offset(
    offset: int, stored_s: float, is_last: bool, cause: Cause
) -> None:
    repeat = Repeat(delivered(0, "a", 1), delivered(0, "b", 3))
    history = [*repeat] if is_last else [*repeat, delivered(1, "a", 2)]
    stored = Handover("a", QUEUE, int(stored_s * SECOND_NS), offset)
    found = lives(b=(90, End.AT_WORK))
    assert Explainer(history, found, [stored]).cause(repeat) is cause
    elsewhere = stored._replace(member="b")
    assert Explainer(history, found, [elsewhere]).cause(repeat) is Cause.MOVE


@pytest.mark.parametrize(
    ("left_s", "cause"), [(1.5, Cause.MOVE), (-0.5, Cause.KILL), (3.5, Cause.KILL)]
)
def test_a_kill_explains_nothing_of_a_queue_that_was_left_in_order(
    left_s: float, cause: Cause
) -> None:
    repeat = Repeat(delivered(0, "a", 1), delivered(0, "b", 3))
    found = lives(a=(2, End.KILLED), b=(90, End.AT_WORK))
    left = Handover("a", QUEUE, int(left_s * SECOND_NS))
    assert Explainer(repeat, found, [left]).cause(repeat) is cause
