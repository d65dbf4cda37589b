# SPDX-License-Identifier: Apache-2.0
"""Splitting and limiting ranges: no message is lost or read twice, and no queue starves."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.read.planning import Span, interleave, limited, split

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=12)


def spans_of(sizes: list[int], *, brokers: int = 2) -> list[Span]:
    return [
        Span(Queue("T", f"b{index % brokers}", index), 100, 100 + size)
        for index, size in enumerate(sizes)
    ]


@given(SIZES, st.none() | st.integers(1, 50), st.none() | st.integers(1, 300))
def test_pieces_cover_the_spans(sizes: list[int], parts: int | None, most: int | None) -> None:
    spans = spans_of(sizes)

    pieces = split(spans, min_partitions=parts, max_records=most)

    assert all(piece.size > 0 for piece in pieces)
    if most is not None:
        assert all(piece.size <= most for piece in pieces)
    for span in spans:
        own = sorted((p.start, p.end) for p in pieces if p.queue == span.queue)
        covered = [offset for start, end in own for offset in range(start, end)]
        assert covered == list(range(span.start, span.end))


def test_splits_equal_those_of_the_kafka_source() -> None:
    assert len(split(spans_of([1000] * 4), min_partitions=10)) == 8
    assert len(split(spans_of([1000] * 4), min_partitions=4)) == 4
    assert len(split(spans_of([1000, 10]), max_records=300)) == 5


def test_brokers_alternate_and_large_pieces_come_first() -> None:
    ordered = interleave(spans_of([5, 1, 9, 7]))

    assert [(span.queue.broker_name, span.size) for span in ordered] == [
        ("b0", 9),
        ("b1", 7),
        ("b0", 5),
        ("b1", 1),
    ]


@given(SIZES, st.integers(1, 3000))
def test_limited_batch_uses_its_limit_and_every_queue(sizes: list[int], limit: int) -> None:
    spans = spans_of(sizes)

    taken = {queue: end - 100 for queue, end in limited(spans, limit).items()}

    assert all(0 <= taken[span.queue] <= span.size for span in spans)
    assert all(taken[span.queue] > 0 for span in spans if span.size)
    waiting = sum(1 for size in sizes if size)
    assert min(limit, sum(sizes)) <= sum(taken.values()) <= max(limit, 0) + waiting
