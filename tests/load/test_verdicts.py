# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the churn test find each kind of fault, and raise no false alarms."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.load.journal import Delivery, Handover, JavaReader, JournalReader
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
    repeats,
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


def test_only_a_second_delivery_is_a_repeat() -> None:
    first, again = delivered(0, "a", 1), delivered(0, "b", 3)
    assert list(repeats([first, delivered(1, "a", 2), again])) == [Repeat(first, again)]


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


def test_the_log_of_a_java_client_shows_stored_offsets(tmp_path: Path) -> None:
    now_ns = time.monotonic_ns()
    moment = f"{datetime.now(UTC).astimezone():%Y-%m-%d %H:%M:%S},123"
    queue = "MessageQueue [topic=t, brokerName=broker-b, queueId=3]"
    group = "Group: g ClientId: 192.0.2.2@1#2 updateConsumeOffsetToBroker"
    log = tmp_path / "rocketmq_client.log"
    reader = JavaReader("j", tmp_path / "output", stores=log, is_ordered=True)
    assert list(reader.handovers()) == []
    log.write_text(
        f"{moment} INFO RocketmqClient - [persistAll] {group} {queue} 41\n"
        f"{moment} INFO RocketmqClient - [persist] {group} {queue} 42\n"
        "  a stack trace\n"
    )
    (left,) = reader.handovers()
    assert (left.member, left.queue, left.offset) == ("j", ("t", "broker-b", 3), 42)
    assert abs(left.moment_ns - now_ns) < 10 * SECOND_NS


def test_a_journal_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    reader = JournalReader("a", path)
    reader.read()
    path.write_text("assigned 1 t b 0\nbegun 2 t b 0 7 key-1\nended 3 t b")
    reader.read()
    assert reader.deliveries == [Delivery(("t", "b", 0), 7, "key-1", "a", 1, 2)]
    assert not reader.done
    path.write_text(f"{path.read_text()} 0 7\nrevoked 4 t b 0\n")
    reader.read()
    assert list(reader.handovers()) == [Handover("a", ("t", "b", 0), 4)]
    path.write_text(f"{path.read_text()}assigned 4 t b 0\nbegun 5 t b 0 8 key-2\n")
    reader.read()
    assert reader.done == {("t", "key-1")}
    assert [(d.end_ns, d.period) for d in reader.deliveries] == [(3, 1), (None, 2)]


@pytest.mark.parametrize(
    ("is_ordered", "offsets", "periods"),
    [(True, [0, 1, 1, 4], [0, 0, 1, 2]), (False, [0, 2, 1, 2, 4], [0, 0, 0, 1, 1])],
)
def test_the_output_of_java_consumers_is_read(
    tmp_path: Path, is_ordered: bool, offsets: list[int], periods: list[int]
) -> None:
    lines = [
        f'{{"event":"received","topic":"t","key":"key-{offset}","broker":"b","queue_id":0,'
        f'"queue_offset":{offset},"at_ns":5}}'
        for offset in offsets
    ]
    stores = tmp_path / "none"
    reader = JavaReader("j", tmp_path / "output", stores=stores, is_ordered=is_ordered)
    reader.take(["a line of its log", *lines])
    assert [(one.offset, one.period) for one in reader.deliveries] == list(
        zip(offsets, periods, strict=True)
    )
    assert {(one.begin_ns, one.end_ns) for one in reader.deliveries} == {(5, 5)}
    assert reader.done == {("t", f"key-{offset}") for offset in offsets}
