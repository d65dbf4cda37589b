# SPDX-License-Identifier: Apache-2.0

from cometmq.broker.statistics.latencies import PutTimes


def test_classes_and_percentiles_of_the_first_minute() -> None:
    times = PutTimes(lambda: 100)
    for elapsed_ms in (1, 10, 999, 9_999):
        times.add(elapsed_ms, 1)
    times.add(3_600_000, 1)

    counted = {name: count for name, count in times.classes().items() if count}
    assert counted == {
        "<=0ms": 95, "0~10ms": 1, "10~50ms": 1, "500ms~1s": 1, "5~10s": 1, "10s~": 1
    }  # fmt: skip
    assert len(times.classes()) == 13
    assert (times.percentile(0.5), times.percentile(0.97), times.percentile(0.99)) == (0, 10, 9_999)
    assert times.percentile(1.0) == 10_000
    assert times.max_ms == 3_600_000


def test_the_last_whole_minute_is_shown() -> None:
    put_count = 1
    times = PutTimes(lambda: put_count)
    times.add(5, 1)
    times.rotate()
    put_count = 4
    times.add(70, 1)
    assert times.percentile(0.99) == 5

    times.rotate()
    assert times.percentile(0.99) == 70
    assert times.classes()["<=0ms"] == 2
    times.rotate()

    assert times.percentile(0.99) == 0
    assert sum(times.classes().values()) == 0
    assert times.max_ms == 70
